from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.bench import sse
from slipstream.bench.failure import FailedRequestError
from slipstream.bench.sse import EventReader

pytestmark = pytest.mark.fast


def read(*pieces: bytes) -> list[bytes]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_data_lines_make_an_event() -> None:
    assert read(b'data: {"a": 1}\n\ndata:x\n\n') == [b'{"a": 1}', b"x"]
    assert read(b"data: one\ndata:  two\ndata\n\n") == [b"one\n two\n"]


def test_other_fields_comments_and_empty_events_are_none() -> None:
    assert read(b": ping\n\nevent: done\nid: 1\nretry: 5\nunknown\n\n\n\ndatax: 1\n\ndata: y\n\n") == [b"y"]


def test_an_event_that_is_not_finished_is_none() -> None:
    assert read(b"data: x\n") == []
    assert read(b"data: x") == []


def test_a_byte_order_mark_is_passed_over_once() -> None:
    assert read(b"\xef", b"\xbb", b"\xbfdata: x\n\n") == [b"x"]
    assert read(b"data: \xef\xbb\xbfx\n\n") == [b"\xef\xbb\xbfx"]


@pytest.mark.parametrize("newline", [b"\n", b"\r", b"\r\n"])
def test_line_ends(newline: bytes) -> None:
    text = b"data: a" + newline + b"data: b" + newline * 2 + b"data: c" + newline * 2
    assert read(text) == [b"a\nb", b"c"]
    assert read(*(text[i : i + 1] for i in range(len(text)))) == [b"a\nb", b"c"]


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=8)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(texts, min_size=1, max_size=3), max_size=4),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.lists(st.integers(1, 7), max_size=60),
)
def test_however_a_stream_is_cut_its_events_are_the_same(
    events: list[list[str]], newline: str, sizes: list[int]
) -> None:
    written = "".join("".join(f"data: {line}{newline}" for line in lines) + newline for lines in events).encode()
    pieces, at = [], 0
    for size in sizes:
        pieces.append(written[at : at + size])
        at += size
    assert read(*pieces, written[at:]) == ["\n".join(lines).encode() for lines in events]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=10))
def test_any_bytes_can_be_read(pieces: list[bytes]) -> None:
    assert read(*pieces) == read(b"".join(pieces))


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    with pytest.raises(FailedRequestError, match="more than 100 bytes"):
        read(b"data: ", b"x" * 101)
