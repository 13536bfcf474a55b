"""What an engine has done since it began."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.engine.updates import RequestUpdate


@dataclass(slots=True)
class Totals:
    """Completions count, n for one request."""

    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finished: int = 0
    step_time: float = 0.0  # seconds
    forward_time: float = 0.0
    warm_up_time: float = 0.0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: list[int] = field(default_factory=list)  # by position
    time_saved: float = 0.0

    def count_draft(self, update: RequestUpdate) -> None:
        if update.num_draft:
            self.drafts += 1
            self.draft_tokens += update.num_draft
            self.accepted += [0] * (update.num_draft - len(self.accepted))
            for position in range(update.num_accepted):
                self.accepted[position] += 1
