"""What trees of n-gram drafts could gain over chains: candidates counted on real answers, steps timed by the profile.

    python -m benchmarks.tree_gain MODEL [--spec-bench FILE] [--human-eval FILE] [--kinds NAME ...] [--prompts 20]
        [--max-tokens 128] [--num-tokens 5] [--batch 1 4 16] [--steps PROFILE] [--threads N] [--json]

Prompts are answered greedily without drafts. Then every position of every answer is looked at again with what an
n-gram drafter could have known there: its candidates, which differ in their first token, longest match first. Counted
is how often the first one's token is right, and the second's and third's where those before are wrong.

A chain verifies the first n tokens of the first candidate; a tree the first n of it and the first m of the second,
which share the step's tokens: n + m is at most `--num-tokens`, and m may be 0, so that every chain is a tree. By kind
of evidence (the lengths of both matches, in powers of two) that shape is chosen which maximises tokens per second at
the machine's measured step times, and then the answers are walked through with it. A tree's step is taken to cost as
much as a chain's with as many tokens: its mask and the KV that moves afterwards are free, which flatters trees. Shapes
are chosen on one half of the answers and judged on the other, and the reverse; `hindsight` chooses and judges on all,
and looks for better trees from the best chains on, so that it is never below 0.
In a batch all rows are taken to draft alike.

Step times are those that an engine measures when it starts, or with `--steps` those of a file that one has kept
(`profiles/` in the cache folder), which may come from a quieter hour.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.program import run_program
from benchmarks.speculation import OFF, Prompt, answer, chosen_kinds, tokenise
from slipstream import SamplingParams
from slipstream.config.types import EngineOptions
from slipstream.engine.loading import LoadedEngine, load_engine
from slipstream.spec.step_times import StepTimes

CANDIDATES = 3
LONGEST = 32  # tokens of a match; a longer one is no better evidence
CONTEXT = 256  # tokens before a step's rows, for its time

Evidence = tuple[int, int]  # of the first and the second candidate; 0: there is none
Shape = tuple[int, int]  # tokens of the first and of the second candidate
NO_DRAFT: Shape = (0, 0)
Seconds = Callable[[int], float]  # of a step per row, by the row's drafted tokens


@dataclass(frozen=True)
class Position:
    """`right`: how many tokens of each candidate are what came."""

    evidence: Evidence
    right: tuple[int, ...]
    left: int  # tokens of the answer from here on

    def kept(self, shape: Shape) -> int:
        """Tokens that a step of this shape brings, its own included."""
        right = max((min(n, right) for n, right in zip(shape, self.right, strict=False)), default=0)
        return min(right + 1, self.left)


@dataclass(frozen=True)
class Counts:
    """Of the positions of all answers."""

    positions: int
    drafted: int  # with a candidate
    first: int  # the first one's token was right
    with_second: int  # it was wrong, and there was another candidate
    second: int
    with_third: int
    third: int


@dataclass(frozen=True)
class Row:
    """Rates relative to decoding without drafts."""

    kind: str
    batch: int
    chain: float
    tree: float
    gain: float  # of the tree over the chain, less 1
    hindsight: float
    second_tokens: float  # of the tree's drafted tokens the second candidate's share


def positions(prompt: Sequence[int], output: Sequence[int], longest: int) -> list[Position]:
    """From the second token of the answer on: the first comes with the prompt."""
    text, found = Text(prompt), []
    for at in range(1, len(output)):
        text.append(output[at - 1])
        drafts = text.candidates(longest)
        kinds = [length.bit_length() for length, _ in drafts] + [0, 0]
        right = tuple(_common(tokens, output[at : at + longest]) for _, tokens in drafts)
        found.append(Position((kinds[0], kinds[1]), right, len(output) - at))
    return found


class Text:
    """A sequence and where each pair of tokens occurred in it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, int], list[int]] = defaultdict(list)  # of what is followed by something
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        if len(self._tokens) > 1:
            self._ends[self._tokens[-2], self._tokens[-1]].append(len(self._tokens) - 1)
        self._tokens.append(token)

    def candidates(self, count: int) -> list[tuple[int, list[int]]]:
        """(length of the match, `count` tokens), different in the first: for each the longest match, of those the
        latest. Longest match first."""
        tokens = self._tokens
        best: dict[int, tuple[int, int]] = {}
        for end in self._ends.get((tokens[-2], tokens[-1]), ()) if len(tokens) > 1 else ():
            length = 2
            while length < min(LONGEST, end + 1) and tokens[end - length] == tokens[-1 - length]:
                length += 1
            best[tokens[end + 1]] = max(best.get(tokens[end + 1], (0, 0)), (length, end))
        chosen = sorted(best.values(), reverse=True)[:CANDIDATES]
        return [
            (length, [tokens[end + 1 + i % (len(tokens) - 1 - end)] for i in range(count)]) for length, end in chosen
        ]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def count(answers: Sequence[Sequence[Position]]) -> Counts:
    every = [position for each in answers for position in each]
    wrong = [each.right for each in every if each.right and not each.right[0]]
    second = [right for right in wrong if len(right) > 1]
    third = [right for right in second if len(right) > 2 and not right[1]]
    return Counts(
        len(every),
        sum(bool(each.right) for each in every),
        sum(bool(each.right and each.right[0]) for each in every),
        len(second),
        sum(right[1] > 0 for right in second),
        len(third),
        sum(right[2] > 0 for right in third),
    )


