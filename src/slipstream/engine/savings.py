"""Whether drafts save time, and if not, why: said once per engine."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_LOOK = 2000  # tokens, of all requests, before anything is said
LOOK_EVERY = 500
LEAST = 0.01  # of the decoding time; under policies without step times, accepted tokens per token
RARELY = 0.10


@dataclass(slots=True)
class Savings:
    """Sums over the engine's life. Times are those of requests: a step over four of them counts four times.

    timed: step times are known; otherwise drafts are judged by the tokens that they bring.
    """

    timed: bool
    rows: int = 0  # requests that could be drafted for, counted in every step
    found: int = 0  # those for which something was found
    dear: int = 0  # those of them in steps in which even right drafts would not have paid
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0  # in steps without prefill
    saved: float = 0.0  # negative: lost
    warning: str = ""  # empty as long as speculation is of use, or it is not known yet
    _next_look: int = FIRST_LOOK

    def asked(self, rows: int, found: int, dear: int) -> None:
        """Before a step. Now and then the sums are looked at, until there is something to say."""
        self.rows += rows
        self.found += found
        self.dear += dear
        if self.rows >= self._next_look and not self.warning:
            self._next_look = self.rows + LOOK_EVERY
            self._look()

    def verified(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def _look(self) -> None:
        worth = self.saved / self.seconds if self.timed and self.seconds else self.accepted / self.rows
        if worth >= LEAST:
            return
        if not self.timed:
            gain = f"brought {self.accepted} of {self.rows + self.accepted} tokens"
        else:
            gain = f"saved {worth:.1%} of the time" if worth >= 0 else f"cost {-worth:.1%} of the time"
        self.warning = f"speculation is on but has {gain} so far: {self._why()}."

    def _why(self) -> str:
        if self.found < RARELY * self.rows:
            return (
                f"something to draft was found for {self.found / self.rows:.1%} of the tokens only, "
                "since the answers repeat little of what came before"
            )
        if self.dear > 0.5 * self.found:
            return "with as many requests at once as there were, even right drafts would cost more than they bring"
        if not self.drafted:
            return "no draft promised to be worth verifying"
        return f"{self.accepted / self.drafted:.0%} of {self.drafted} drafted tokens were right"
