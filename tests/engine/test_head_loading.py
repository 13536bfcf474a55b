"""A draft head beside a model in a folder: checked, planned, loaded, and never another token."""

from __future__ import annotations

from pathlib import Path

import pytest
from head_folder import write_head
from tests.tiny_folder import write_tiny_folder

from slipstream import LLM, SamplingParams
from slipstream.config.types import EngineOptions
from slipstream.engine.loading import inspect_model
from slipstream.errors import ConfigError, ModelNotFoundError, UnsupportedModelError

pytestmark = pytest.mark.fast

SMALL = {"num_threads": 1, "num_blocks": 32, "max_num_seqs": 2, "max_model_len": 128}
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=1)
SEEDED = SamplingParams(temperature=1.0, seed=4, max_tokens=20, ignore_eos=True, logprobs=1)
PROMPTS = ["one two one two one", "three"]


@pytest.fixture(scope="module")
def head_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("head"), tiny_folder)


def open_llm(folder: Path, cache: Path, **settings: object) -> LLM:
    return LLM(str(folder), cache_dir=cache, **(SMALL | settings))  # type: ignore[arg-type]


def answers(llm: LLM) -> list[tuple[object, object]]:
    outputs = llm.generate(PROMPTS, [GREEDY, SEEDED])
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_head_drafts(tiny_folder: Path, head_folder: Path, tmp_path: Path, backend: str) -> None:
    with open_llm(tiny_folder, tmp_path, backend=backend) as llm:
        expected = answers(llm)
    config = {"method": "draft_head", "model": str(head_folder), "policy": "fixed", "num_speculative_tokens": 3}
    with open_llm(tiny_folder, tmp_path, backend=backend, speculative_config=config) as llm:
        assert answers(llm) == expected
        assert llm.stats().num_draft_tokens > 20
        assert llm.plan.options.speculative == "draft_head"


@pytest.mark.usefixtures("steady_machine")
def test_with_ngrams_and_measured_costs(tiny_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    with open_llm(tiny_folder, tmp_path) as llm:
        expected = answers(llm)
    for _ in range(2):
        with open_llm(tiny_folder, tmp_path, speculative="auto", draft_head=str(head_folder)) as llm:
            assert answers(llm) == expected
            decisions = {each.field: each for each in llm.decisions}
            assert decisions["speculative"].effective == "ngram,draft_head"
            assert decisions["draft_head"].effective == str(head_folder)
            assert 0.0 < float(str(decisions["draft_break_even"].effective)) <= 1.0
    assert decisions["draft_step_times"].effective == "measured earlier"
    assert len(list((tmp_path / "profiles").iterdir())) == 2


def test_a_quantised_model_under_float16_kv(tiny_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    settings = {"backend": "cpu", "kv_dtype": "float16", "max_num_batched_tokens": 8}
    with open_llm(tiny_folder, tmp_path, **settings) as llm:
        expected = answers(llm)
    head = {"speculative": "draft_head", "draft_head": str(head_folder), "speculative_policy": "fixed"}
    with open_llm(tiny_folder, tmp_path, **settings, **head) as llm:
        assert answers(llm) == expected
        assert llm.stats().num_draft_tokens > 0


def test_its_memory_is_planned(tiny_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    def plan(**settings: object):  # type: ignore[no-untyped-def]
        values = {"num_threads": 1, "max_num_seqs": 2, "backend": "reference", "num_blocks": 32} | settings
        return inspect_model(EngineOptions.from_flat(model=str(tiny_folder), **values), cache_dir=tmp_path)[0].memory

    alone, both = plan(), plan(speculative="draft_head", draft_head=str(head_folder))
    assert both.draft_spec.num_layers == 1
    assert both.kv_bytes == alone.kv_bytes + 32 * both.draft_spec.bytes_per_block
    assert both.weights > alone.weights
    assert both.workspace > alone.workspace


def test_a_head_for_another_model_is_refused(tiny_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    other = write_tiny_folder(tmp_path / "other", seed=3)
    with pytest.raises(UnsupportedModelError, match="this draft head was trained for tiny: its fingerprint is"):
        open_llm(other, tmp_path, speculative="draft_head", draft_head=str(head_folder))
    with pytest.raises(ModelNotFoundError, match=r"is no draft head: it has no config\.json"):
        open_llm(tiny_folder, tmp_path, speculative="draft_head", draft_head=str(tmp_path))


def test_a_head_is_no_smaller_model(tiny_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a draft head, not a model\. Name it with draft_head\."):
        open_llm(tiny_folder, tmp_path, speculative=str(head_folder))


def test_a_head_size_that_the_backend_has_not(tiny_folder: Path, tmp_path: Path) -> None:
    folder = write_head(tmp_path / "head", tiny_folder, head_dim=6)
    with pytest.raises(ConfigError, match=r"backend cpu cannot run .*head sizes that are multiples of 8"):
        open_llm(tiny_folder, tmp_path, backend="cpu", speculative="draft_head", draft_head=str(folder))
    with open_llm(tiny_folder, tmp_path, backend="reference", speculative="draft_head", draft_head=str(folder)) as llm:
        assert llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids


def test_a_head_that_does_not_draft_is_without_effect(tiny_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    with open_llm(tiny_folder, tmp_path, draft_head=str(head_folder)) as llm:
        assert llm.plan.warnings == ("draft_head: without effect, because speculation is off (speculative = off).",)
        assert llm.plan.head is None
