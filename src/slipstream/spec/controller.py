"""How many drafted tokens each request verifies in the next step, 0 included (requirement D5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slipstream.errors import ConfigError
from slipstream.spec.acceptance import AcceptanceModel, AcceptanceWindow
from slipstream.spec.allocate import choose_lengths
from slipstream.spec.proposer import Draft
from slipstream.spec.step_times import StepTimes

Policy = Literal["cost", "threshold", "fixed"]

EARLY_JUDGED, EARLY_INTERVAL = 16, 8


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """`num_tokens`: the longest draft. `off_below`, `on_above`: share of accepted tokens in a request's last proposals
    at which the threshold policy switches off and on. `margin`: gain in tokens per second that a step with drafts must
    promise under the cost policy. `probe_interval`: of the offers that are cut short or turned down, of one kind of
    evidence, every so many-th is verified by one token more, to learn whether that has become wrong; of tokens that
    have not been judged `EARLY_JUDGED` times every `EARLY_INTERVAL`-th, under the cost policy. Nothing is probed
    where even right drafts would not pay."""

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
    offer: Draft = field(default_factory=Draft)  # what was cut to `length` for the step in flight


class Controller:
    """One per proposer. `offer` before a step, `observe` after it, for every request that had a draft in it."""

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
        self._acceptance = AcceptanceModel(priors=priors or {})
        self._requests: dict[str, _Tracked] = {}
        self._cut_short: dict[int, int] = {}  # by kind of evidence, since the last probe

    def offer(self, drafts: Sequence[tuple[str, Draft]], others: int = 0) -> list[tuple[int, ...]]:
        """Cut each request's draft to what is worth verifying. `others`: rows of the step that have none."""
        tracked = [self._tracked(key) for key, _ in drafts]
        lengths = self._lengths(tracked, [draft for _, draft in drafts], others)
        cut: list[tuple[int, ...]] = []
        could_pay = self._could_pay(len(drafts) + others)
        for request, (_, draft), length in zip(tracked, drafts, lengths, strict=True):
            most = min(len(draft.tokens), self.options.num_tokens)
            if length < min(most, could_pay) and self._probes(draft.evidence, length):
                length += 1
            request.offer = draft
            cut.append(draft.tokens[:length])
        return cut

    def observe(self, key: str, verified: int, accepted: int) -> None:
        """Of the request's last offer `verified` tokens were fed (fewer than offered if there was no room)."""
        if verified:
            request = self._tracked(key)
            request.acceptance.observe(request.offer.evidence, verified, accepted)
            request.window.observe(verified, accepted)
            rate = request.window.rate
            assert rate is not None
            request.on = rate >= self.options.off_below if request.on else rate > self.options.on_above

    def observe_step(self, rows: int, tokens: int, seconds: float) -> None:
        """A step without prefill took so long."""
        if self._times is not None:
            self._times.observe(rows, tokens, seconds)

    def forget(self, key: str) -> None:
        self._requests.pop(key, None)

    def acceptance(self, key: str) -> float | None:
        """Share of accepted tokens in the request's last proposals; None before the first."""
        request = self._requests.get(key)
        return None if request is None else request.window.rate

    def _lengths(self, requests: list[_Tracked], drafts: list[Draft], others: int) -> list[int]:
        most = self.options.num_tokens
        if self.options.policy == "fixed":
            return [min(len(draft.tokens), most) for draft in drafts]
        if self.options.policy == "threshold":
            return [min(len(d.tokens), most) if r.on else 0 for r, d in zip(requests, drafts, strict=True)]
        times, rows = self._times, len(drafts) + others
        assert times is not None
        chances = [
            request.acceptance.chances(draft.evidence, min(len(draft.tokens), most))
            for request, draft in zip(requests, drafts, strict=True)
        ]
        if not any(chances):
            return [0] * len(drafts)
        chosen = choose_lengths(
            [*chances, *([[]] * others)], lambda extra: times(rows, rows + extra), margin=self.options.margin
        )
        return chosen[: len(drafts)]

    def _probes(self, evidence: int, length: int) -> bool:
        """Whether a draft that was cut to `length` tokens is to be verified by one more."""
        interval = self.options.probe_interval
        if self.options.policy == "cost" and self._acceptance.count(evidence, length) < EARLY_JUDGED:
            interval = min(interval, EARLY_INTERVAL)
        count = self._cut_short.get(evidence, 0) + 1
        self._cut_short[evidence] = 0 if count >= interval else count
        return count >= interval

    def _could_pay(self, rows: int) -> int:
        """The most tokens that one row's draft could have and pay, if they were right."""
        times, most = self._times, self.options.num_tokens
        if self.options.policy != "cost" or times is None or rows == 0:
            return most
        rate = rows / times(rows, rows) * (1.0 + self.options.margin)
        return max((n for n in range(1, most + 1) if (rows + n) / times(rows, rows + n) > rate), default=0)

    def _tracked(self, key: str) -> _Tracked:
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = _Tracked(self._acceptance.child())
        return request
