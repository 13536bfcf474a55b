"""Tokens into text, stop strings and deltas, without an engine."""

from __future__ import annotations

import pytest
from core_fakes import Letters

from slipstream.engine.completion import Completion, TextAssembler
from slipstream.engine.request import FinishReason, make_request
from slipstream.engine.scheduler import RequestUpdate
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


class Pieces(Letters):
    """Tokens that are no whole characters, and a special one."""

    special_ids = frozenset({3})
    pieces = (b"a", "é".encode()[:1], "é".encode()[1:], b"<s>", b"bc", b"b")

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def assembler(tokenizer: object | None = None, **params: object) -> TextAssembler:
    return TextAssembler(tokenizer or Pieces(), SamplingParams(**params), ())  # type: ignore[arg-type]


def test_half_a_character_waits_for_the_other_half() -> None:
    text = assembler()
    assert [text.push([0]), text.push([1]), text.push([2])] == [("a", 1), ("", 1), ("é", 1)]
    assert text.push([1]) == ("", 1)
    assert text.flush() == "\N{REPLACEMENT CHARACTER}"


def test_special_tokens_are_shown_on_demand() -> None:
    assert assembler().push([0, 3]) == ("a", 2)
    assert assembler(skip_special_tokens=False).push([0, 3]) == ("a<s>", 2)


def test_tokens_behind_the_stop_string_are_not_used() -> None:
    text = assembler(stop="ab")
    assert text.push([0, 4, 0, 0]) == ("", 2)
    assert (text.stopped_by, text.flush()) == ("ab", "")
    text = assembler(stop="ab", include_stop_str_in_output=True)
    assert text.push([0, 0, 4, 0]) == ("aab", 3)


def test_a_possible_beginning_is_held_back_until_it_is_none_or_the_end() -> None:
    text = assembler(stop="aab")
    assert [text.push([0]), text.push([0]), text.push([0]), text.push([2, 2])] == [
        ("", 1),
        ("", 1),
        ("a", 1),
        ("aa\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}", 2),
    ]
    text.push([0])
    assert text.flush() == "a"


def test_a_stop_string_completed_only_by_the_flush_counts() -> None:
    text = assembler(stop="a\N{REPLACEMENT CHARACTER}")
    assert text.push([5, 0, 1]) == ("b", 3)
    assert (text.flush(), text.stopped_by) == ("", "a\N{REPLACEMENT CHARACTER}")


def test_the_first_min_tokens_tokens_are_not_searched() -> None:
    text = assembler(stop="a", min_tokens=2)
    assert text.push([0, 0, 5]) == ("aab", 3)
    assert text.push([5, 0, 5]) == ("b", 2)
    assert text.stopped_by == "a"
    # A match may not begin in them either.
    text = assembler(stop="ab", min_tokens=1)
    assert text.push([0, 5, 5]) == ("abb", 3)
    text = assembler(stop="a", min_tokens=3)
    assert (text.push([0, 0]), text.flush(), text.stopped_by) == (("aa", 2), "", None)


def test_without_a_tokenizer_there_is_no_text() -> None:
    text = TextAssembler(None, SamplingParams(), ())
    assert (text.push([1, 2, 3]), text.flush()) == (("", 3), "")


def completion(*, eos: tuple[int, ...] = (), tokenizer: object | None = None, **params: object) -> Completion:
    request = make_request("r", (1,), SamplingParams(**params), max_model_len=99, arrival=0.0)  # type: ignore[arg-type]
    text = TextAssembler(tokenizer or Letters(), request.params, ())  # type: ignore[arg-type]
    return Completion(request, "caller", 2, text, eos)


def end(target: Completion, reason: FinishReason, stop_token: int | None = None) -> None:
    target.request.finish_reason, target.request.stop_token = reason, stop_token
    target.request.stats.first_token, target.request.stats.finished = 1.0, 4.0


@pytest.mark.parametrize(("eos", "stop_reason"), [((3,), None), ((), 3)])
def test_a_stop_token_is_among_the_ids_but_not_in_the_text(eos: tuple[int, ...], stop_reason: int | None) -> None:
    target = completion(eos=eos)
    delta, over = target.advance(RequestUpdate(target.request, (1, 2, 3), finish_reason="stop"))
    end(target, "stop", 3)
    last = target.last(delta)
    assert over
    assert (last.text, last.token_ids, last.finish_reason, last.stop_reason) == ("bc", (1, 2, 3), "stop", stop_reason)
    assert (last.request_id, last.index) == ("caller", 2)
    assert last.stats is not None
    assert (last.stats.num_output_tokens, last.stats.tpot, last.stats.e2e) == (3, 1.5, 4.0)


@pytest.mark.parametrize("reason", ["abort", "deadline", "error"])
def test_a_request_that_was_ended_is_not_called_stopped(reason: FinishReason) -> None:
    target = completion(stop="cd")
    assert target.advance(RequestUpdate(target.request, (1, 2)))[0].text == "b"
    delta, over = target.advance(RequestUpdate(target.request, finish_reason=reason))
    end(target, reason)
    last = target.last(delta)
    assert (over, last.text, last.finish_reason, last.stop_reason) == (True, "c", reason, None)


@pytest.mark.parametrize(("ended", "reason"), [("abort", "abort"), ("error", "error"), ("length", "stop")])
def test_a_stop_string_that_the_end_itself_completes(ended: FinishReason, reason: FinishReason) -> None:
    target = completion(tokenizer=Pieces(), stop="a\N{REPLACEMENT CHARACTER}")
    target.advance(RequestUpdate(target.request, (0, 1)))
    delta, over = target.advance(RequestUpdate(target.request, finish_reason=ended))
    end(target, ended)
    last = target.last(delta)
    assert (over, last.text, last.finish_reason) == (True, "", reason)
    assert last.stop_reason == ("a\N{REPLACEMENT CHARACTER}" if reason == "stop" else None)


def test_a_stop_string_beats_the_length_limit_and_time_per_token_counts_what_is_shown() -> None:
    target = completion(stop="cd")
    delta, over = target.advance(RequestUpdate(target.request, (1, 2, 3, 4), finish_reason="length"))
    end(target, "length")
    last = target.last(delta)
    assert (over, last.text, last.token_ids, last.finish_reason) == (True, "b", (1, 2, 3), "stop")
    assert last.stop_reason == "cd"
    assert last.stats is not None
    assert last.stats.tpot == 1.5
