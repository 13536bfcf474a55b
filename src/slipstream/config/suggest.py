"""The nearest known name, for errors about unknown ones."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_name(unknown: str, known: Iterable[str]) -> str | None:
    """The most similar known name (hyphens and case do not count), or None when nothing is close."""
    import difflib

    names = list(known)
    normalised = {name.lower().replace("-", "_"): name for name in names}
    matches = difflib.get_close_matches(unknown.lower().replace("-", "_"), normalised, n=1, cutoff=0.6)
    return normalised[matches[0]] if matches else None


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """A sentence to end an error with: the nearest name, or all of them when none is close."""
    names = sorted(known)
    nearest = nearest_name(unknown, names)
    return f"Did you mean {nearest}?" if nearest is not None else f"Known names: {', '.join(names)}."