def shapes(longest: int, tree: bool) -> list[Shape]:
    return [(n, m) for n in range(longest + 1) for m in range(longest + 1 - n if tree and n else 1)]


def choose(
    answers: Sequence[Sequence[Position]], seconds: Seconds, options: Sequence[Shape], rounds: int = 20
) -> dict[Evidence, Shape]:
    """The shape for each kind of evidence that maximises the rate of the walk over all answers (Dinkelbach's method:
    the best of all choices at the rate so far, until that rises no more)."""
    grouped: dict[Evidence, list[Position]] = defaultdict(list)
    for each in answers:
        for position in each:
            grouped[position.evidence].append(position)
    means = {
        kind: {shape: sum(p.kept(shape) for p in group) / len(group) for shape in options}
        for kind, group in grouped.items()
    }
    best: dict[Evidence, Shape] = {}
    rate = _rate(answers, seconds, best)
    for _ in range(rounds):
        chosen = {
            kind: max(options, key=lambda shape, of=of: of[shape] - rate * seconds(sum(shape)))  # type: ignore[misc]
            for kind, of in means.items()
        }
        now = _rate(answers, seconds, chosen)
        if now <= rate:
            break
        best, rate = chosen, now
    return best


def climb(
    answers: Sequence[Sequence[Position]],
    seconds: Seconds,
    options: Sequence[Shape],
    start: Mapping[Evidence, Shape],
) -> dict[Evidence, Shape]:
    """From a choice to one at least as quick: for one kind of evidence after the other, the commonest first, the
    shape with which the walk is quickest."""
    kinds = Counter(position.evidence for each in answers for position in each if position.right)
    best, rate = dict(start), _rate(answers, seconds, start)
    for kind, _ in kinds.most_common():
        for shape in options:
            now = _rate(answers, seconds, best | {kind: shape})
            if now > rate:
                best, rate = best | {kind: shape}, now
    return best


@dataclass(frozen=True)
class Walk:
    tokens: int
    seconds: float
    drafted: int
    second: int  # of the drafted tokens, those of second candidates

    def __add__(self, other: Walk) -> Walk:
        return Walk(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.drafted + other.drafted,
            self.second + other.second,
        )

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def walk(answers: Sequence[Sequence[Position]], seconds: Seconds, chosen: Mapping[Evidence, Shape]) -> Walk:
    """Decode the answers again, step by step."""
    tokens, time, drafted, second = 0, 0.0, 0, 0
    for each in answers:
        at = 0
        while at < len(each):
            shape = chosen.get(each[at].evidence, NO_DRAFT)
            step = each[at].kept(shape)
            time += seconds(sum(shape))
            drafted, second = drafted + sum(shape), second + shape[1]
            tokens, at = tokens + step, at + step
    return Walk(tokens, time, drafted, second)


def _rate(answers: Sequence[Sequence[Position]], seconds: Seconds, chosen: Mapping[Evidence, Shape]) -> float:
    return walk(answers, seconds, chosen).rate


def compare(kind: str, answers: Sequence[Sequence[Position]], seconds: Seconds, batch: int, longest: int) -> Row:
    """At least two answers, none of them empty."""
    plain = walk(answers, seconds, {}).rate
    halves = (answers[::2], answers[1::2])
    found = []
    for options in (shapes(longest, tree=False), shapes(longest, tree=True)):
        learned = [choose(half, seconds, options) for half in halves]
        found.append(walk(halves[1], seconds, learned[0]) + walk(halves[0], seconds, learned[1]))
    chain, tree = found
    chains = shapes(longest, tree=False)
    best_chain = climb(answers, seconds, chains, choose(answers, seconds, chains))
    best_tree = climb(answers, seconds, shapes(longest, tree=True), best_chain)
    return Row(
        kind,
        batch,
        chain.rate / plain,
        tree.rate / plain,
        tree.rate / chain.rate - 1,
        _rate(answers, seconds, best_tree) / _rate(answers, seconds, best_chain) - 1,
        tree.second / max(1, tree.drafted),
    )


