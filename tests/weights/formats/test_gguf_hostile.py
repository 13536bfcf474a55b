"""Files that are damaged or made to do harm: one typed error each, at no more cost than the file's own size."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.errors import ModelFormatError
from slipstream.weights.formats.gguf import open_gguf

from ..files import entry, pair, random_blocks, raw_gguf, string, write_gguf  # noqa: TID252

pytestmark = pytest.mark.fast

F32, Q4_0 = 0, 2
HUGE = 2**63
ONE = entry("w", [4], F32, 0)
DATA = bytes(64)


def array(element: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", element, count) + data


CASES = {
    "empty": (b"", "the file is empty"),
    "magic": (raw_gguf([ONE], magic=b"GGML"), r"begins with b'GGML'"),
    "version 1": (raw_gguf([ONE], version=1), "GGUF version 1; versions 2 and 3"),
    "version 4": (raw_gguf([ONE], version=4), "GGUF version 4"),
    "big endian": (raw_gguf([ONE], version=3 << 24), "big-endian"),
    "tensor count": (raw_gguf([ONE], num_tensors=HUGE), f"claims {HUGE} tensors"),
    "tensor count beyond the file": (raw_gguf([ONE], num_tensors=1000), "claims 1000 tensors, more than"),
    "pair count": (raw_gguf([ONE], num_pairs=HUGE), f"claims {HUGE} metadata entries"),
    "key length": (raw_gguf([], pairs=[struct.pack("<QQ", HUGE, 0)]), f"a metadata key needs {HUGE} bytes"),
    "key text": (raw_gguf([], pairs=[pair(b"\xff\xfe", 0, b"1")]), "a metadata key at byte 32 is not valid UTF-8"),
    "key twice": (raw_gguf([ONE], pairs=[pair("k", 0, b"1"), pair("k", 0, b"2")]), "key k appears twice"),
    "value type": (raw_gguf([], pairs=[pair("k", 99, b"1")]), "value of k has the unknown type 99"),
    "value text": (raw_gguf([], pairs=[pair("k", 8, string(b"\xc3"))]), "value of k at byte .* not valid UTF-8"),
    "boolean": (raw_gguf([], pairs=[pair("k", 7, b"\2")]), "value of k is a boolean with the value 2"),
    "booleans": (raw_gguf([], pairs=[pair("k", 9, array(7, 2, b"\1\5"))]), "booleans with the value 5"),
    "array type": (raw_gguf([], pairs=[pair("k", 9, array(55, 1, b"1"))]), "array of the unknown type 55"),
    "array of arrays": (raw_gguf([], pairs=[pair("k", 9, array(9, 1, array(0, 1, b"1")))]), "array of arrays"),
    "array length": (raw_gguf([], pairs=[pair("k", 9, array(4, HUGE))]), f"claims {HUGE} elements"),
    "array beyond the file": (raw_gguf([], pairs=[pair("k", 9, array(4, 1 << 20))]), "needs 4194304 bytes"),
    "strings beyond the file": (raw_gguf([], pairs=[pair("k", 9, array(8, 1 << 20))]), "needs 8388608 bytes"),
    "string beyond the file": (
        raw_gguf([], pairs=[pair("k", 9, array(8, 1, struct.pack("<Q", HUGE)))]),
        f"value of k needs {HUGE + 8} bytes",
    ),
    "string text": (
        raw_gguf([], pairs=[pair("k", 9, array(8, 2, string("ok") + string(b"\x80")))]),
        "value of k: element 1 is not valid UTF-8",
    ),
    "tensor name text": (raw_gguf([entry(b"\xff", [4], F32, 0)], data=DATA), "a tensor name .* not valid UTF-8"),
    "no dimensions": (raw_gguf([entry("w", [], F32, 0)], data=DATA), "tensor w has 0 dimensions"),
    "many dimensions": (raw_gguf([entry("w", [1] * 5, F32, 0)], data=DATA), "tensor w has 5 dimensions"),
    "dimension of zero": (raw_gguf([entry("w", [4, 0], F32, 0)], data=DATA), r"dimension of zero \(1\): w\."),
    "sizes that overflow": (raw_gguf([entry("w", [HUGE, HUGE], F32, 0)], data=DATA), r"past the end .* \(1\): w\."),
    "types": (
        raw_gguf([entry("a", [4], 16, 0), ONE, entry("b", [4], 777, 0)], data=DATA),
        r"type that is not supported \(2\): a is IQ2_XXS \(type 16\), b is type 777\..*Supported are F32",
    ),
    "name twice": (raw_gguf([ONE, ONE], data=DATA), r"more than once \(1\): w\."),
    "parts of blocks": (
        raw_gguf([entry("w", [48], Q4_0, 0)], data=DATA),
        r"not whole blocks \(1\): w \(rows of 48, Q4_0 blocks of 32\)",
    ),
    "misaligned": (raw_gguf([entry("w", [4], F32, 8)], data=DATA), r"not aligned to 32 bytes \(1\): w\."),
    "offset outside": (raw_gguf([entry("w", [4], F32, 1 << 40)], data=DATA), r"past the end .* \(1\): w\."),
    "offset that wraps": (raw_gguf([entry("w", [4], F32, 2**64 - 32)], data=DATA), r"past the end .* \(1\): w\."),
    "overlap": (
        raw_gguf([entry("a", [16], F32, 0), entry("b", [8], F32, 32)], data=DATA),
        r"overlap \(1\): a with b\.",
    ),
    "alignment": (raw_gguf([ONE], pairs=[pair("general.alignment", 4, struct.pack("<I", 24))]), "alignment is 24"),
    "alignment of zero": (raw_gguf([ONE], pairs=[pair("general.alignment", 4, bytes(4))]), "alignment is 0"),
    "alignment as text": (raw_gguf([ONE], pairs=[pair("general.alignment", 8, string("x"))]), "alignment is 'x'"),
    "huge alignment": (
        raw_gguf([ONE], pairs=[pair("general.alignment", 4, struct.pack("<I", 1 << 31))], data=DATA),
        r"past the end",
    ),
    "vocabulary only": (raw_gguf([], pairs=[pair("k", 0, b"1")]), "holds no tensors, only metadata"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(tmp_path: Path, case: str) -> None:
    content, message = CASES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError, match=message) as caught:
            open_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(str(path))
    assert peak < 2_000_000


def test_the_well_formed_file_beside_them_opens(tmp_path: Path) -> None:
    """What every case above is one step away from."""
    path = tmp_path / "good.gguf"
    path.write_bytes(raw_gguf([ONE, entry("b", [8], F32, 32)], pairs=[pair("k", 7, b"\1")], data=DATA))
    checkpoint = open_gguf(path)
    assert dict(checkpoint.metadata) == {"k": True}
    np.testing.assert_array_equal(checkpoint.read("b"), np.zeros(8, np.float32))


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(raw_gguf([ONE], version=2, data=DATA))
    assert list(open_gguf(path).tensors) == ["w"]


def test_long_lists_of_names_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw_gguf([entry(f"t{k}", [4], 99, 0) for k in range(50)], data=DATA))
    with pytest.raises(ModelFormatError, match=r"\(50\): t0 is type 99, .* t19 is type 99 and 30 more\."):
        open_gguf(path)


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw_gguf([entry("\x1b[31mred\n", [4], 99, 0)], data=DATA))
    with pytest.raises(ModelFormatError) as caught:
        open_gguf(path)
    assert r"\x1b[31mred\n is type 99" in str(caught.value)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("gguf") / "valid.gguf"
    tensors = {"a.weight": random_blocks("Q4_K", (2, 256), rng), "b.weight": rng.normal(size=(3, 8)).astype(np.float32)}
    metadata = {"tokens": ["<s>", "a", "ü"], "ids": [1, 2, 3], "flag": True, "scale": 0.5, "name": "x"}
    return write_gguf(path, tensors, types={"a.weight": "Q4_K"}, metadata=metadata).read_bytes()


def test_every_truncation_is_refused(tmp_path: Path, valid: bytes) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(valid)
    data_end = open_gguf(path)._tensors._places["b.weight"][1] + 3 * 8 * 4
    for length in range(data_end):
        path.write_bytes(valid[:length])
        with pytest.raises(ModelFormatError):
            open_gguf(path)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_headers_never_raise_anything_else(tmp_path: Path, valid: bytes, data: st.DataObject) -> None:
    header_size = len(valid) - 2 * 144 - 96
    content = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header_size - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        checkpoint = open_gguf(path)
    except ModelFormatError:
        return
    for name, info in checkpoint.tensors.items():
        assert checkpoint.read(name).shape == info.shape
