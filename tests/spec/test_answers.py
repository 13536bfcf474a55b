"""The store of recent answers, against a search that compares everything with everything."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec.answers import DEPTH, SHARED, SHORTEST, AnswerStore, is_shared
from slipstream.spec.proposer import NOTHING, Draft

pytestmark = pytest.mark.fast

LONGEST = 6


class Plain:
    """The same by definition: a list of answers, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.answers = capacity, list[tuple[Hashable, list[int]]]()

    @property
    def num_tokens(self) -> int:
        return sum(len(answer) + 1 for _, answer in self.answers)

    def add(self, group: Hashable, tokens: Sequence[int]) -> None:
        kept = list(tokens)[max(0, len(tokens) - self.capacity + 1) :]
        if len(kept) > SHORTEST:
            while self.num_tokens + len(kept) + 1 > self.capacity:
                self.answers.pop(0)
            self.answers.append((group, kept))

    def draft(self, group: Hashable, tokens: Sequence[int], count: int) -> Draft:
        places = [
            (answer, end)
            for owner, answer in reversed(self.answers)
            if owner == group
            for end in range(len(answer) - 1, SHORTEST - 2, -1)
            if answer[end - SHORTEST + 1 : end + 1] == list(tokens[-SHORTEST:])
        ]
        best, following = 0, NOTHING.tokens
        for answer, end in places[:DEPTH] if len(tokens) >= SHORTEST else ():
            length = max(
                n for n in range(LONGEST + 1) if n <= end + 1 and ends_with(tokens, answer[end + 1 - n : end + 1])
            )
            if end + 1 < len(answer) and length > best:
                best, following = length, tuple(answer[end + 1 : end + 1 + count])
        return Draft(following, SHARED + best.bit_length()) if following else NOTHING


def ends_with(tokens: Sequence[int], suffix: Sequence[int]) -> bool:
    return list(tokens[len(tokens) - len(suffix) :]) == list(suffix) if len(suffix) <= len(tokens) else False


TOKENS = st.lists(st.integers(0, 2), max_size=14)
GROUPS = st.sampled_from([(None, None), ("ann", None), ("ann", "salt"), (None, "salt")])


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(1, 60), steps=st.lists(st.tuples(GROUPS, TOKENS), max_size=40), asked=TOKENS)
def test_it_finds_what_a_plain_search_of_the_same_groups_answers_finds(
    capacity: int, steps: list[tuple[Hashable, list[int]]], asked: list[int]
) -> None:
    store, plain = AnswerStore(capacity, SHORTEST, LONGEST), Plain(capacity)
    for group, tokens in steps:
        store.add(group, tokens)
        plain.add(group, tokens)
        assert store.num_tokens == plain.num_tokens <= capacity
        for each in ((None, None), ("ann", None), ("ann", "salt"), (None, "salt")):
            assert store.draft(each, asked, 4) == plain.draft(each, asked, 4)
    assert store.num_groups == len({group for group, _ in plain.answers})


def test_the_longest_match_wins_and_of_equal_ones_the_latest() -> None:
    store = AnswerStore(100)
    store.add("a", [1, 2, 3, 4, 50])
    store.add("a", [9, 2, 3, 4, 60])
    store.add("a", [8, 2, 3, 4, 70, 71])
    assert store.draft("a", [1, 2, 3, 4], 3) == Draft((50,), SHARED + (4).bit_length())
    assert store.draft("a", [7, 2, 3, 4], 3) == Draft((70, 71), SHARED + (3).bit_length())
    assert store.draft("a", [7, 2, 3, 4], 1) == Draft((70,), SHARED + (3).bit_length())
    assert store.draft("a", [7, 2, 3, 4], 0) == store.draft("a", [3, 4], 3) == store.draft("b", [2, 3, 4], 3) == NOTHING


def test_an_end_is_no_token_and_nothing_goes_on_behind_it() -> None:
    store = AnswerStore(100)
    store.add("a", [1, 2, 3, 4])
    store.add("a", [5, 6, 7, 8])
    assert store.draft("a", [2, 3, 4], 3) == NOTHING  # the end of an answer
    assert store.draft("a", [3, 4, 5], 3) == NOTHING  # two answers


def test_what_is_dropped_is_found_no_more() -> None:
    store = AnswerStore(12)
    store.add("a", [1, 2, 3, 4])
    store.add("b", [1, 2, 3, 5])
    assert (store.num_tokens, store.num_groups) == (10, 2)
    store.add("b", [6, 7, 8, 9])
    assert (store.num_tokens, store.num_groups) == (10, 1)
    assert store.draft("a", [1, 2, 3], 1) == NOTHING
    assert store.draft("b", [1, 2, 3], 1).tokens == (5,)


def test_a_long_answer_keeps_its_end_and_a_short_one_is_not_kept() -> None:
    store = AnswerStore(8)
    store.add("a", list(range(20)))
    assert store.num_tokens == 8
    assert store.draft("a", [15, 16, 17], 5).tokens == (18, 19)
    assert store.draft("a", [10, 11, 12], 5) == NOTHING
    store.add("a", [1, 2, 3])
    assert store.num_tokens == 8


def test_arrays_are_given_back_while_answers_come_and_go() -> None:
    store = AnswerStore(400)
    for i in range(300):
        store.add("a", [i, i + 1, i + 2, i + 3] * 20)
    index = store._groups["a"]
    assert store.num_tokens == len(index) == 324
    assert len(index._tokens) == len(index._back) < 2000
    assert len(index._latest) == 13  # of four answers: four kinds each, three of them also the next answer's
    assert store.draft("a", [299, 300, 301], 2).tokens == (302,)  # the latest occurrence, at the end


@pytest.mark.parametrize(
    ("evidence", "shared"), [(-1, False), (0, False), (49, False), (50, True), (56, True), (100, False)]
)
def test_evidence_says_where_a_draft_is_from(evidence: int, shared: bool) -> None:
    assert is_shared(evidence) is shared


def test_a_store_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="a store of 0 tokens holds nothing"):
        AnswerStore(0)
