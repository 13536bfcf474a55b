from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec.suffix import BYTES_PER_TOKEN, SuffixAutomaton


def automaton_of(tokens: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(tokens)
    return automaton


def longest_repeated_suffix(tokens: list[int]) -> int:
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        if any(tokens[i : i + length] == suffix for i in range(len(tokens) - length)):
            return length
    return 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_longest_match_is_the_longest_at_every_length(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for count, token in enumerate(tokens, 1):
        automaton.extend([token])
        expected = longest_repeated_suffix(tokens[:count])
        found = automaton.matches(1, 1000)
        assert (found[0][0] if found else 0) == expected
        assert automaton.longest(1, 1000) == (found[0] if found else None)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=80))
def test_every_match_is_an_earlier_occurrence(tokens: list[int]) -> None:
    automaton = automaton_of(tokens)
    found = automaton.matches(1, 1000)
    assert [length for length, _ in found] == sorted((length for length, _ in found), reverse=True)
    assert len({end for _, end in found}) == len(found)
    for length, end in found:
        assert end < len(tokens) - 1
        assert tokens[end - length + 1 : end + 1] == tokens[len(tokens) - length :]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60))
def test_one_by_one_and_at_once_are_the_same(tokens: list[int]) -> None:
    one_by_one = SuffixAutomaton()
    for token in tokens:
        one_by_one.extend([token])
    assert one_by_one.matches(1, 9) == automaton_of(tokens).matches(1, 9)


def test_limits_of_the_match_length() -> None:
    automaton = automaton_of([1, 2, 3, 4, 9, 1, 2, 3, 4])
    assert automaton.matches(4, 8) == [(4, 3)]
    assert automaton.matches(5, 8) == []
    assert automaton.matches(2, 3) == [(3, 3)]
    assert automaton_of([]).matches(1, 9) == []
    assert automaton_of([5]).longest(1, 9) is None


def test_the_recent_occurrence_is_preferred() -> None:
    automaton = automaton_of([1, 2, 7, 1, 2, 8, 1, 2])
    [(length, end)] = automaton.matches(2, 9)
    assert (length, automaton.continuation(end, 1)) == (2, (8,))


def test_a_loop_is_continued_as_a_loop() -> None:
    automaton = automaton_of([9, 1, 2, 3, 1, 2, 3])
    [(length, end), *_] = automaton.matches(1, 9)
    assert length == 3
    assert automaton.continuation(end, 7) == (1, 2, 3, 1, 2, 3, 1)


def test_continuation_inside_the_sequence() -> None:
    automaton = automaton_of([1, 2, 3, 4, 5, 1])
    [(_, end)] = automaton.matches(1, 9)
    assert automaton.continuation(end, 3) == (2, 3, 4)


def test_size_is_linear() -> None:
    tokens = [(i * i) % 7 for i in range(2000)]
    automaton = automaton_of(tokens)
    assert automaton.num_states <= 2 * len(tokens)


@pytest.mark.parametrize("kind", ["words", "loop", "noise", "few"])
def test_memory_is_what_the_plan_counts(kind: str) -> None:
    rng = random.Random(0)
    draw = {
        "words": lambda i: int(rng.paretovariate(0.6)) % 40_000,  # few words are frequent and many are rare
        "loop": lambda i: i % 9,
        "noise": lambda i: rng.randrange(40_000),
        "few": lambda i: rng.randrange(50),
    }[kind]
    tokens = [draw(i) for i in range(6000)]
    automaton = automaton_of(tokens)
    assert len(automaton) == len(tokens)
    assert 20 * len(tokens) < automaton.nbytes <= 1.3 * BYTES_PER_TOKEN * len(tokens)
