"""Real models with drafts give their tokens and log-probabilities without, for a text that repeats its prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from head_folder import write_head

from slipstream import LLM, SamplingParams

pytestmark = pytest.mark.model

FILE = """def total(items, tax_rate):
    result = 0.0
    for item in items:
        price = item["price"]
        quantity = item["quantity"]
        result += price * quantity
    return round(result * (1.0 + tax_rate), 2)
"""
COPY = f"{FILE}\n# the same again\n{FILE[:80]}"
CALM = SamplingParams(temperature=0.0, max_tokens=64, logprobs=2)
LIVELY = SamplingParams(temperature=1.0, top_p=0.95, seed=11, max_tokens=64, logprobs=2, repetition_penalty=1.05)


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_a_copy_is_the_same_with_drafts(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path: Path = request.getfixturevalue(name)
    answers = {}
    for mode in ("off", "ngram"):
        with LLM(
            str(path),
            cache_dir=tmp_path,
            num_threads=1,
            num_blocks=64,
            max_num_seqs=2,
            speculative=mode,
            speculative_policy="fixed" if mode == "ngram" else "cost",
        ) as llm:
            answers[mode] = llm.generate([COPY, COPY], [CALM, LIVELY])
            stats = llm.stats()
    for ours, expected in zip(answers["ngram"], answers["off"], strict=True):
        assert ours.outputs[0].token_ids == expected.outputs[0].token_ids
        assert ours.outputs[0].logprobs == expected.outputs[0].logprobs
    calm = answers["ngram"][0].outputs[0].stats
    assert calm is not None
    assert calm.num_accepted_tokens >= 10
    assert stats.num_accepted_tokens == sum(stats.accepted_per_position)


def test_a_model_drafts_for_itself_and_is_always_right(smollm2_path: Path, tmp_path: Path) -> None:
    """Its weights are mapped twice and its KV is kept in two pools; greedy and seeded draws agree in every token."""
    answers = {}
    for mode in ("off", "draft_model"):
        with LLM(
            str(smollm2_path),
            cache_dir=tmp_path,
            num_threads=1,
            num_blocks=64,
            max_num_seqs=2,
            speculative=mode,
            draft_model=None if mode == "off" else str(smollm2_path),
            speculative_policy="cost" if mode == "off" else "fixed",
        ) as llm:
            answers[mode] = llm.generate([COPY, COPY], [CALM, LIVELY])
            stats = llm.stats()
    for ours, expected in zip(answers["draft_model"], answers["off"], strict=True):
        assert ours.outputs[0].token_ids == expected.outputs[0].token_ids
        assert ours.outputs[0].logprobs == expected.outputs[0].logprobs
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 80


@pytest.mark.parametrize(("name", "head_dim"), [("smollm2_path", 64), ("gemma3_path", 128)])
def test_a_head_of_any_quality_changes_nothing(
    name: str, head_dim: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Over quantised embeddings, scaled ones among them, and norms behind the layers of the target."""
    path: Path = request.getfixturevalue(name)
    head = write_head(tmp_path / "head", path, head_dim=head_dim, draft_vocab=4096)
    answers = {}
    for mode in ("off", "draft_head"):
        with LLM(
            str(path),
            cache_dir=tmp_path,
            num_threads=1,
            num_blocks=64,
            max_num_seqs=2,
            speculative=mode,
            draft_head=None if mode == "off" else str(head),
            speculative_policy="cost" if mode == "off" else "fixed",
        ) as llm:
            answers[mode] = llm.generate([COPY, COPY], [CALM, LIVELY])
            stats = llm.stats()
    for ours, expected in zip(answers["draft_head"], answers["off"], strict=True):
        assert ours.outputs[0].token_ids == expected.outputs[0].token_ids
        assert ours.outputs[0].logprobs == expected.outputs[0].logprobs
    assert stats.num_draft_tokens > 80
