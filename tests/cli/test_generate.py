"""`slipstream generate` from arguments to output and exit code, on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from slipstream.cli.main import main
from tests.tiny_folder import write_tiny_folder


@pytest.fixture
def run(tiny_folder: Path, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str, model: Path = tiny_folder) -> tuple[int, str, str]:
        code = main(["generate", str(model), "--num-threads", "1", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_streams_text_and_then_one_line_of_speed(run):
    code, out, err = run("--prompt", "hello", "--max-tokens", "8", "--ignore-eos")
    assert code == 0
    assert out.endswith("\n")
    assert "5 + 8 tokens | TTFT" in err
    assert "TPOT" in err
    assert "tokens/s" in err
    assert "peak memory" in err


def test_json_holds_the_same_text(run):
    _, text, _ = run("--prompt", "hello", "--max-tokens", "8", "--quiet")
    code, out, err = run("--prompt", "hello", "--max-tokens", "8", "--json", "--quiet")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert result["outputs"][0]["text"] == text.removesuffix("\n")
    assert result["outputs"][0]["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "cached_tokens": 0}
    assert result["outputs"][0]["finish_reason"] == "length"
    assert result["settings"]["backend"] == "cpu"


def test_several_completions_with_logprobs(run):
    arguments = ("--prompt", "hi", "--max-tokens", "4", "-n", "2", "--temperature", "1", "--seed", "3")
    code, out, _ = run(*arguments, "--logprobs", "2", "--json")
    first, second = json.loads(out)["outputs"]
    assert code == 0
    assert (first["index"], second["index"]) == (0, 1)
    assert first["token_ids"] != second["token_ids"]
    assert [len(entry["top"]) for entry in first["logprobs"]] == [2] * len(first["token_ids"])
    code, _, err = run(*arguments)
    assert code == 2
    assert "need --json" in err


def test_chat_puts_the_prompt_into_the_template(run):
    code, out, _ = run("--prompt", "hi", "--chat", "--system", "s", "--max-tokens", "1", "--json")
    tokens = json.loads(out)["prompt_token_ids"]
    assert code == 0
    assert tokens.count(257) == 3  # <|im_start|> of system, user and assistant
    assert tokens.count(258) == 2  # <|im_end|>


def test_a_prompt_from_a_file_and_from_standard_input(run, tmp_path, monkeypatch):
    file = tmp_path / "prompt.txt"
    file.write_text("héllo\n")
    _, from_file, _ = run("--prompt-file", str(file), "--max-tokens", "4", "--json")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("héllo\n".encode())))
    _, from_stdin, _ = run("--prompt-file", "-", "--max-tokens", "4", "--json")
    _, from_option, _ = run("--prompt", "héllo\n", "--max-tokens", "4", "--json")
    texts = {json.loads(each)["outputs"][0]["text"] for each in (from_file, from_stdin, from_option)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--prompt"),
        (("--prompt", "a", "--prompt-file", "b"), 2, "--prompt"),
        (("--prompt", ""), 4, "empty"),
        (("--prompt-file", "/no/such/file"), 2, "/no/such/file: cannot be read"),
        (("--prompt", "x" * 300), 4, "300 tokens, but the context holds 256"),
        (("--prompt", "a", "--temperature", "-1"), 4, "temperature"),
        (("--prompt", "a", "--temperature", "nan"), 4, "temperature"),
        (("--prompt", "a", "--top-p", "0"), 4, "top_p"),
        (("--prompt", "a", "--max-tokens", "0"), 4, "max_tokens"),
        (("--prompt", "a", "--system", "s"), 2, "--system needs --chat"),
        (("--prompt", "a", "--output", "o"), 2, "belong to --batch"),
        (("--prompt", "a", "--no-such-option"), 2, "--no-such-option"),
        (("--prompt", "a", "--block-size", "0"), 2, "block_size"),
        (("--prompt", "a", "--backend", "cuda"), 2, "backend"),
        (("--prompt", "a", "--max-model-len", "1000"), 2, "made for 256 positions"),
        (("--prompt", "a", "--num-blocks", "99999999999"), 5, "blocks were asked for"),
        (("--batch", "/no/such/file", "--output", "o"), 2, "/no/such/file: cannot be read"),
        (("--batch", "a.jsonl"), 2, "--output FILE"),
    ],
)
def test_bad_input_has_a_message_and_a_code(run, arguments, code, message):
    actual, out, err = run(*arguments)
    assert actual == code
    assert message in err
    assert out == ""


def test_a_prompt_that_is_not_utf8(run, tmp_path):
    file = tmp_path / "prompt.bin"
    file.write_bytes(b"ab\xff")
    code, _, err = run("--prompt-file", str(file))
    assert code == 4
    assert "not valid UTF-8 (byte 2)" in err


def test_a_model_without_chat_template(run, tmp_path):
    folder = write_tiny_folder(tmp_path / "base", chat_template=False)
    code, _, err = run("--prompt", "a", "--chat", model=folder)
    assert code == 3
    assert "no chat template" in err


def test_unknown_settings_in_a_file_suggest_the_nearest(run, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("[cache]\nblock_sise = 8\n")
    code, _, err = run("--prompt", "a", "--config", str(file))
    assert code == 2
    assert "[cache] block_sise" in err
    assert "block_size" in err


def test_settings_from_a_file_are_in_force(run, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("[cache]\nblock_size = 8\n[scheduler]\nmax_num_seqs = 3\n")
    _, out, _ = run("--prompt", "a", "--max-tokens", "1", "--json", "--config", str(file), "--max-num-seqs", "2")
    settings = json.loads(out)["settings"]
    assert (settings["block_size"], settings["max_num_seqs"]) == (8, 2)


class TestBatch:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        file = tmp_path / "in.jsonl"
        lines = [
            '{"prompt": "one"}',
            '{"id": "chat", "messages": [{"role": "user", "content": "two"}]}',
            "{broken",
            '{"prompt": "' + "x" * 300 + '"}',
            '{"id": "empty", "messages": []}',
            '{"prompt": "three", "max_tokens": 2, "temperature": 1, "seed": 1}',
        ]
        file.write_text("\n".join(lines) + "\n")
        return file

    def test_good_lines_are_answered_and_bad_ones_kept_apart(self, run, source, tmp_path):
        target = tmp_path / "out.jsonl"
        code, _, err = run("--batch", str(source), "--output", str(target), "--max-tokens", "4", "--quiet")
        results = {entry["id"]: entry for entry in map(json.loads, target.read_text().splitlines())}
        errors = {
            e["line"]: e["error"] for e in map(json.loads, (tmp_path / "out.jsonl.errors").read_text().splitlines())
        }
        assert code == 4
        assert "3 of 6 lines" in err
        assert set(results) == {"line-1", "chat", "line-6"}
        assert len(results["line-6"]["outputs"][0]["token_ids"]) <= 2
        assert set(errors) == {3, 4, 5}
        assert "not valid JSON" in errors[3]
        assert "300 tokens" in errors[4]

    def test_a_batch_gives_what_single_runs_give(self, run, source, tmp_path):
        target = tmp_path / "out.jsonl"
        run("--batch", str(source), "--output", str(target), "--max-tokens", "4", "--quiet")
        results = {entry["id"]: entry for entry in map(json.loads, target.read_text().splitlines())}
        _, out, _ = run("--prompt", "one", "--max-tokens", "4", "--json")
        assert results["line-1"]["outputs"][0]["token_ids"] == json.loads(out)["outputs"][0]["token_ids"]
        _, out, _ = run("--prompt", "two", "--chat", "--max-tokens", "4", "--json")
        assert results["chat"]["outputs"][0]["token_ids"] == json.loads(out)["outputs"][0]["token_ids"]

    def test_an_interrupted_run_goes_on(self, run, source, tmp_path):
        target = tmp_path / "out.jsonl"
        run("--batch", str(source), "--output", str(target), "--max-tokens", "4", "--quiet")
        whole = target.read_text()
        lines = whole.splitlines(keepends=True)
        target.write_text(lines[0] + lines[1][:20])
        code, out, _ = run("--batch", str(source), "--output", str(target), "--max-tokens", "4", "--quiet", "--json")
        summary = json.loads(out)
        assert code == 4
        assert (summary["done"], summary["skipped"], summary["bad"]) == (2, 1, 3)
        texts = {e["id"]: e["outputs"][0]["text"] for e in map(json.loads, target.read_text().splitlines())}
        assert texts == {e["id"]: e["outputs"][0]["text"] for e in map(json.loads, whole.splitlines())}

    def test_a_clean_batch_leaves_no_error_file(self, run, tmp_path):
        source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text('{"prompt": "one"}\n')
        code, _, err = run("--batch", str(source), "--output", str(target), "--max-tokens", "2")
        assert code == 0
        assert "1 answered, 0 already there, 0 bad" in err
        assert not (tmp_path / "out.jsonl.errors").exists()

    def test_an_id_that_asks_something_else_is_refused(self, run, tmp_path):
        source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text('{"prompt": "one"}\n')
        run("--batch", str(source), "--output", str(target), "--max-tokens", "2")
        before = target.read_text()
        source.write_text('{"prompt": "two"}\n')
        code, _, _ = run("--batch", str(source), "--output", str(target), "--max-tokens", "2")
        assert (code, target.read_text()) == (4, before)
        assert "an answer to another request" in (tmp_path / "out.jsonl.errors").read_text()
        code, _, _ = run("--batch", str(source), "--output", str(target), "--max-tokens", "2", "--overwrite")
        assert code == 0
        assert target.read_text() != before

    def test_the_output_must_be_a_file(self, run, source):
        code, _, err = run("--batch", str(source), "--output", "/")
        assert code == 2
        assert "--output must name a file" in err

    def test_the_output_may_not_be_the_input(self, run, source):
        before = source.read_bytes()
        code, _, err = run("--batch", str(source), "--output", str(source))
        assert code == 2
        assert "the same file" in err
        assert source.read_bytes() == before


def test_drafts_change_no_text_and_are_told_of(run):
    arguments = ("--prompt", "one one one one", "--max-tokens", "16", "--ignore-eos", "--json")
    _, plain, _ = run(*arguments)
    code, out, _ = run(*arguments, "--speculative", "ngram", "--num-speculative-tokens", "2")
    assert code == 0
    ours, expected = json.loads(out), json.loads(plain)
    assert ours["outputs"][0]["token_ids"] == expected["outputs"][0]["token_ids"]
    assert (ours["settings"]["speculative"], expected["settings"]["speculative"]) == ("ngram", "off")
    assert ours["settings"]["step_times"] in ("measured", "measured earlier")
    assert expected["outputs"][0]["timings"]["draft_tokens"] == 0


def test_a_way_to_draft_that_is_not_there_is_refused(run):
    code, out, err = run("--prompt", "hello", "--speculative", "medusa")
    assert (code, out) == (2, "")
    assert "cannot be 'medusa': such heads are not part of this build. Choose off, auto, ngram, draft_head or" in err


def test_a_head_that_is_not_there_is_refused(run, tmp_path):
    code, out, err = run("--prompt", "hello", "--speculative", "draft_head", "--draft-head", str(tmp_path))
    assert (code, out) == (3, "")
    assert "is no draft head: it has no config.json" in err


def test_any_other_way_is_taken_for_a_model(run):
    code, out, err = run("--prompt", "hello", "--speculative", "other-model")
    assert (code, out) == (3, "")
    assert "other-model" in err


def test_settings_of_drafts_without_drafts_are_warned_of(run):
    code, _, err = run("--prompt", "hello", "--max-tokens", "2", "--num-speculative-tokens", "3")
    assert code == 0
    assert "num_speculative_tokens: without effect, because speculation is off" in err
