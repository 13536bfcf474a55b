"""What a request's `speculative` field asks for, against what the engine has."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.engine.protocol import RequestSpeculation
from slipstream.engine.request import Drafter
from slipstream.errors import InvalidParamsError


def asked_drafter(asked: RequestSpeculation | None) -> Drafter | None:
    """The only one that may draft; None: whoever can."""
    return None if asked is None or asked.mode == "off" or asked.mode == "auto" else asked.mode


def asked_length(asked: RequestSpeculation | None, names: Sequence[str], most: int, where: str) -> int | None:
    """The longest draft, at most `most`; 0: none at all, None: the engine's own. `names`: who drafts in it.

    Raises InvalidParamsError for a mode that there is not, or not in this engine, and for a length out of range.
    """
    if asked is None:
        return None
    if asked.mode not in ("off", "auto", "ngram", "draft_model", "draft_head"):
        raise InvalidParamsError(
            f"speculative.mode is {asked.mode!r}.",
            where=where,
            fix="Choose off, auto, ngram, draft_model or draft_head.",
        )
    if asked.mode == "off":
        return 0
    if asked.mode != "auto" and asked.mode not in names:
        means = f"drafts with {' and '.join(names)} only" if names else "drafts nothing"
        how = {"ngram": "ngram or auto", "draft_model": "the name of a smaller model"}.get(asked.mode, "draft_head")
        raise InvalidParamsError(
            f"speculative.mode is {asked.mode!r}, but this engine {means}.",
            where=where,
            fix=f"Start it with speculative = {how}.",
        )
    if asked.num_tokens is not None and (asked.num_tokens < 0 or (most < asked.num_tokens and most)):
        raise InvalidParamsError(
            f"speculative.num_tokens must be from 0 to {most}, got {asked.num_tokens}.", where=where
        )
    return asked.num_tokens
