"""Automatic control of speculation on a stream whose domain changes, against the best fixed setting of each phase.

    python -m benchmarks.domain_shift MODEL [--spec-bench FILE] [--human-eval FILE] [--kinds NAME ...]
        [--per-phase 50] [--batch 1] [--lengths 0 1 2 3 5] [--draft auto] [--temperature 0] [--max-tokens 64]
        [--rounds 1] [--threads N] [--json] [--out DIR]

Each kind is a phase of `--per-phase` requests, one phase after the other, `--rounds` times over; where there are fewer
prompts they come again. Two engines answer every group of `--batch` requests: one that decides for itself (`cost`),
which sees the stream in order and keeps what it has learned, and one that verifies every draft as it is (`fixed`), once
for each of `--lengths` (0: without drafts). They run one right after the other, in an order that moves on by one with
every group.

The best fixed setting of a phase is the one with the least TPOT in it (the geometric mean over the groups), chosen
afterwards: its luck counts for it. Reported is the share of its speed that automatic control reached, with Student's
95 % interval of the logarithms over the groups, and the geometric mean over the phases. All settings must give the same
tokens.

A quick look: `--per-phase 3 --max-tokens 16 --kinds code-edit --lengths 0 2`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.program import run_program
from benchmarks.speculation import OFF, ON, ROOT, Answer, Prompt, answer, chosen_kinds, tokenise
from slipstream import SamplingParams
from slipstream.bench.stats import Interval, t_interval
from slipstream.config.types import EngineOptions
from slipstream.engine.core import EngineCore
from slipstream.engine.loading import LoadedEngine, load_engine
from slipstream.engine.protocol import RequestSpeculation

AUTO = "auto"


@dataclass(frozen=True)
class Group:
    """Seconds per output token by setting ("auto", "0", "1", ...), the mean over the group's requests."""

    tpot: Mapping[str, float]
    same: bool  # all settings gave the same tokens


@dataclass(frozen=True)
class Phase:
    """`share`: of the best fixed setting's speed, reached by automatic control."""

    number: int
    kind: str
    groups: int
    best: str
    tpot: dict[str, float]
    share: float
    low: float
    high: float
    firm: bool
    different: int  # groups whose tokens differ: must be 0


def summarise(number: int, kind: str, groups: Sequence[Group]) -> Phase:
    """groups: at least one."""
    tpot = {name: statistics.geometric_mean(group.tpot[name] for group in groups) for name in groups[0].tpot}
    best = min((name for name in tpot if name != AUTO), key=tpot.__getitem__)
    share = _exp(t_interval([math.log(group.tpot[best] / group.tpot[AUTO]) for group in groups]))
    different = sum(not group.same for group in groups)
    return Phase(number, kind, len(groups), best, tpot, share.value, share.low, share.high, share.firm, different)


def overall(phases: Sequence[Phase]) -> Interval | None:
    return _exp(t_interval([math.log(phase.share) for phase in phases])) if phases else None


def _exp(found: Interval | None) -> Interval:
    if found is None:
        raise ValueError("an interval of nothing")
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.firm)


def measure_group(
    auto: EngineCore,
    fixed: EngineCore,
    name: str,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    lengths: Sequence[int],
    turn: int,
) -> Group | None:
    """None if no answer has a second token."""
    settings = [(AUTO, auto, ON)]
    settings += [(str(n), fixed, RequestSpeculation(num_tokens=n) if n else OFF) for n in lengths]
    turn %= len(settings)
    found: dict[str, tuple[Answer, ...]] = {}
    for label, core, wish in (*settings[turn:], *settings[:turn]):
        found[label] = answer(core, f"{name}-{label}", prompts, params, wish)
    tpot: dict[str, float] = {}
    for label, answers in found.items():
        known = [each.stats.tpot for each in answers if each.stats.tpot is not None]
        if not known:
            return None
        tpot[label] = statistics.fmean(known)
    return Group(tpot, len({tuple(each.token_ids for each in answers) for answers in found.values()}) == 1)


def measure(
    auto: LoadedEngine, fixed: LoadedEngine, kinds: Mapping[str, Sequence[Prompt]], args: argparse.Namespace
) -> list[Phase]:
    params = SamplingParams(temperature=args.temperature, seed=1, max_tokens=args.max_tokens)
    room = min(each.plan.options.max_model_len for each in (auto, fixed)) - args.max_tokens
    prompts = {kind: tokenise(auto, texts, room) for kind, texts in kinds.items()}
    phases, turn = [], 0
    for number, kind in enumerate([kind for _ in range(args.rounds) for kind in prompts if prompts[kind]]):
        groups = []
        for start in range(0, args.per_phase, args.batch):
            chosen = [prompts[kind][index % len(prompts[kind])] for index in range(start, start + args.batch)]
            group = measure_group(auto.core, fixed.core, f"{number}-{start}", chosen, params, args.lengths, turn)
            turn += 1
            if group is not None:
                groups.append(group)
        if groups:
            phases.append(summarise(number, kind, groups))
    return phases


def table(phases: Sequence[Phase]) -> str:
    names = list(phases[0].tpot) if phases else []
    lines = [
        f"{'phase':<20} {'groups':>6} {'best':>4} {'share':>6}  {'95 %':<13} " + " ".join(f"{n:>7}" for n in names)
    ]
    for phase in phases:
        interval = f"{phase.low:.2f}-{phase.high:.2f}" if phase.firm else "-"
        lines.append(
            f"{f'{phase.number} {phase.kind}':<20} {phase.groups:>6} {phase.best:>4} {phase.share:>6.3f}  "
            + f"{interval:<13} "
            + " ".join(f"{1000 * phase.tpot[name]:>7.2f}" for name in names)
            + (f"  {phase.different} GROUPS DIFFER" if phase.different else "")
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--spec-bench", type=Path, metavar="FILE")
    parser.add_argument("--human-eval", type=Path, metavar="FILE")
    parser.add_argument("--kinds", nargs="+", help="the phases, in this order; by default all there are")
    parser.add_argument("--per-phase", type=int, default=50, help="requests")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 1, 2, 3, 5], help="fixed lengths of drafts")
    parser.add_argument("--draft", default="auto", help="as --speculative of the verbs")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "domain_shift", help="folder for the JSON")
    args = parser.parse_args()
    kinds = chosen_kinds(args.kinds, args.spec_bench, args.human_eval)
    engines = []
    for policy in ("cost", "fixed"):
        options = EngineOptions.from_flat(
            model=args.model,
            enable_prefix_caching=False,
            max_num_seqs=args.batch,
            speculative=args.draft,
            speculative_policy=policy,
            num_speculative_tokens=max(1, *args.lengths),
            num_threads=args.threads,
        )
        engines.append(load_engine(options))
    auto, fixed = engines
    phases = measure(auto, fixed, kinds, args)
    mean = overall(phases)
    result = {
        "model": args.model,
        "settings": {each.field: each.effective for each in auto.plan.decisions},
        "phases": [asdict(phase) for phase in phases],
        "geometric_mean": None if mean is None else [mean.value, mean.low, mean.high],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "domain_shift.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result))
        return
    print(table(phases))
    if mean is not None:
        print(
            f"geometric mean over the phases: {mean.value:.3f}"
            + (f" ({mean.low:.3f}-{mean.high:.3f})" if mean.firm else "")
        )


if __name__ == "__main__":
    run_program(main)
