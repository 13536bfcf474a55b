"""Strings of GGUF vocabularies, read natively."""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream._native import read_strings, split_merges

pytestmark = pytest.mark.fast


def stored(raw: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(struct.pack("<Q", len(each)) + each for each in raw), np.uint8)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_strings_come_back_and_end_where_they_end(strings: list[str], before: int) -> None:
    data = np.concatenate([np.zeros(before, np.uint8), stored([each.encode() for each in strings])])
    assert read_strings(data, before, len(strings)) == (strings, len(data))


@pytest.mark.parametrize(
    "data",
    [
        stored([b"a", b"bc"])[:-1],
        stored([b"a", b"bc"])[:12],
        stored([b"a", b"\xff\xfe"]),
        np.concatenate([stored([b"a"]), np.frombuffer(struct.pack("<Q", 2**64 - 1), np.uint8)]),
    ],
)
def test_reading_stops_before_a_string_that_is_not_whole_or_not_utf8(data: np.ndarray) -> None:
    assert read_strings(data, 0, 2) == (["a"], 9)


def test_nothing_is_read_from_behind_the_end() -> None:
    data = stored([b"a"])
    assert read_strings(data, 9, 1) == ([], 9)
    assert read_strings(data, 100, 1) == ([], 100)
    assert read_strings(data, 2**64 - 4, 1) == ([], 2**64 - 4)


def test_merges_become_pairs_of_known_tokens() -> None:
    vocab = {token: i for i, token in enumerate(["a", "é", "aé", "ab", "b"])}
    assert split_merges(["a é", "a b"], vocab) == [("a", "é"), ("a", "b")]
    for wrong in ("ab", "a b ", " a b", "a c", "b a", "c a", ""):
        assert split_merges(["a b", wrong, "a é"], vocab) == [("a", "b")]


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="resident memory is read as Linux tells it")
def test_free_memory_goes_back_to_the_system() -> None:
    program = (
        "from slipstream._native import return_free_memory\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1])\n"
        "held = [bytes(1000) for _ in range(100_000)]\n"
        "last = bytes(1000)\n"
        "del held\n"
        "before = resident()\n"
        "return_free_memory()\n"
        "print(before - resident())\n"
    )
    freed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    if platform.libc_ver()[0] == "glibc":
        assert int(freed) * os.sysconf("SC_PAGE_SIZE") > 50_000_000
