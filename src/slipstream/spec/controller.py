"""How many drafted tokens each request verifies in the next step, 0 included (requirement D5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from slipstream.errors import ConfigError
from slipstream.spec.acceptance import AcceptanceModel, AcceptanceWindow
from slipstream.spec.allocate import choose_lengths
from slipstream.spec.cost_line import Lessons
from slipstream.spec.learned_cost import DraftCost
from slipstream.spec.proposer import Draft
from slipstream.spec.step_tables import StepTable, StepTables
from slipstream.spec.step_times import StepTimes

Policy = Literal["cost", "threshold", "fixed"]

EARLY_JUDGED, EARLY_INTERVAL = 16, 8
DOUBT_INTERVAL, LONGEST_DOUBT_INTERVAL = 64, 4096  # decisions that drafts cannot pay before that is doubted
LEAST_JUDGED = 8  # proposals of a request before the threshold policy switches


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """`num_tokens`: the longest draft. `off_below`, `on_above`: share of accepted tokens in a request's last proposals
    since it was last switched (50 at most, 8 at least), at which the threshold policy switches off and on. `margin`:
    gain in tokens per second that a step with drafts must promise under the cost policy. `probe_interval`: of the
    offers that are cut short or turned down, of one kind of evidence, every so many-th is verified by one token more,
    to learn whether that has become wrong; of tokens that have not been judged `EARLY_JUDGED` times every
    `EARLY_INTERVAL`-th, under the cost policy. Nothing is probed where even right drafts would not pay."""

    policy: Policy = "cost"
    num_tokens: int = 5
    off_below: float = 0.40
    on_above: float = 0.55
    margin: float = 0.02
    probe_interval: int = 64

    def __post_init__(self) -> None:
        if self.policy not in ("cost", "threshold", "fixed"):
            raise ConfigError(
                f"unknown policy {self.policy!r}.", where="speculation.policy", fix="Choose cost, threshold or fixed."
            )
        if not 1 <= self.num_tokens <= 64:
            raise ConfigError(
                f"{self.num_tokens} speculative tokens are out of range.",
                where="speculation.num_speculative_tokens",
                fix="Choose 1 to 64.",
            )
        if not 0.0 <= self.off_below <= self.on_above <= 1.0:
            raise ConfigError(
                f"thresholds {self.off_below} and {self.on_above} make no sense.",
                where="speculation",
                fix="Choose 0 <= off_below <= on_above <= 1.",
            )
        if self.margin < 0.0 or self.probe_interval < 1:
            raise ConfigError(
                "margin must not be negative and probe_interval at least 1.", where="speculation", fix="Change them."
            )


@dataclass(slots=True)
class _Tracked:
    """What is known of one open request's drafts."""

    acceptance: AcceptanceModel
    window: AcceptanceWindow = field(default_factory=AcceptanceWindow)
    on: bool = True
    evidence: int = 0  # of what was cut for the step in flight
    probe: int | None = None  # the evidence of a draft that was asked for only to learn about it


