from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.bench.words import WORDS, Calibration
from slipstream.bench.workload import Mixed, SharedPrefix, Source, parse_lengths
from slipstream.bench.workload_files import read_chats, read_trace
from slipstream.errors import UsageError

pytestmark = pytest.mark.fast

SOURCE = Source(seed=1, salt="s", calibration=Calibration(fixed=3.0, per_word=1.25))


def test_every_class_has_an_equal_share() -> None:
    mixed = Mixed(parse_lengths("10-20:1-4,50:5,100-200:6-9"), SOURCE)
    items = [mixed.item(0, index) for index in range(300)]
    assert Counter(item.group for item in items) == {"short": 100, "medium": 100, "long": 100}
    for start in range(0, 300, 3):
        assert {item.group for item in items[start : start + 3]} == {"short", "medium", "long"}
    assert {item.max_tokens for item in items if item.group == "short"} == {1, 2, 3, 4}
    assert [item.group for item in items] != [item.group for item in items[:3]] * 100


def test_an_item_depends_on_nothing_but_its_place() -> None:
    mixed = Mixed(parse_lengths("10-20:1-4"), SOURCE)
    assert mixed.item(2, 7) == mixed.item(2, 7)
    assert mixed.item(2, 7) != mixed.item(1, 7)
    prompts = {mixed.item(level, index).prompt for level in range(3) for index in range(100)}
    assert len(prompts) == 300


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2000), st.floats(0, 40), st.floats(0.5, 4))
def test_calibration_comes_as_near_as_whole_words_can(tokens: int, fixed: float, per_word: float) -> None:
    calibration = Calibration(fixed, per_word)
    words = calibration.words(tokens)
    assert words >= 1
    if tokens > fixed + per_word:
        assert abs(fixed + per_word * words - tokens) <= per_word / 2 + 1e-9


def test_calibration_from_two_prompts() -> None:
    assert Calibration.fit((16, 23), (80, 103)) == Calibration(3.0, 1.25)
    with pytest.raises(ValueError, match="tokens per word"):
        Calibration.fit((16, 20), (80, 20))


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) > 150
    assert all(word.isalpha() and word.islower() for word in WORDS)


def test_prompts_of_a_group_begin_alike_and_differ() -> None:
    shared = SharedPrefix(4, 128, (10, 20), (5, 9), SOURCE)
    items = [shared.item(0, index) for index in range(80)]
    by_group: dict[str, list[str]] = {}
    for item in items:
        assert isinstance(item.prompt, str)
        by_group.setdefault(item.group, []).append(item.prompt)
    assert len(by_group) == 4
    for prompts in by_group.values():
        assert len({tuple(prompt.split()[:100]) for prompt in prompts}) == 1
        assert len(set(prompts)) == len(prompts)
    assert shared.item(0, 0).prompt != shared.item(1, 0).prompt


def trace(tmp_path: Path, text: str, **options):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return read_trace(path, SOURCE, **options)


def test_a_trace_is_put_in_the_order_of_time(tmp_path: Path) -> None:
    text = (
        "\ufeffTIMESTAMP,GeneratedTokens,ContextTokens,Other\n"
        "2023-11-16 18:17:05.5000000,7,70,x\n\n2023-11-16 18:17:03.9799600,10,4808,y\n2023-11-16T18:17:04+00:00,1,2,z\n"
    )
    found = trace(tmp_path, text)
    assert [(row.prompt_tokens, row.output_tokens) for row in found.rows] == [(4808, 10), (2, 1), (70, 7)]
    assert [row.due for row in found.rows] == pytest.approx([0.0, 0.02004, 1.52004], abs=1e-6)
    item = found.item(0, 1)
    assert (item.max_tokens, item.due) == (1, pytest.approx(0.02004, abs=1e-6))
    assert (found.item(0, 4).max_tokens, found.item(0, 4).due) == (1, None)
    assert found.describe()["rows"] == "3"


def test_a_cap_shortens_the_prompt_first(tmp_path: Path) -> None:
    found = trace(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n0,1000,10\n1,3,900\n", cap=103)
    assert [found.item(0, n).max_tokens for n in (0, 1)] == [10, 51]
    assert [len(str(found.item(0, n).prompt).split()) for n in (0, 1)] == [SOURCE.calibration.words(93), 1]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "has no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens\n", "has no column GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "line 2: has 2 fields"),
        (f"TIMESTAMP,ContextTokens,GeneratedTokens\n{'1' * 200000},2,3\n", "field larger than"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,2,3\n", "line 2: 'noon' is neither"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnan,2,3\n", "line 2: 'nan' is not a time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,0,3\n", "line 2: '0' is not a number of tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,-3\n", "line 2: '-3' is not"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,99999999999999999999\n", "is not a number of tokens"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        trace(tmp_path, text)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=9))
def test_any_trace_reads_back(rows: list[tuple[float, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"{time!r},{prompt},{output}" for time, prompt, output in rows]
        found = trace(Path(folder), "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines))
    wanted = sorted(rows, key=lambda row: row[0])
    assert [row.due for row in found.rows] == pytest.approx([row[0] - wanted[0][0] for row in wanted])
    assert [(row.prompt_tokens, row.output_tokens) for row in found.rows] == [row[1:] for row in wanted]


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=120))
def test_any_file_is_a_trace_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + data)
        with contextlib.suppress(UsageError):
            assert read_trace(path, SOURCE).rows


def chats(tmp_path: Path, text: str, salt: str = "s"):
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    return read_chats(path, Source(0, salt), default_tokens=99)


def test_chats_are_made_new_and_come_around(tmp_path: Path) -> None:
    text = '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}\n\n' + json.dumps(
        {"messages": [{"role": "user", "content": "V"}], "max_tokens": 7, "model": "ignored"}
    )
    found = chats(tmp_path, text)
    items = [found.item(0, index) for index in range(4)]
    assert [item.max_tokens for item in items] == [99, 7, 99, 7]
    assert items[0].prompt[1] == {"role": "user", "content": "U"}
    assert items[0].prompt[0]["content"].endswith(") S")
    assert items[0].prompt[0] != items[2].prompt[0]
    plain = chats(tmp_path, text, salt="").item(0, 3)
    assert plain.prompt == [{"role": "user", "content": "V"}]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "holds no chat"),
        ("{}\n", 'line 1: holds no "messages"'),
        ("\n[1]", "line 2: holds no"),
        ("{broken", "line 1: is not valid JSON"),
        ("[" * 100000, "line 1: is not valid JSON"),
        ('{"messages": []}', "holds no"),
        ('{"messages": [{"role": "user"}]}', "holds no"),
        ('{"messages": [{"role": 1, "content": "x"}]}', "holds no"),
        ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "max_tokens is 0"),
        ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": true}', "max_tokens is True"),
    ],
)
def test_what_is_no_chat_is_refused_with_its_line(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        chats(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", SOURCE)
    (tmp_path / "x.jsonl").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not valid UTF-8"):
        read_chats(tmp_path / "x.jsonl", SOURCE, default_tokens=1)
