"""The progress of a long prompt in the terminal."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path

import pytest

from slipstream.cli import prompt_line
from slipstream.cli.main import main
from slipstream.cli.prompt_line import CHUNK, PromptLine, in_small_steps
from slipstream.config.types import EngineOptions

pytestmark = pytest.mark.fast


def be_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_the_line_is_rewritten_and_cleared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    be_terminal(monkeypatch)
    with PromptLine(quiet=False) as line:
        line.clear()
        line.show(900, 1000)
        line.show(20, 1000)
        line.clear()
        line.clear()
    first, second = "prompt: 900 of 1000 tokens", "prompt: 20 of 1000 tokens "
    assert capsys.readouterr() == ("", f"\r{first}\r{second}\r{' ' * (len(second) - 1)}\r")


def test_what_strikes_leaves_no_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    be_terminal(monkeypatch)

    def struck() -> None:
        with PromptLine(quiet=False) as line:
            line.show(1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        struck()
    assert capsys.readouterr().err.endswith("tokens\r" + " " * len("prompt: 1 of 2 tokens") + "\r")


def test_without_a_terminal_or_when_quiet_nothing_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with PromptLine(quiet=False) as line:
        line.show(1, 2)
    be_terminal(monkeypatch)
    with PromptLine(quiet=True) as line:
        line.show(1, 2)
    assert capsys.readouterr() == ("", "")


def test_chunks_are_chosen_only_where_nobody_has() -> None:
    def chunk(**settings: object) -> int | None:
        return in_small_steps(EngineOptions.from_flat(model="m", **settings)).scheduler.max_prefill_chunk

    assert chunk() == CHUNK
    assert chunk(max_prefill_chunk=7) == 7
    assert chunk(max_num_batched_tokens=64) is None
    assert chunk(enable_chunked_prefill=False) is None


def generated(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    arguments = ["--prompt", "a long question " * 4, "--max-tokens", "6", "--ignore-eos", "--num-threads", "1"]
    assert main(["generate", str(folder), *arguments, *more]) == 0
    return capsys.readouterr()


def test_generate_shows_it_before_the_answer_which_is_the_same(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_line, "CHUNK", 16)
    out, err = generated(tiny_folder, capsys)
    assert "prompt: " not in err
    be_terminal(monkeypatch)
    shown_out, shown_err = generated(tiny_folder, capsys)
    assert shown_out == out
    lines = [part.rstrip() for part in shown_err.split("\r") if part.startswith("prompt: ")]
    total = int(err.split(" + ")[0].split()[-1])
    assert total > 32
    assert lines == [f"prompt: {done} of {total} tokens" for done in range(16, total, 16)]
    assert "prompt: " not in generated(tiny_folder, capsys, "--quiet")[1]
    assert "prompt: " not in generated(tiny_folder, capsys, "--json")[1]


def test_chat_shows_it_too(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["a long question " * 4])

    def read(prompt: str = "") -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr(prompt_line, "CHUNK", 16)
    monkeypatch.setattr(builtins, "input", read)
    be_terminal(monkeypatch)
    assert main(["chat", str(tiny_folder), "--num-threads", "1", "--max-tokens", "3"]) == 0
    assert "prompt: 16 of " in capsys.readouterr().err
