"""Lists of tensor names for error messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def show(name: str) -> str:
    """`name` safe to print: control characters escaped, at most 100 characters."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 100 else text[:97] + "..."


def name_list(names: Sequence[str], limit: int = 20) -> str:
    """ "a, b, c" or, beyond `limit`, "a, b, c and 7 more"."""
    text = ", ".join(show(name) for name in names[:limit])
    rest = len(names) - limit
    return f"{text} and {rest} more" if rest > 0 else text


def duplicates(names: Sequence[str]) -> list[str]:
    """The names that appear more than once, in order of first appearance."""
    return [name for name, count in Counter(names).items() if count > 1]
