"""What deciding about drafts costs per step: the clock, a real engine, real steps.

    python -m benchmarks.speculation_cost MODEL [--policy cost] [--batch 1 4 16] [--max-tokens 96] [--threads N]
        [--json]

Every call of the scheduler to what drafts (taking notice of new tokens, looking for drafts, choosing lengths, learning)
is timed, and so is the step that it belongs to. Two kinds of prompts: code edits, for which there is nearly always
something to draft, and questions, for which there seldom is. Figures are medians of steps without prefill, and the
share is that of all their time. The first of them, in which the automata of the prompts are built, is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from benchmarks.program import run_program
from benchmarks.speculation import code_edits, tokenise
from slipstream import SamplingParams
from slipstream.config.types import EngineOptions
from slipstream.engine.core import EngineCore
from slipstream.engine.drafts import DraftProposer
from slipstream.engine.loading import load_engine
from slipstream.engine.plan import StepPlan
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.recent_answers import StoreStats
from slipstream.engine.request import Request

TOPICS = "rivers moons bread bridges bees glass chess rain ships paper salt owls maps violins clocks deserts"
QUESTIONS = [f"Tell me about {topic} in a few paragraphs." for topic in TOPICS.split()]


class Timed:
    """A DraftProposer that counts the seconds spent in another one."""

    def __init__(self, inner: DraftProposer) -> None:
        self.inner, self.seconds, self.decoding = inner, 0.0, False

    @property
    def max_tokens(self) -> int:
        return self.inner.max_tokens

    @property
    def names(self) -> tuple[str, ...]:
        return self.inner.names

    @property
    def warning(self) -> str:
        return self.inner.warning

    @property
    def store(self) -> StoreStats:
        return self.inner.store

    def propose(self, requests: Sequence[Request]):  # type: ignore[no-untyped-def]
        started = perf_counter()
        result = self.inner.propose(requests)
        self.seconds += perf_counter() - started
        return result

    def warm_up(self, requests: Sequence[Request]) -> None:
        self.inner.warm_up(requests)

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        self.decoding = all(row.samples and len(row.tokens) == 1 + row.num_draft for row in plan.rows)
        started = perf_counter()
        self.inner.observe_step(plan, seconds)
        self.seconds += perf_counter() - started

    def release(self, request: Request) -> None:
        started = perf_counter()
        self.inner.release(request)
        self.seconds += perf_counter() - started


@dataclass(frozen=True)
class Row:
    """Times in seconds."""

    kind: str
    batch: int
    steps: int
    step: float
    drafting: float
    share: float
    drafted_per_row: float


def measure(core: EngineCore, timed: Timed, kind: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> Row:
    before = core.stats()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        core.add(GenerationRequest(f"{kind}-{len(prompts)}-{index}", tuple(prompt), params))
    steps: list[tuple[float, float]] = []
    while core.has_work:
        running = core.stats().num_running
        timed.seconds, timed.decoding = 0.0, False
        started = perf_counter()
        core.step()
        if timed.decoding and running == len(prompts):
            steps.append((perf_counter() - started, timed.seconds))
    del steps[0]
    drafted = core.stats().num_draft_tokens - before.num_draft_tokens
    return Row(
        kind,
        len(prompts),
        len(steps),
        statistics.median(step for step, _ in steps),
        statistics.median(drafting for _, drafting in steps),
        sum(drafting for _, drafting in steps) / sum(step for step, _ in steps),
        drafted / (len(steps) * len(prompts)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--policy", default="cost", choices=("cost", "threshold", "fixed"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    options = EngineOptions.from_flat(
        model=args.model,
        enable_prefix_caching=False,
        max_num_seqs=max(args.batch),
        speculative="auto",
        speculative_policy=args.policy,
        num_threads=args.threads,
    )
    loaded = load_engine(options)
    scheduler = loaded.core._scheduler
    timed = Timed(scheduler.proposer)
    scheduler.proposer = timed
    rows = []
    for kind, texts in (("code-edit", code_edits()), ("question", QUESTIONS)):
        prompts = tokenise(loaded, texts, loaded.plan.options.max_model_len - args.max_tokens)
        for batch in args.batch:
            chosen = [prompts[index % len(prompts)] for index in range(batch)]
            rows.append(measure(loaded.core, timed, kind, chosen, args.max_tokens))
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{'kind':<12} {'batch':>5} {'steps':>5} {'step ms':>8} {'drafting us':>11} {'share':>7} {'drafted':>7}")
    for row in rows:
        print(
            f"{row.kind:<12} {row.batch:>5} {row.steps:>5} {1e3 * row.step:>8.2f} {1e6 * row.drafting:>11.1f} "
            f"{100 * row.share:>5.2f} % {row.drafted_per_row:>7.2f}"
        )


if __name__ == "__main__":
    run_program(main)
