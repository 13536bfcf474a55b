"""The whole command on a tiny model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.cli.main import main
from slipstream.engine.llm import LLM
from slipstream.errors import ModelError, UsageError
from slipstream.models.draft_head_file import read_draft_head, require_fit
from slipstream.models.fingerprint import model_fingerprint
from slipstream.sampling.params import SamplingParams
from slipstream.training.answers import read_answers
from slipstream.training.head_config import HeadConfig
from slipstream.training.run import TrainingRun, train_draft_head
from slipstream.training.settings import TrainingSettings
from slipstream.training.target_engine import TargetEngine
from slipstream.weights.formats.safetensors import open_safetensors
from tests.tiny_folder import write_tiny_folder

SETTINGS = TrainingSettings(tokens=400, epochs=2, draft_vocab=64, batch=256, answer_tokens=12, seed=3)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    lines = [{"prompt": f"Say {word}", "domain": kind} for word in "abcdefghij" for kind in ("first", "second")]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def run(tiny: Path, out: Path, data: Path | None, **changes: object) -> TrainingRun:
    engine = TargetEngine(model=str(tiny), num_threads=1, cache_dir=out.parent / "cache", quiet=True)
    base = {"engine": engine, "out": out, "settings": SETTINGS, "data": data}
    return TrainingRun(**{**base, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, prompts: Path) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_draft_head(run(tiny_folder, folder / "head", prompts))
    return folder / "head"


def test_the_folder_reads_back(trained: Path, tiny_folder: Path) -> None:
    file = read_draft_head(trained)
    config, ids = HeadConfig.of_file(file.config), file.draft_ids
    assert config == HeadConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=56,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        vocab_size=259,
        draft_vocab_size=64,
    )
    assert {name: array.shape for name, array in file.weights.items()} == config.shapes()
    assert ids.dtype == np.int32
    assert len(ids) == 64
    assert (np.diff(ids) > 0).all()
    checkpoint = open_safetensors(tiny_folder)
    assert file.config.target == tiny_folder.name
    require_fit(file, 32, 259, model_fingerprint(checkpoint))
    assert 256 in ids  # the end of the text
    values = json.loads((trained / "config.json").read_text())
    assert values["format"] == "slipstream-draft-head"
    assert values["version"] == 1
    assert values["features"] == ["final"]


def test_the_report(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    answers = read_answers(trained / "training").values()
    assert report["settings"]["tokens"] == 400
    assert report["trained_on"]["answer_tokens"] < 400 + 12
    assert {each.domain for each in answers} == {"first", "second"}
    greedy = report["acceptance"]["greedy"]
    assert set(greedy) <= {"all", "first", "second"}
    assert greedy["all"]["tried"][0] > 0
    assert all(0 <= rate <= 1 for rate in greedy["all"]["acceptance"] if rate is not None)
    assert greedy["all"]["tokens_per_step"] == sorted(greedy["all"]["tokens_per_step"])


def test_an_interrupted_run_ends_like_an_undisturbed_one(
    trained: Path, tiny_folder: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "head"
    with monkeypatch.context() as patched:
        patched.setattr("slipstream.training.answers._answer", interrupting(7))
        with pytest.raises(KeyboardInterrupt):
            train_draft_head(run(tiny_folder, out, prompts))
    assert len(read_answers(out / "training")) == 7
    with monkeypatch.context() as patched:
        patched.setattr("slipstream.training.fit.train_head", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_draft_head(run(tiny_folder, out, prompts, resume=True))
    assert not (out / "model.safetensors").exists()
    train_draft_head(run(tiny_folder, out, prompts, resume=True))
    assert (out / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    assert (out / "report.json").read_bytes() == (trained / "report.json").read_bytes()


def interrupting(after: int) -> object:
    from slipstream.training.answers import _answer

    count = 0

    def answer(*args: object) -> object:
        nonlocal count
        if count == after:
            raise KeyboardInterrupt
        count += 1
        return _answer(*args)  # type: ignore[arg-type]

    return answer


def interrupted(*args: object, **kwargs: object) -> None:
    from slipstream.training.trainer import train_head

    train_head(*args, **kwargs, stop_after=3)  # type: ignore[arg-type]


def test_more_tokens_go_on_from_what_is_there(trained: Path, tiny_folder: Path, prompts: Path, tmp_path: Path) -> None:
    from dataclasses import replace
    from shutil import copytree

    out = copytree(trained, tmp_path / "head")
    before = read_answers(out / "training")
    more = replace(SETTINGS, tokens=600)
    train_draft_head(run(tiny_folder, out, prompts, resume=True, settings=more))
    after = read_answers(out / "training")
    assert sum(each.num_answer_tokens for each in after.values()) >= 600
    for index, answer in before.items():
        np.testing.assert_array_equal(after[index].tokens, answer.tokens)
    fresh = tmp_path / "fresh"
    train_draft_head(run(tiny_folder, fresh, prompts, settings=more))
    assert (fresh / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_what_does_not_fit_is_refused_before_work(
    trained: Path, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="holds an earlier training"):
        train_draft_head(run(tiny_folder, trained, prompts))
    with pytest.raises(UsageError, match="no training to go on with"):
        train_draft_head(run(tiny_folder, tmp_path / "none", prompts, resume=True))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    with pytest.raises(UsageError, match="is not empty"):
        train_draft_head(run(tiny_folder, tmp_path / "full", prompts))
    with pytest.raises(UsageError, match="is not a folder"):
        train_draft_head(run(tiny_folder, tmp_path / "full" / "a", prompts))
    few = tmp_path / "few.txt"
    few.write_text("one\ntwo\n")
    with pytest.raises(UsageError, match="has 2 prompts, 16 at least"):
        train_draft_head(run(tiny_folder, tmp_path / "out", few))
    other = write_tiny_folder(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match="begun with another target"):
        train_draft_head(run(other, trained, prompts, resume=True))
    assert not (tmp_path / "out").exists()


def test_a_head_is_measured_on_other_prompts(
    trained: Path, tiny_folder: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(line + "\n" for line in prompts.read_text().splitlines()[:3]))
    command = ["draft", "eval", str(tiny_folder), "--head", str(trained), "--data", str(few), "--threads", "1"]
    command += ["--answer-tokens", "20", "--quiet"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"greedy", "temperature_1"}
    for domains in found.values():
        assert set(domains) == {"all", "first", "second"}
        # An answer of n tokens has n - 1 that can be drafted: the first one comes with the prompt.
        assert domains["all"]["tried"][0] == domains["first"]["tried"][0] + domains["second"]["tried"][0] <= 3 * 19
    assert main(command) == 0
    assert "Acceptance by place in the draft, temperature 1" in capsys.readouterr().out
    other = write_tiny_folder(tmp_path / "other", seed=1)
    assert main([*command[:2], str(other), *command[3:]]) == 3
    assert "its fingerprint is" in capsys.readouterr().err
    assert main(command[:5]) == 2
    assert "Give --head and --data." in capsys.readouterr().err


def test_the_command(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    data = tmp_path / "prompts.txt"
    data.write_text("\n".join(f"Say {word}" for word in "abcdefghijklmnopqrst"))
    command = [
        "draft",
        "train",
        str(tiny_folder),
        "--out",
        str(tmp_path / "head"),
        "--data",
        str(data),
        "--threads",
        "1",
    ]
    assert main([*command, "--tokens", "500", "--epochs", "1"]) == 0
    shown = capsys.readouterr()
    assert "Acceptance by place in the draft, greedy" in shown.out
    assert "The head is in" in shown.err
    assert (tmp_path / "head" / "config.json").exists()
    assert main(command) == 2
    assert "go on with --resume" in capsys.readouterr().err.lower()
    assert main([*command[:3], "--tokens", "5"]) == 2
    assert "--out" in capsys.readouterr().err
    assert main([*command, "--steps-ahead", "4"]) == 2
    assert "--steps-ahead: must be from 1 to 3, not 4." in capsys.readouterr().err


def test_the_engine_drafts_with_it_and_says_the_same(trained: Path, tiny_folder: Path, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    texts = ["Say a", "Say b"]
    cache = tmp_path / "cache"
    with LLM(str(tiny_folder), num_threads=1, cache_dir=cache) as plain:
        expected = plain.generate(texts, params)
    head = {"method": "draft_head", "model": str(trained), "policy": "fixed", "num_speculative_tokens": 2}
    with LLM(str(tiny_folder), num_threads=1, cache_dir=cache, speculative_config=head) as drafting:
        found = drafting.generate(texts, params)
    assert [each.outputs[0].token_ids for each in found] == [each.outputs[0].token_ids for each in expected]
    stats = [each.outputs[0].stats for each in found]
    assert all(each is not None and each.num_draft_tokens > 20 for each in stats)


def test_a_head_to_begin_with(trained: Path, tiny_folder: Path, prompts: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=1, learning_rate=1e-12, weight_decay=0.0)
    train_draft_head(run(tiny_folder, tmp_path / "next", prompts, settings=settings, init=trained))
    before, after = read_draft_head(trained), read_draft_head(tmp_path / "next")
    for name, array in before.weights.items():
        np.testing.assert_allclose(after.weights[name], array, atol=1e-6)


def test_a_head_of_another_model_is_no_beginning(
    trained: Path, tiny_folder: Path, prompts: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other, ignore=shutil.ignore_patterns("training"))
    values = json.loads((other / "config.json").read_text())
    values["target"]["fingerprint"] = "0" * 32
    (other / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match="trained for"):
        train_draft_head(run(tiny_folder, tmp_path / "next", prompts, init=other))
    assert not (tmp_path / "next").exists()
