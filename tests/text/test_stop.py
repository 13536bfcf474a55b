"""Stop strings, against a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import InvalidParamsError
from slipstream.text.stop import StopChecker, StopResult

pytestmark = pytest.mark.fast


def naive(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The first place where a stop string is complete; the longest one there."""
    for end in range(1, len(text) + 1):
        matches = [string for string in stop if text[:end].endswith(string)]
        if matches:
            longest = max(matches, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def run(pieces: list[str], stop: list[str], include: bool) -> tuple[list[str], str | None]:
    checker = StopChecker(stop, include_in_output=include)
    results = [checker.push(piece) for piece in pieces]
    results.append(checker.flush())
    return [result.text for result in results], results[-1].matched


@given(
    pieces=st.lists(st.text(alphabet="abc", max_size=4), max_size=12),
    stop=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4),
    include=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_pieces_equal_the_whole(pieces: list[str], stop: list[str], include: bool) -> None:
    texts, matched = run(pieces, stop, include)
    assert ("".join(texts), matched) == naive("".join(pieces), stop, include)


@given(text=st.text(alphabet="abc", max_size=20), stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1))
@settings(max_examples=200, deadline=None)
def test_nothing_is_held_back_that_need_not_be(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    shown = ""
    for position, char in enumerate(text, start=1):
        result = checker.push(char)
        shown += result.text
        if result.matched:
            break
        held = text[len(shown) : position]
        assert held == "" or any(string.startswith(held) and string != held for string in stop)


def test_no_part_of_a_match_is_shown() -> None:
    texts, matched = run(["Hello", " Us", "e", "r", ": next"], ["User:"], include=False)
    assert (texts, matched) == (["Hello", " ", "", "", "", ""], "User:")


def test_what_only_began_like_one_is_shown() -> None:
    texts, matched = run(["a", "ab", "x", "END", "E"], ["aabb", "ENDE!"], include=False)
    assert (texts, matched) == (["", "", "aabx", "", "", "ENDE"], None)


def test_included_in_the_output() -> None:
    assert run(["one tw", "o three"], ["two"], include=True) == (["one ", "two", ""], "two")


@pytest.mark.parametrize(
    ("stop", "text", "shown", "matched"),
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # complete first
        (["bc", "abc"], "xabc", "x", "abc"),  # complete together: the longer
        (["b", "a"], "ab", "", "a"),
        (["\n\n"], "a\n\n\nb", "a", "\n\n"),
        (["。"], "好。好", "好", "。"),
    ],
)
def test_which_match_wins(stop: list[str], text: str, shown: str, matched: str) -> None:
    for pieces in ([text], list(text)):
        texts, found = run(pieces, stop, include=False)
        assert ("".join(texts), found) == (shown, matched)


def test_after_a_match() -> None:
    checker = StopChecker(["."])
    assert checker.push("a.b") == StopResult("a", ".")
    assert checker.push("c") == StopResult("", ".")
    assert checker.flush() == StopResult("", ".")


def test_without_stop_strings_all_text_passes() -> None:
    assert run(["a", "", "b"], [], include=False) == (["a", "", "b", ""], None)


def test_wrong_stop_strings() -> None:
    with pytest.raises(InvalidParamsError, match=r"stop\[1\]: must be a non-empty string, not ''"):
        StopChecker(["a", ""])
    with pytest.raises(InvalidParamsError, match=r"stop\[0\]: must be a non-empty string, not 3"):
        StopChecker([3])  # type: ignore[list-item]
    with pytest.raises(InvalidParamsError, match="must be a list of strings"):
        StopChecker("abc")
