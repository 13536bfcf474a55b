"""`slipstream chat` with scripted input, on a tiny model."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.cli import chat as chat_module
from slipstream.cli.main import main
from slipstream.engine.llm import LLM
from tests.tiny_folder import write_tiny_folder


def talk(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str | BaseException) -> int:
    script: Iterator[str | BaseException] = iter(lines)

    def read(prompt: str = "") -> str:
        line = next(script, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", read)
    return main(["chat", str(folder), "--num-threads", "1", "--temperature", "0", "--max-tokens", "6"])


def test_history_is_sent_again(monkeypatch, tiny_folder, tmp_path, capsys):
    file = tmp_path / "talk.json"
    code = talk(monkeypatch, tiny_folder, "/system Be brief.", "hello", "again", f"/save {file}", "/exit")
    captured = capsys.readouterr()
    messages = json.loads(file.read_text())
    assert code == 0
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert captured.out == "".join(m["content"] + "\n" for m in messages if m["role"] == "assistant")
    assert captured.err.count("TTFT") == 2
    assert " cached | context " in captured.err  # the second turn reuses the first one's KV


def test_ctrl_c_stops_the_answer_and_not_the_program(monkeypatch, tiny_folder, tmp_path, capsys):
    real = LLM.stream
    stopped: list[str] = []

    def interrupted(self, prompt, params=None, **more):
        stream = real(self, prompt, params, **more)
        if stopped:
            yield from stream
            return
        for _ in range(2):
            yield next(stream)
        stopped.append("once")
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_module.LLM, "stream", interrupted)
    file = tmp_path / "talk.json"
    code = talk(monkeypatch, tiny_folder, "hello", KeyboardInterrupt(), "again", f"/save {file}")
    err = capsys.readouterr().err
    assert code == 0
    assert "(stopped)" in err
    assert "(Ctrl-D leaves)" in err
    assert [m["role"] for m in json.loads(file.read_text())] == ["user", "assistant"] * 2


def test_an_overlong_question_is_refused_and_the_conversation_goes_on(monkeypatch, tiny_folder, tmp_path, capsys):
    file = tmp_path / "talk.json"
    code = talk(monkeypatch, tiny_folder, "hello", "x" * 400, "/set top_p 2", "/nonsense", "", f"/save {file}")
    err = capsys.readouterr().err
    assert code == 0
    assert "the context holds 256" in err
    assert "top_p" in err
    assert "no command /nonsense" in err
    assert [m["role"] for m in json.loads(file.read_text())] == ["user", "assistant"]


def test_a_model_without_template_is_refused_before_the_first_question(monkeypatch, tmp_path, capsys):
    folder = write_tiny_folder(tmp_path / "base", chat_template=False)
    assert talk(monkeypatch, folder, "hello") == 3
    assert "no chat template" in capsys.readouterr().err
