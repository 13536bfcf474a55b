"""From settings to what drafts, with the step times that its cost is judged by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.config.decision import Decision
from slipstream.config.resolve import EffectiveOptions
from slipstream.config.speculation import SpeculationOptions
from slipstream.engine.asked_model import MODEL, SteppingDrafter
from slipstream.engine.draft_loading import LoadedDraft
from slipstream.engine.drafts import DraftProposer, NoDrafts
from slipstream.engine.head_loading import LoadedHead
from slipstream.engine.recent_answers import RecentAnswers
from slipstream.engine.runner import Runner
from slipstream.engine.speculation import FORCED, FORCED_CHANCE, SpeculativeDrafts
from slipstream.engine.step_profile import (
    ProfileSize,
    StepSeconds,
    load_or_measure,
    measure_steps,
    one_row,
    relative_speed,
)
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.answers import SHORTEST, AnswerStore
from slipstream.spec.controller import Controller, ControlOptions
from slipstream.spec.learned_cost import DraftCost
from slipstream.spec.ngram import NgramOptions, NgramProposer
from slipstream.spec.step_times import StepTimes
from slipstream.version import installed_version


@dataclass(frozen=True, slots=True)
class Drafting:
    proposer: DraftProposer
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()
    measured: StepSeconds = field(default_factory=dict)  # steps of the model, if the policy needed them


def make_drafts(
    options: EffectiveOptions,
    runner: Runner,
    grammars: GrammarStates,
    *,
    num_blocks: int,
    folder: Path,
    model_files: Iterable[Path],
    cpu_model: str,
    draft: LoadedDraft | LoadedHead | None = None,
) -> Drafting:
    """`runner`'s pool must hold nothing yet: the cost policy measures steps in it. folder: where their times are kept.
    draft: the smaller model or the head, if one drafts; its steps are measured likewise.

    Raises EngineError if the model cannot compute a step.
    """
    if options.speculative == "off":
        return Drafting(NoDrafts(), warnings=_without_effect(options))
    control = ControlOptions(policy=options.speculative_policy, num_tokens=options.num_speculative_tokens)
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()
    steps: StepSeconds = {}
    times: StepTimes | None = None
    draft_times: StepTimes | None = None
    if control.policy == "cost":
        size = ProfileSize(
            max_rows=options.max_num_seqs,
            max_tokens=1 + control.num_tokens,
            block_size=options.block_size,
            num_blocks=num_blocks,
            max_model_len=options.max_model_len,
            max_step_tokens=options.max_num_batched_tokens,
        )
        facts = _facts(options, size, model_files, cpu_model)
        steps, source = load_or_measure(
            folder, facts, lambda: measure_steps(runner, size), lambda known: relative_speed(runner, size, known)
        )
        times = StepTimes(steps)
        decisions = (Decision("step_times", None, source, _summary(steps)),)
        warnings = _useless(times, control.num_tokens, control.margin)
        if draft is not None:
            drafts: Runner = draft.runner
            own_size, target = draft.size, one_row(runner, size)
            facts = _facts(options, own_size, draft.files, cpu_model)
            measured, source = load_or_measure(
                folder,
                facts,
                lambda: measure_steps(drafts, own_size, before=target),
                lambda known: relative_speed(drafts, own_size, known, before=target),
            )
            draft_times = StepTimes(measured)
            decisions = (*decisions, Decision("draft_step_times", None, source, _summary(measured)))
    model: SteppingDrafter | None = None if draft is None else draft.drafter(draft_times)
    if model is not None and times is not None:
        warnings = warnings or _useless_model(times, model, control.num_tokens, control.margin)
        least = break_even(times, model.cost, control.num_tokens)
        why = "the chance per drafted token from which on it pays for one request alone; 1: never"
        decisions = (*decisions, Decision("draft_break_even", None, round(least, 2), why))
    proposer = None
    if options.speculative not in ("draft_model", "draft_head"):
        proposer = NgramProposer(NgramOptions(options.prompt_lookup_min, options.prompt_lookup_max))
    controller = Controller(control, times, {FORCED: FORCED_CHANCE, **({} if model is None else {MODEL: model.chance})})
    answers = None
    if options.speculative_store_tokens:
        shortest = max(SHORTEST, options.prompt_lookup_min)
        answers = RecentAnswers(AnswerStore(options.speculative_store_tokens, shortest, options.prompt_lookup_max))
    return Drafting(SpeculativeDrafts(proposer, controller, grammars, model, answers), decisions, warnings, steps)


def _facts(
    options: EffectiveOptions, size: ProfileSize, model_files: Iterable[Path], cpu_model: str
) -> Mapping[str, object]:
    """All that step times depend on, and which of them are measured."""
    files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in model_files]
    return {
        "files": files,
        "backend": options.backend,
        "threads": options.num_threads,
        "kv_dtype": options.kv_dtype,
        "cpu": cpu_model,
        "version": installed_version(),
        "rows": size.max_rows,
        "tokens": size.max_tokens,
        "step": min(size.max_step_tokens, 1 << 12),
        "block_size": size.block_size,
        "small_pool": min(size.num_blocks * size.block_size, 1 << 14),
        "max_model_len": min(size.max_model_len, 1 << 13),
    }


def _summary(measured: StepSeconds) -> str:
    """The ends of every number of rows' line, and those of one row at the longest context."""
    shortest = {rows: min(c for r, _, c in measured if r == rows) for rows, _, _ in measured}
    longest = max(context for rows, _, context in measured if rows == 1)
    parts = []
    for rows, context in sorted({*shortest.items(), (1, longest)}):
        line = sorted((t, seconds) for (r, t, c), seconds in measured.items() if (r, c) == (rows, context))
        (first, low), (last, high) = line[0], line[-1]
        behind = "" if context == shortest[rows] else f" behind {context}"
        one = f"{rows} x {first // rows} token{behind} {1000 * low:.1f} ms"
        parts.append(f"{one}, {rows} x {last // rows} {1000 * high:.1f} ms")
    return "; ".join(parts)


