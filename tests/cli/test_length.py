"""The default length of an answer, and that a long prompt does not fail because of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.cli.length import length_note, with_default_length
from slipstream.cli.main import main
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("given", "min_tokens", "prompt", "expected"),
    [
        (None, 0, 10, 256),
        (None, 0, 744, 256),
        (None, 0, 745, 255),
        (None, 0, 999, 1),
        (None, 0, 1000, None),
        (None, 300, 10, 300),
        (None, 300, 800, None),
        (7, 0, 10, 7),
        (7, 0, 999, 7),
    ],
)
def test_default_length(given: int | None, min_tokens: int, prompt: int, expected: int | None) -> None:
    params = SamplingParams(max_tokens=given, min_tokens=min_tokens, top_k=3)
    result = with_default_length(params, prompt, 1000)
    assert (result.max_tokens, result.top_k) == (expected, 3)
    noted = expected == 1000 - prompt and expected < 256
    assert (length_note(result, prompt, 1000) is not None) == noted


def run(folder: Path, *arguments: str) -> int:
    return main(["generate", str(folder), "--num-threads", "1", "--ignore-eos", *arguments])


def test_a_long_prompt_is_answered_up_to_the_contexts_end(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_folder, "--prompt", "x" * 250, "--json") == 0
    out, err = capsys.readouterr()
    [completion] = json.loads(out)["outputs"]
    assert (len(completion["token_ids"]), completion["finish_reason"]) == (6, "length")
    assert "note: the prompt's 250 tokens leave room for 6 in the context of 256." in err


def test_a_length_that_was_asked_for_is_an_error_with_all_numbers(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_folder, "--prompt", "x" * 250, "--max-tokens", "7") == 4
    assert "250 tokens and max_tokens asks for 7, but the context holds 256" in capsys.readouterr().err


def test_a_batch_takes_the_same_default_per_line(tiny_folder: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts = [{"prompt": "x" * 250}, {"prompt": "x" * 250, "max_tokens": 2}, {"prompt": "y" * 250, "max_tokens": 7}]
    source.write_text("".join(json.dumps(line) + "\n" for line in prompts))
    assert run(tiny_folder, "--batch", str(source), "--output", str(target), "--quiet") == 4
    results = {entry["id"]: entry for entry in map(json.loads, target.read_text().splitlines())}
    assert {key: len(entry["outputs"][0]["token_ids"]) for key, entry in results.items()} == {"line-1": 6, "line-2": 2}
    [error] = map(json.loads, (tmp_path / "out.jsonl.errors").read_text().splitlines())
    assert (error["line"], "max_tokens asks for 7" in error["error"]) == (3, True)