class Controller:
    """`offer` before a step, `observe` after it, for every request that had a draft in it.

    Times of steps are looked up in a table per number of rows and context, and chances only as far as they can matter
    (see `choose_lengths`), so that deciding takes a few microseconds per row with a draft and nothing without.
    """

    def __init__(
        self, options: ControlOptions, times: StepTimes | None, priors: Mapping[int, float] | None = None
    ) -> None:
        """times: needed by the cost policy. priors: chances of kinds of evidence before anything is known of them.

        Raises ConfigError if the times are missing.
        """
        if times is None and options.policy == "cost":
            raise ConfigError("the cost policy needs measured step times.", where="speculation.policy")
        self.options = options
        self._times = times
        self._measured = None if times is None else StepTables(times, options.num_tokens, options.margin)
        self._tables = self._measured if options.policy == "cost" else None  # what lengths are chosen by
        self._lessons = Lessons()  # of steps with drafts
        self._acceptance = AcceptanceModel(priors=priors or {})
        self._requests: dict[str, _Tracked] = {}
        self._shut, self._doubt_interval = 0, DOUBT_INTERVAL  # decisions that drafts cannot pay, since the last doubt
        self._cut_short: dict[int, int] = {}  # by kind of evidence, since the last probe

    def wanted(
        self, rows: Sequence[tuple[str, int]], evidence: int, cost: DraftCost, others: int = 0, context: int = 0
    ) -> list[int]:
        """How many tokens each row should have drafted by a proposer whose drafts take time, which is counted.

        rows: (request, at most so many). `others`: further rows of the step. context: as in `offer`.
        """
        if not rows:
            return []
        requests = [self._tracked(key) for key, _ in rows]
        limits = [min(limit, self.options.num_tokens) for _, limit in rows]
        num_rows = len(rows) + others
        table = None if self._tables is None else self._tables.at(num_rows, context, asked=len(rows), cost=cost)
        could_pay = self.options.num_tokens if table is None else table.could_pay
        lengths = self._lengths(requests, [evidence] * len(rows), limits, table, num_rows)
        for index, request in enumerate(requests):
            probes = lengths[index] == 0 and min(limits[index], could_pay) > 0 and self._probes(evidence, 0)
            request.probe = evidence if probes else None
            lengths[index] += probes
        return lengths

    def prefers(
        self, key: str, found: Draft, evidence: int, limit: int, cost: DraftCost, rows: int, context: int = 0
    ) -> bool:
        """Whether drafts of another kind, of at most `limit` tokens, which take time, promise the request more than the
        one that was found for it. Now and then not even then: or nobody would see the found ones getting better.

        rows: of the step. context: as in `offer`. False where the policy does not count costs.
        """
        if self._tables is None:
            return False
        acceptance = self._tracked(key).acceptance
        if acceptance.chance(found.evidence, 0) >= acceptance.chance(evidence, 0):
            return False
        own = _best_rate(acceptance, found.evidence, len(found.tokens), self._tables.at(rows, context), rows)
        table = self._tables.at(rows, context, asked=1, cost=cost)
        other = _best_rate(acceptance, evidence, min(limit, self.options.num_tokens), table, rows)
        return other > own and not self._probes(found.evidence, 0)

    def offer(self, drafts: Sequence[tuple[str, Draft]], others: int = 0, context: int = 0) -> list[int]:
        """To how many tokens each request's draft is cut: what is worth verifying.

        `others`: rows of the step that have no draft. context: mean number of tokens in front of the step's rows.
        """
        if not drafts:
            return []
        requests = [self._tracked(key) for key, _ in drafts]
        kinds = [draft.evidence for _, draft in drafts]
        longest = self.options.num_tokens
        limits = [min(len(draft.tokens), longest) for _, draft in drafts]
        rows = len(drafts) + others
        table = None if self._tables is None else self._tables.at(rows, context)
        could_pay = longest if table is None else table.could_pay
        if not could_pay:
            self.doubts(rows, context)
        lengths = self._lengths(requests, kinds, limits, table, rows)
        for index, request in enumerate(requests):
            kind, length = kinds[index], lengths[index]
            request.evidence = kind
            probed, request.probe = request.probe == kind, None
            if probed:
                lengths[index] = max(length, min(1, limits[index]))
            elif length < min(limits[index], could_pay) and self._probes(kind, length):
                lengths[index] = length + 1
        return lengths

    def observe(self, key: str, verified: int, accepted: int) -> None:
        """Of the request's last offer `verified` tokens were fed (fewer than offered if there was no room)."""
        if verified:
            request = self._tracked(key)
            request.acceptance.observe(request.evidence, verified, accepted)
            request.window.observe(verified, accepted)
            rate = request.window.rate
            if rate is None or len(request.window) < LEAST_JUDGED:
                return
            on = rate >= self.options.off_below if request.on else rate > self.options.on_above
            if on is not request.on:
                request.on, request.window = on, AcceptanceWindow()

    def observe_step(self, rows: int, tokens: int, seconds: float, context: int = 0) -> None:
        """A step without prefill took so long."""
        if self._times is None or self._measured is None:
            return
        drafted = tokens - rows
        if not drafted:
            self._times.observe_plain(self._measured.measured(rows, context)[0], seconds)
            return
        self._doubt_interval = max(DOUBT_INTERVAL, self._doubt_interval - 1)
        if self._lessons.next():
            measured = self._measured.measured(rows, context)
            if drafted < len(measured):
                self._times.observe_drafts(rows, measured[0], measured[drafted], seconds)

    def forget(self, key: str) -> None:
        self._requests.pop(key, None)

    def acceptance(self, key: str) -> float | None:
        """Share of accepted tokens in the request's last proposals; None before the first."""
        request = self._requests.get(key)
        return None if request is None else request.window.rate

    def could_pay(self, rows: int, context: int = 0, *, asked: int = 0, cost: DraftCost | None = None) -> int:
        """The most tokens that one of so many rows could draft and pay, if they were right. asked, cost: so many of
        them are drafted for at this cost."""
        if self._tables is None:
            return self.options.num_tokens
        return self._tables.at(rows, context, asked=asked, cost=cost).could_pay

    def doubts(self, rows: int, context: int = 0, *, asked: int = 0, cost: DraftCost | None = None) -> bool:
        """To be called where by what was learned nothing is drafted, not even as a probe. Then nothing more is learned,
        and what one busy moment seemed to show would stay for ever: every `DOUBT_INTERVAL`-th time, if drafts could pay
        by the times of start-up, what is known of steps with drafts fades if it says that none pay, and the answer is
        True.
        The interval doubles each time, and shrinks by one with each step that has drafts.

        asked, cost: so many rows are drafted for at this cost, also as at start-up.
        """
        if self._tables is None or self._times is None:
            return False
        self._shut += 1
        if self._shut < self._doubt_interval:
            return False
        self._shut = 0
        if not self._tables.could_pay_as_measured(rows, context, asked=asked, cost=cost):
            return False
        if not self.could_pay(rows, context):
            self._times.fade(rows)
        self._doubt_interval = min(2 * self._doubt_interval, LONGEST_DOUBT_INTERVAL)
        return True

    def saving(self, key: str, evidence: int, cost: DraftCost, context: int = 0) -> float:
        """Seconds per output token that drafts of this kind are expected to save the request, were it alone; infinite
        where steps were not measured or the policy does not count them."""
        if self._tables is None or self._times is None:
            return float("inf")
        plain, chance = self._times.relative(1, 1, context), 1.0
        acceptance = self._tracked(key).acceptance
        best, expected = 0.0, 1.0
        for n in range(1, self.options.num_tokens + 1):
            chance *= acceptance.chance(evidence, n - 1)
            expected += chance
            seconds = self._times.relative(1, 1 + n, context) + cost(1, n)
            best = max(best, plain - seconds / expected)
        return best

    @property
    def timed(self) -> bool:
        """Whether steps were measured."""
        return self._times is not None

    @property
    def drift(self) -> float:
        """How many times as long as when they were measured steps take now."""
        return 1.0 if self._times is None else self._times.drift

    def seconds(self, rows: int, drafted: int, context: int = 0) -> tuple[float, float] | None:
        """What a step takes now, without and with so many drafted tokens; None if steps were not measured."""
        if self._times is None or self._measured is None:
            return None
        table, drift = self._measured.at(rows, context).seconds, self._times.drift
        return drift * table[0], drift * table[min(drafted, len(table) - 1)]

    def _lengths(
        self,
        requests: list[_Tracked],
        kinds: list[int],
        limits: list[int],
        table: StepTable | None,
        rows: int,
    ) -> list[int]:
        if self.options.policy == "fixed":
            return limits.copy()
        if table is None:
            return [limit if each.on else 0 for each, limit in zip(requests, limits, strict=True)]
        if table.could_pay == 0:
            return [0] * len(requests)
        chances = [partial(each.acceptance.chance, kind) for each, kind in zip(requests, kinds, strict=True)]
        return choose_lengths(chances, limits, table, rows, margin=self.options.margin)

    def _probes(self, evidence: int, length: int) -> bool:
        """Whether a draft that was cut to `length` tokens is to be verified by one more."""
        interval = self.options.probe_interval
        if self.options.policy == "cost" and self._acceptance.count(evidence, length) < EARLY_JUDGED:
            interval = min(interval, EARLY_INTERVAL)
        count = self._cut_short.get(evidence, 0) + 1
        self._cut_short[evidence] = 0 if count >= interval else count
        return count >= interval

    def _tracked(self, key: str) -> _Tracked:
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = _Tracked(self._acceptance.child())
        return request


def _best_rate(acceptance: AcceptanceModel, evidence: int, limit: int, table: StepTable, rows: int) -> float:
    """Expected tokens per second of a step in which one of the rows has a draft of the best length, 0 included."""
    best, expected, chance = rows / table.seconds[0], float(rows), 1.0
    for n in range(1, min(limit + 1, len(table.seconds))):
        chance *= acceptance.chance(evidence, n - 1)
        expected += chance
        best = max(best, expected / table.seconds[n])
    return best