def _useless(times: StepTimes, num_tokens: int, margin: float) -> tuple[str, ...]:
    """Of drafts that would not pay if every token of them were right, one request at a time."""
    gain, best = max(((1 + n) * times(1, 1) / times(1, 1 + n), n) for n in range(1, num_tokens + 1))
    if gain > 1.0 + margin:
        return ()
    return (
        f"speculation is on but will not pay here: a step that verifies {best} drafted "
        f"token{'s' if best > 1 else ''} takes {times(1, 1 + best) / times(1, 1):.2f} times as long as one without.",
    )


def break_even(times: StepTimes, cost: DraftCost, num_tokens: int) -> float:
    """The chance per token, 0 to 1, at which drafts of the best length bring one request as many tokens per second as
    it has without; 1 if none do. The chances of all positions are taken for equal."""
    steps = [(times(1, 1 + n) + cost(1, n)) / times(1, 1) for n in range(1, num_tokens + 1)]
    low, high = 0.0, 1.0
    for _ in range(20):
        chance = (low + high) / 2
        expected, power, gain = 1.0, 1.0, 0.0
        for step in steps:
            power *= chance
            expected += power
            gain = max(gain, expected / step)
        low, high = (low, chance) if gain >= 1.0 else (chance, high)
    return high


def _useless_model(times: StepTimes, model: SteppingDrafter, num_tokens: int, margin: float) -> tuple[str, ...]:
    """Of a draft model or head whose drafts would not pay if every token of them were right, one request at a time."""
    plain = times(1, 1)
    gain, best = max(((1 + n) * plain / (times(1, 1 + n) + model.cost(1, n)), n) for n in range(1, num_tokens + 1))
    if gain > 1.0 + margin:
        return ()
    took = (times(1, 1 + best) + model.cost(1, best)) / plain
    return (
        f"the {model.name.replace('_', ' ')} will not pay here: {best} drafted token{'s' if best > 1 else ''} and the "
        f"step that verifies {'them' if best > 1 else 'it'} take {took:.2f} times as long as a step without.",
    )


def _without_effect(options: EffectiveOptions) -> tuple[str, ...]:
    default = SpeculationOptions()
    names = [
        name
        for name in (
            "draft_model",
            "draft_head",
            "num_speculative_tokens",
            "speculative_policy",
            "speculative_verification",
            "prompt_lookup_min",
            "prompt_lookup_max",
            "speculative_store_tokens",
        )
        if getattr(options, name) != getattr(default, name)
    ]
    if not names:
        return ()
    return (f"{', '.join(names)}: without effect, because speculation is off (speculative = off).",)