def decode(loaded: LoadedEngine, kind: str, texts: Sequence[Prompt], args: argparse.Namespace) -> list[list[Position]]:
    prompts = tokenise(loaded, texts, loaded.plan.options.max_model_len - args.max_tokens)[: args.prompts]
    params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
    size = loaded.plan.options.max_num_seqs
    found: list[list[Position]] = []
    for start in range(0, len(prompts), size):
        group = prompts[start : start + size]
        for prompt, each in zip(group, answer(loaded.core, f"{kind}-{start}", group, params, OFF), strict=True):
            found.append(positions(prompt, each.token_ids, args.num_tokens))
    return [each for each in found if each]


def step_times(loaded: LoadedEngine, kept: Path | None) -> StepTimes:
    if kept is None:
        times: StepTimes = loaded.core._scheduler.proposer._controller._times  # type: ignore[attr-defined]
        return times
    measured = json.loads(kept.read_text(encoding="utf-8"))["seconds"]
    return StepTimes({(rows, tokens, context): seconds for rows, tokens, context, seconds in measured})


def report(counts: Mapping[str, Counts], rows: Sequence[Row]) -> str:
    lines = [
        f"{'kind':<16} {'tokens':>6} {'found':>6} {'1st right':>9} {'2nd, else':>9} {'3rd, else':>9} {'2nd of all':>10}"
    ]
    for kind, c in counts.items():
        shares = (
            (c.drafted, c.positions),
            (c.first, c.drafted),
            (c.second, c.with_second),
            (c.third, c.with_third),
            (c.second, c.positions),
        )
        found, *right = (f"{100 * a / b:.1f} %" if b else "-" for a, b in shares)
        lines.append(f"{kind:<16} {c.positions:>6} {found:>6} " + " ".join(f"{each:>9}" for each in right))
    lines.append("")
    lines.append(f"{'kind':<16} {'batch':>5} {'chain':>6} {'tree':>6} {'gain':>7} {'hindsight':>9} {'2nd share':>9}")
    for row in rows:
        lines.append(
            f"{row.kind:<16} {row.batch:>5} {row.chain:>6.3f} {row.tree:>6.3f} {100 * row.gain:>5.2f} % "
            f"{100 * row.hindsight:>7.2f} % {100 * row.second_tokens:>7.1f} %"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--spec-bench", type=Path, metavar="FILE")
    parser.add_argument("--human-eval", type=Path, metavar="FILE")
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--prompts", type=int, default=20, help="of each kind, at most")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-tokens", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--steps", type=Path, metavar="PROFILE", help="step times kept by an engine")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    kinds = chosen_kinds(args.kinds, args.spec_bench, args.human_eval)
    options = EngineOptions.from_flat(
        model=args.model,
        enable_prefix_caching=False,
        max_num_seqs=max(16, *args.batch),
        speculative="ngram" if args.steps is None else "off",
        num_speculative_tokens=args.num_tokens,
        num_threads=args.threads,
    )
    loaded = load_engine(options)
    steps = step_times(loaded, args.steps)
    answers = {kind: decode(loaded, kind, texts, args) for kind, texts in kinds.items()}
    answers = {kind: found for kind, found in answers.items() if len(found) > 1}
    answers["all"] = [each for found in answers.values() for each in found]
    counts = {kind: count(found) for kind, found in answers.items()}
    rows = []
    for batch in args.batch:
        by_drafted = [steps.measured(batch, batch * (1 + n), CONTEXT) / batch for n in range(args.num_tokens + 1)]
        rows += [
            compare(kind, found, by_drafted.__getitem__, batch, args.num_tokens) for kind, found in answers.items()
        ]
    evidence = Counter(position.evidence for each in answers["all"] for position in each)
    if args.json:
        print(
            json.dumps(
                {
                    "model": args.model,
                    "counts": {kind: asdict(each) for kind, each in counts.items()},
                    "rows": [asdict(row) for row in rows],
                    "evidence": [[*kind, number] for kind, number in sorted(evidence.items())],
                }
            )
        )
        return
    for batch in args.batch:
        times = (f"{1000 * steps.measured(batch, batch * (1 + n), CONTEXT):.2f}" for n in range(args.num_tokens + 1))
        print(f"ms of a step of {batch} x 1, 2, ... tokens: {' '.join(times)}")
    print(report(counts, rows))


if __name__ == "__main__":
    run_program(main)
