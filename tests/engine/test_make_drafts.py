from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream import LLM, SamplingParams
from slipstream.engine.cost_model import work_of
from slipstream.engine.draft_model import ModelDrafter
from slipstream.engine.make_drafts import _summary, _useless, _useless_model, break_even
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.row_drafter import DraftPool
from slipstream.errors import ConfigError
from slipstream.spec.answers import BYTES_PER_TOKEN as STORE_BYTES_PER_TOKEN
from slipstream.spec.step_times import StepTimes
from slipstream.spec.suffix import BYTES_PER_TOKEN

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
POOL = DraftPool(num_blocks=8, block_size=4, max_model_len=32, max_step_tokens=16)
SMALL = {"backend": "reference", "num_threads": 1, "num_blocks": 32, "max_num_seqs": 2}


def open_llm(folder: Path, cache: Path, **settings: object) -> LLM:
    return LLM(str(folder), cache_dir=cache, **(SMALL | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["cost", "threshold", "fixed"])
def test_an_llm_answers_the_same_with_drafts(tiny_folder: Path, tmp_path: Path, policy: str) -> None:
    prompts = ["one two one two one two one", "three"]
    with open_llm(tiny_folder, tmp_path) as llm:
        expected = llm.generate(prompts, PARAMS)
        assert llm.stats().num_draft_tokens == 0
    config = {"method": "ngram", "num_speculative_tokens": 3, "policy": policy, "prompt_lookup_min": 1}
    with open_llm(tiny_folder, tmp_path, speculative_config=config) as llm:
        answers = llm.generate(prompts, PARAMS)
        if policy == "fixed":
            assert llm.stats().num_draft_tokens > 0
    for ours, theirs in zip(answers, expected, strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        assert ours.outputs[0].logprobs == theirs.outputs[0].logprobs


@pytest.mark.usefixtures("steady_machine")
def test_step_times_are_a_decision_and_kept(tiny_folder: Path, tmp_path: Path) -> None:
    sources = []
    for settings in ({}, {}, {"num_speculative_tokens": 2}):
        with open_llm(tiny_folder, tmp_path, speculative="auto", **settings) as llm:
            decisions = {each.field: each for each in llm.decisions}
        assert (decisions["speculative"].effective, decisions["speculative"].overruled) == ("ngram", False)
        assert decisions["step_times"].why.startswith("1 x 1 token ")
        sources.append(decisions["step_times"].effective)
    assert sources == ["measured", "measured earlier", "measured"]
    files = list((tmp_path / "profiles").iterdir())
    assert len(files) == 2
    assert all(json.loads(path.read_text())["seconds"] for path in files)


def test_step_times_teach_the_cost_model(tiny_folder: Path, tmp_path: Path) -> None:
    with open_llm(tiny_folder, tmp_path, speculative="auto") as llm:
        assert llm._loaded.core._scheduler._cost_model.estimate(work_of([(9, 1)])) is not None
    with open_llm(tiny_folder, tmp_path) as llm:
        assert llm._loaded.core._scheduler._cost_model.estimate(work_of([(9, 1)])) is None


@pytest.mark.parametrize("policy", ["threshold", "fixed"])
def test_policies_without_cost_measure_nothing(tiny_folder: Path, tmp_path: Path, policy: str) -> None:
    with open_llm(tiny_folder, tmp_path, speculative="ngram", speculative_policy=policy) as llm:
        assert "step_times" not in {each.field for each in llm.decisions}
        assert llm.plan.warnings == ()
    assert not (tmp_path / "profiles").exists()


def test_settings_of_what_is_off_are_without_effect(tiny_folder: Path, tmp_path: Path) -> None:
    with open_llm(tiny_folder, tmp_path, num_speculative_tokens=3, prompt_lookup_min=1) as llm:
        [warning] = llm.plan.warnings
    assert warning == (
        "num_speculative_tokens, prompt_lookup_min: without effect, because speculation is off (speculative = off)."
    )


def test_a_method_that_is_not_there_is_refused_before_anything_is_loaded(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="such heads are not part of this build"):
        open_llm(tiny_folder, tmp_path, speculative_config={"method": "eagle"})


def test_drafts_that_can_never_pay_are_warned_of() -> None:
    linear = StepTimes({(1, n, 0): 0.01 * n for n in (1, 2, 3, 4)})
    [warning] = _useless(linear, 3, 0.02)
    assert warning.startswith("speculation is on but will not pay here: a step that verifies ")
    assert _useless(StepTimes({(1, n, 0): 0.01 + 0.005 * (n - 1) for n in (1, 2, 3, 4)}), 3, 0.02) == ()


def test_a_summary_names_the_ends_of_each_line() -> None:
    measured = {(1, 1, 256): 0.01, (1, 3, 256): 0.02, (2, 2, 256): 0.0125, (2, 6, 256): 0.04}
    short = "1 x 1 token 10.0 ms, 1 x 3 20.0 ms; 2 x 1 token 12.5 ms, 2 x 3 40.0 ms"
    assert _summary(measured) == short
    longer = {(1, 1, 1024): 0.03, (1, 3, 1024): 0.05, (2, 2, 1024): 0.06, (2, 6, 1024): 0.07}
    assert _summary(measured | longer) == short.replace("; ", "; 1 x 1 token behind 1024 30.0 ms, 1 x 3 50.0 ms; ")


def test_break_even_of_a_draft_model() -> None:
    flat = StepTimes({(1, n, 0): 1.0 for n in range(1, 6)})
    # One token that costs a quarter of a step must bring a quarter of a token; more of them are no better then.
    assert break_even(flat, lambda rows, n: 0.25 * n, 4) == pytest.approx(0.25, abs=1e-4)
    assert break_even(flat, lambda rows, n: 1.5 * n, 4) == 1.0
    # Where the first token alone does not pay, three together may: 1 + a + a^2 + a^3 = 2.5.
    assert break_even(flat, lambda rows, n: 1.2 if n < 3 else 1.5, 3) == pytest.approx(0.6914, abs=1e-3)


def test_a_draft_model_that_can_never_pay_is_warned_of() -> None:
    flat = StepTimes({(1, n, 0): 0.01 for n in range(1, 6)})
    slow, quick = (StepTimes({(1, 1, 0): seconds, (1, 2, 0): seconds}) for seconds in (0.02, 0.001))
    [warning] = _useless_model(flat, ModelDrafter(None, POOL, 9, slow), 3, 0.02)  # type: ignore[arg-type]
    assert warning.startswith("the draft model will not pay here: ")
    assert _useless_model(flat, ModelDrafter(None, POOL, 9, quick), 3, 0.02) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "counted"), [("off", 0), ("ngram", BYTES_PER_TOKEN), ("auto", BYTES_PER_TOKEN)])
