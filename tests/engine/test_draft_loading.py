from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.tiny_folder import write_tiny_folder
from tokenizers import Tokenizer as RawTokenizer

from slipstream import LLM, SamplingParams
from slipstream.config.types import EngineOptions
from slipstream.engine.draft_loading import LEAST, fit_width, require_same_tokens
from slipstream.engine.loading import inspect_model
from slipstream.engine.warm_up import warm_up
from slipstream.errors import ConfigError, InsufficientMemoryError, ModelNotFoundError
from slipstream.text.from_folder import tokenizer_from_folder

pytestmark = pytest.mark.fast

SMALL = {"num_threads": 1, "num_blocks": 32, "max_num_seqs": 2, "max_model_len": 128}
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=1)
SEEDED = SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True, logprobs=1)
PROMPTS = ["one two one two one", "three"]


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, and a vocabulary that is padded further than the target's."""
    folder = tmp_path_factory.mktemp("draft")
    return write_tiny_folder(folder, seed=1, num_hidden_layers=1, vocab_size=288, max_position_embeddings=64)


def open_llm(folder: Path, cache: Path, **settings: object) -> LLM:
    return LLM(str(folder), cache_dir=cache, **(SMALL | settings))  # type: ignore[arg-type]


def answers(llm: LLM) -> list[tuple[object, object]]:
    outputs = llm.generate(PROMPTS, [GREEDY, SEEDED])
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_smaller_model_drafts(tiny_folder: Path, draft_folder: Path, tmp_path: Path, backend: str) -> None:
    with open_llm(tiny_folder, tmp_path, backend=backend) as llm:
        expected = answers(llm)
    config = {"method": "draft_model", "model": str(draft_folder), "policy": "fixed", "num_speculative_tokens": 3}
    with open_llm(tiny_folder, tmp_path, backend=backend, speculative_config=config) as llm:
        assert answers(llm) == expected
        assert llm.stats().num_draft_tokens > 20
        assert llm.plan.options.speculative == "draft_model"


@pytest.mark.usefixtures("steady_machine")
@pytest.mark.parametrize("mode", ["cost", "threshold"])
def test_with_ngrams_under_each_policy(tiny_folder: Path, draft_folder: Path, tmp_path: Path, mode: str) -> None:
    with open_llm(tiny_folder, tmp_path) as llm:
        expected = answers(llm)
    for _ in range(2):
        with open_llm(tiny_folder, tmp_path, speculative=str(draft_folder), speculative_policy=mode) as llm:
            assert answers(llm) == expected
            decisions = {each.field: each for each in llm.decisions}
            assert decisions["speculative"].effective == "ngram,draft_model"
            assert decisions["draft_model"].effective == str(draft_folder)
    if mode == "cost":
        assert decisions["draft_step_times"].effective == "measured earlier"
        assert len(list((tmp_path / "profiles").iterdir())) == 2


@pytest.mark.usefixtures("steady_machine")
def test_a_restart_takes_the_step_times_of_both_models_from_disk(tiny_folder: Path, tmp_path: Path) -> None:
    draft = write_tiny_folder(tmp_path / "draft", seed=1, num_hidden_layers=1)
    found, texts, files = [], [], []
    for start in range(3):
        if start == 2:
            os.utime(draft / "model.safetensors", ns=(0, 0))  # another file, for all that is known
        with open_llm(tiny_folder, tmp_path / "cache", speculative=str(draft)) as llm:
            warm_up(llm._core)  # type: ignore[attr-defined]
            texts.append(answers(llm))
            found.append({each.field: each for each in llm.decisions})
        files.append({path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "profiles").iterdir()})
    assert files[0] == files[1]
    assert [len(each) for each in files] == [2, 2, 3]
    assert texts[0] == texts[1] == texts[2]
    sources = [(each["step_times"].effective, each["draft_step_times"].effective) for each in found]
    assert sources == [("measured",) * 2, ("measured earlier",) * 2, ("measured earlier", "measured")]
    for field in ("step_times", "draft_step_times"):
        assert found[0][field].why == found[1][field].why
    assert found[0]["draft_break_even"] == found[1]["draft_break_even"]


def test_its_memory_is_planned(tiny_folder: Path, draft_folder: Path, tmp_path: Path) -> None:
    def plan(**settings: object):  # type: ignore[no-untyped-def]
        values = {"num_threads": 1, "max_num_seqs": 2, "backend": "reference", "num_blocks": 32} | settings
        return inspect_model(EngineOptions.from_flat(model=str(tiny_folder), **values), cache_dir=tmp_path)[0].memory

    alone, both = plan(), plan(speculative=str(draft_folder))
    assert both.draft_spec.num_layers == 1
    assert both.kv_bytes == alone.kv_bytes + 32 * both.draft_spec.bytes_per_block == alone.kv_bytes * 3 // 2
    assert both.weights > alone.weights
    assert both.workspace > alone.workspace
    assert "draft model or head = 2 (K, V) x 1 layers" in both.formula()
    with pytest.raises(InsufficientMemoryError, match="KV blocks were asked for"):
        plan(speculative=str(draft_folder), num_blocks=10**9)


def test_the_tokenizer_must_be_the_same(tiny_folder: Path, tmp_path: Path) -> None:
    other = write_tiny_folder(tmp_path / "other")
    path = other / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    path.write_text(json.dumps(data))
    first = min(vocab["A"], vocab["B"])
    with pytest.raises(ConfigError, match=rf"not the model's: token {first} is 'B', but 'A' there") as caught:
        open_llm(tiny_folder, tmp_path, speculative=str(other))
    assert str(caught.value).startswith("[speculation] draft_model: its tokenizer")


def test_more_tokens_are_let_pass_as_padding_only(tiny_folder: Path, tmp_path: Path) -> None:
    target = tokenizer_from_folder(tiny_folder)
    folders = []
    for name, token in (("padded", "[PAD259]"), ("more", "<|more|>")):
        folder = write_tiny_folder(tmp_path / name)
        raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
        raw.add_special_tokens([token])
        raw.save(str(folder / "tokenizer.json"))
        folders.append(tokenizer_from_folder(folder))
    require_same_tokens(target, folders[0], 260)
    require_same_tokens(folders[0], target, 259)
    with pytest.raises(ConfigError, match=r"token 259 is '<\|more\|>', but missing there"):
        require_same_tokens(target, folders[1], 260)
    with pytest.raises(ConfigError, match="its embedding has 200 rows, too few for token 200"):
        require_same_tokens(target, target, 200)


def test_a_model_that_is_not_there(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"draft_model: drafts cannot be made: .* Did you mean ngram\?"):
        open_llm(tiny_folder, tmp_path, speculative="ngrm")
    with pytest.raises(ModelNotFoundError, match="Name a smaller model, or choose off, auto or ngram"):
        open_llm(tiny_folder, tmp_path, speculative="./nowhere.gguf")


def test_a_model_that_does_not_draft_is_without_effect(tiny_folder: Path, draft_folder: Path, tmp_path: Path) -> None:
    with open_llm(tiny_folder, tmp_path, draft_model=str(draft_folder)) as llm:
        assert llm.plan.warnings == ("draft_model: without effect, because speculation is off (speculative = off).",)
        assert llm.plan.draft is None


def test_logits_are_cut_or_filled_up() -> None:
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert fit_width(lambda x: x, 3)(logits) is logits
    assert fit_width(lambda x: x, 2)(logits).tolist() == [[0.0, 1.0], [3.0, 4.0]]
    assert fit_width(lambda x: x, 5)(logits)[:, 3:].tolist() == [[float(LEAST)] * 2] * 2
