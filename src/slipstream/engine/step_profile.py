"""How long steps take, measured before the first request: what the cost of verifying drafts is judged by."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

from slipstream.engine.plan import PlanRow, RowSampling, StepPlan
from slipstream.engine.runner import Runner
from slipstream.errors import EngineError
from slipstream.lean import dataclass
from slipstream.sampling.params import SamplingParams

StepSeconds = dict[tuple[int, int, int], float]  # (rows, tokens of all rows, tokens in front of each) -> seconds

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 256  # tokens before the ones that are fed
LONG_CONTEXTS = (1024, 4096)
MOST_POSITIONS = 4096  # of all rows at a long context
REPETITIONS = 3
BUDGET = 2.0  # seconds; larger numbers of rows are left out when it is spent
BUSY = 0.75
WORTH = 0.0005  # seconds of a step; for less nothing is measured again
LONG_BUDGET = 1.0  # for the long contexts, which are left out likewise

_FORMAT = 5
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class ProfileSize:
    """What is measured: up to `max_rows` rows of 1 to `max_tokens` tokens in a pool that nobody uses yet."""

    max_rows: int
    max_tokens: int  # of a row: the longest draft and one
    block_size: int
    num_blocks: int
    max_model_len: int
    max_step_tokens: int  # fed in one step

    @property
    def longest(self) -> int:
        """Tokens of a row that can be fed at all."""
        return min(self.max_tokens, self.max_step_tokens, self.max_model_len, self.num_blocks * self.block_size)

    def context(self, rows: int, wanted: int = CONTEXT) -> int:
        """Tokens before the fed ones, at most `wanted`; negative if so many rows do not fit."""
        if rows * self.longest > self.max_step_tokens:
            return -1
        room = self.num_blocks // rows * self.block_size
        return min(wanted, room - self.longest, self.max_model_len - self.longest)

    def long_rows(self, context: int) -> list[int]:
        """For which numbers of rows a long context is measured: one, and the most that fit."""
        most = min(self.max_rows, MOST_POSITIONS // context)
        fitting = [rows for rows in ROWS if rows <= most and self.context(rows, context) == context]
        return sorted({fitting[0], fitting[-1]}) if fitting else []


def one_row(runner: Runner, size: ProfileSize) -> Callable[[], None]:
    """A step of one row and one token."""
    plan = _plan(1, 1, size.context(1), size.block_size)
    return lambda: _execute(runner, plan)


def measure_steps(
    runner: Runner,
    size: ProfileSize,
    clock: Callable[[], float] = perf_counter,
    before: Callable[[], None] | None = None,
) -> StepSeconds:
    """Seconds of greedy steps over the pool, which holds nothing afterwards that anybody knows of.

    Every row has blocks of its own. Where the pool is too small for that, contexts are shorter, down to
    nothing, and then fewer rows are measured. Long contexts are measured for one token per row and the most, and not at
    all where the pool or the model has none. Takes at most about `BUDGET` + `LONG_BUDGET` seconds, unless the few steps
    of one row take longer. In such a step every draft is greedy and, most likely, refused at its first token.
    before: done before every step that counts; for a drafter a step of its target, which leaves the processor's caches
    as a drafter finds them. Raises EngineError if the model cannot compute a step.
    """
    lengths = sorted({1, 2, 3, 4, size.longest} & set(range(1, size.longest + 1)))
    _seconds(runner, _plan(1, 1, size.context(1), size.block_size), clock)  # pays for what comes once
    timing = _Timing(runner, size.block_size, clock, before or _nothing)
    timing.begin(BUDGET)
    for rows in ROWS:
        context = size.context(rows)
        if timing.measured and (rows > size.max_rows or context < 0 or not timing.affords(2.0)):
            break
        timing.measure(rows, lengths, context)
    timing.begin(LONG_BUDGET)
    for context in LONG_CONTEXTS:
        for rows in size.long_rows(context):
            if timing.affords(2.0):
                timing.measure(rows, sorted({1, size.longest}), context)
    return timing.measured


class _Timing:
    def __init__(self, runner: Runner, block_size: int, clock: Callable[[], float], before: Callable[[], None]) -> None:
        self._runner, self._block_size, self._clock, self._before = runner, block_size, clock, before
        self.measured: StepSeconds = {}
        self._end = 0.0
        self._took = 0.0  # all lengths of the last numbers of rows and context, once

    def begin(self, budget: float) -> None:
        self._end, self._took = self._clock() + budget, 0.0

    def affords(self, factor: float) -> bool:
        """Whether there is time for what takes `factor` times as long as the last measurement."""
        return self._clock() + factor * self._took <= self._end

    def measure(self, rows: int, lengths: Sequence[int], context: int) -> None:
        plans = [_plan(rows, tokens, context, self._block_size) for tokens in lengths]
        _seconds(self._runner, plans[0], self._clock)  # the first one finds memory that nobody has used yet
        times: list[list[float]] = []
        # Each length once and then all of them again: a moment in which the machine is busy must not strike one only.
        while not times or (len(times) < REPETITIONS and self._clock() + self._took < self._end):
            started = self._clock()
            times.append([])
            for plan in plans:
                self._before()
                times[-1].append(_seconds(self._runner, plan, self._clock))
            self._took = self._clock() - started
        for tokens, seconds in zip(lengths, zip(*times, strict=True), strict=True):
            # Other work on the machine only ever adds; what it adds while serving is corrected then.
            self.measured[rows, rows * tokens, context] = min(seconds)


def profile_key(facts: Mapping[str, object]) -> str:
    """A file name for what was measured under these circumstances."""
    text = json.dumps({"format": _FORMAT, **facts}, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def relative_speed(
    runner: Runner,
    size: ProfileSize,
    known: StepSeconds,
    clock: Callable[[], float] = perf_counter,
    before: Callable[[], None] | None = None,
) -> float:
    """How much of its known time the step of one row takes now, in the best of a few tries, one token or the most: the
    larger share. 1 if neither is known, or where hardly anything would change."""
    shares = []
    for tokens in sorted({1, size.longest}):
        context = size.context(1)
        seconds = known.get((1, tokens, context))
        if seconds is not None:
            plan = _plan(1, tokens, context, size.block_size)
            times = []
            for _ in range(1 + REPETITIONS):
                (before or _nothing)()
                times.append(_seconds(runner, plan, clock))
            shares.append(min(times) / seconds if seconds - min(times) > WORTH else 1.0)
    return max(shares, default=1.0)


def load_or_measure(
    folder: Path | None,
    facts: Mapping[str, object],
    measure: Callable[[], StepSeconds],
    now: Callable[[StepSeconds], float] = lambda known: 1.0,
) -> tuple[StepSeconds, str]:
    """The step times for these circumstances and where they come from: "measured" or "measured earlier".

    folder: where they are kept; None: nowhere. now: how much of the known times steps take at the moment; if that is
    less than `BUSY`, the machine was busy when they were measured, and they are measured anew. A file that is broken is
    replaced, too; a folder that cannot be written to is no reason to fail.
    """
    path = None if folder is None else folder / f"{profile_key(facts)}.json"
    known = None if path is None else _read(path)
    if known is not None and now(known) >= BUSY:
        return known, "measured earlier"
    measured = measure()
    if path is not None:
        with contextlib.suppress(OSError):
            _write(path, measured)
    return measured, "measured"


def _plan(rows: int, tokens: int, context: int, block_size: int) -> StepPlan:
    blocks_per_row = -(-(context + tokens) // block_size)
    sampling = RowSampling(_GREEDY, seed=0, num_prompt_tokens=1, stop_token_ids=())
    return StepPlan(
        0,
        tuple(
            PlanRow(
                request_id=f"profile-{row}",
                tokens=(0,) * tokens,
                start=context,
                blocks=tuple(range(row * blocks_per_row, (row + 1) * blocks_per_row)),
                num_draft=tokens - 1,
                num_logits=tokens,
                samples=True,
                sampling=sampling,
            )
            for row in range(rows)
        ),
    )


def _seconds(runner: Runner, plan: StepPlan, clock: Callable[[], float]) -> float:
    started = clock()
    _execute(runner, plan)
    return max(clock() - started, 1e-9)


def _execute(runner: Runner, plan: StepPlan) -> None:
    failed = [row.error for row in runner.execute(plan).rows if row.error is not None]
    if failed:
        raise EngineError(f"the model cannot compute a step: {failed[0]}")


def _nothing() -> None:
    pass


def _read(path: Path) -> StepSeconds | None:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["seconds"]
        found = {(int(rows), int(tokens), int(context)): float(took) for rows, tokens, context, took in entries}
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    plausible = all(
        1 <= rows <= tokens and context >= 0 and 0.0 < took < 1e4 for (rows, tokens, context), took in found.items()
    )
    whole = any((rows, tokens) == (1, 1) for rows, tokens, _ in found)  # what every measurement begins with
    return found if whole and plausible else None


def _write(path: Path, measured: StepSeconds) -> None:
    """As a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"seconds": [[*at, seconds] for at, seconds in measured.items()]})
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".profile-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