def test_automata_are_part_of_the_memory_plan(tiny_folder: Path, tmp_path: Path, mode: str, counted: int) -> None:
    with open_llm(tiny_folder, tmp_path, speculative=mode) as llm:
        assert llm.plan.memory.bytes_per_token == counted


@pytest.mark.parametrize("mode", ["off", "ngram"])
def test_a_store_of_answers_is_planned_and_shown(tiny_folder: Path, tmp_path: Path, mode: str) -> None:
    config = {"method": mode, "policy": "fixed", "store_tokens": 1000}
    with open_llm(tiny_folder, tmp_path, speculative_config=config) as llm:
        [decision] = [each for each in llm.decisions if each.field == "speculative_store_tokens"]
        memory, warnings = llm.plan.memory, llm.plan.warnings
        first, again = (llm.generate(["one two"], PARAMS)[0].outputs[0].token_ids for _ in range(2))
        assert first == again
        held, accepted = llm.stats().num_store_tokens, llm.stats().num_store_accepted_tokens
    assert (decision.asked, decision.effective) == (1000, 1000)
    if mode == "off":
        assert warnings == (
            "speculative_policy, speculative_store_tokens: without effect, because speculation is off "
            "(speculative = off).",
        )
        assert (memory.store_bytes, held, accepted) == (0, 0, 0)
    else:
        assert memory.store_bytes == 1000 * STORE_BYTES_PER_TOKEN
        assert decision.why == "as set; at most 136.7 KiB of memory, planned for"
        assert "recent answers = 0.00 GiB of the workspace" in memory.formula()
        assert held > 24
        assert accepted > 0


@pytest.mark.parametrize(("seed", "judges"), [(None, True), (5, False)])
def test_rejection_is_for_engines_without_a_seed(
    tiny_folder: Path, tmp_path: Path, seed: int | None, judges: bool
) -> None:
    config = {"method": "ngram", "policy": "fixed", "verification": "rejection"}
    with open_llm(tiny_folder, tmp_path, speculative_config=config, seed=seed) as llm:
        assert llm.plan.options.speculative_verification == "rejection"
        [request] = llm._core._requests(GenerationRequest("a", (1, 2), SamplingParams()), 0.0)  # type: ignore[attr-defined]
        assert request.judged is judges
        [output] = llm.generate(["one two one two one"], SamplingParams(max_tokens=12, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 12
