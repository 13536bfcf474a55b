"""The file of packed matrices: what goes in comes out, and no damage goes unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64

from slipstream.weights import packed_file
from slipstream.weights.packed_file import BrokenPackedFileError, PackedWriter, open_packed

pytestmark = pytest.mark.fast

CHUNK = 256


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "CHUNK", CHUNK)


def write(path: Path, sizes: list[int], key: str = "key") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(sizes))
    matrices = {f"m{i}": rng.integers(0, 256, size, dtype=np.uint8) for i, size in enumerate(sizes)}
    with path.open("wb") as file:
        writer = PackedWriter(file, key)
        for name, data in matrices.items():
            writer.add(name, "Q8_0", (len(data), 3), data)
        writer.finish()
    return matrices


@given(st.lists(st.integers(1, 3 * CHUNK), max_size=5))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_matrices_come_back_aligned_and_read_only(tmp_path: Path, sizes: list[int]) -> None:
    matrices = write(tmp_path / "f", sizes)
    found = open_packed(tmp_path / "f", "key")
    assert list(found.entries) == list(matrices)
    for name, data in matrices.items():
        assert found.entries[name][:2] == ("Q8_0", (len(data), 3))
        back = found.data(name)
        np.testing.assert_array_equal(back, data)
        assert back.ctypes.data % 64 == 0
        assert not back.flags.writeable


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_is_seen(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "f"
    write(path, [100, 700, 64])
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(BrokenPackedFileError):
        open_packed(path, "key")


def test_any_missing_end_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path, [100, 700])
    raw = path.read_bytes()
    for length in (*range(0, len(raw), 37), len(raw) - 1):
        path.write_bytes(raw[:length])
        with pytest.raises(BrokenPackedFileError):
            open_packed(path, "key")
    path.write_bytes(raw + b"\0")
    with pytest.raises(BrokenPackedFileError):
        open_packed(path, "key")


@pytest.mark.parametrize(
    "change",
    [
        lambda index: b"\xff",
        lambda index: b"[" * 100_000,
        lambda index: [],
        lambda index: {**index, "digests": None},
        lambda index: {**index, "tensors": {"0": 3}},
        lambda index: {**index, "tensors": {"0": ["F32", [1], "x", 4]}},
        lambda index: {**index, "tensors": {"0": ["F32", [1], 0, -64]}},
        lambda index: {**index, "tensors": {"0": ["F32", [1], 0, 4, 5]}},
    ],
)
def test_an_index_with_the_right_digest_and_no_sense_is_broken_too(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    path = tmp_path / "f"
    write(path, [100])
    raw, footer = path.read_bytes(), packed_file._FOOTER
    magic, size, _ = footer.unpack(raw[-footer.size :])
    start = len(raw) - footer.size - size
    changed = change(json.loads(raw[start : start + size]))
    index = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    path.write_bytes(raw[:start] + index + footer.pack(magic, len(index), xxh3_64(index).intdigest()))
    with pytest.raises(BrokenPackedFileError):
        open_packed(path, "key")


def test_another_key_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "f", [100])
    with pytest.raises(BrokenPackedFileError, match="another model or layout"):
        open_packed(tmp_path / "f", "other")


def test_of_a_large_file_successive_starts_check_every_chunk(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path, [8 * CHUNK - 128])
    raw = bytearray(path.read_bytes())
    raw[3 * CHUNK] ^= 1
    path.write_bytes(raw)
    seen = []
    for first in range(4):
        try:
            open_packed(path, "key", full_check=2 * CHUNK, first=first)
        except BrokenPackedFileError:
            seen.append(first)
    assert seen == [3]
    raw[3 * CHUNK] ^= 1
    raw[8 * CHUNK - 1] ^= 1  # the end of what is written last
    path.write_bytes(raw)
    for first in range(4):
        with pytest.raises(BrokenPackedFileError):
            open_packed(path, "key", full_check=2 * CHUNK, first=first)
