from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.weights import dequantize as module
from slipstream.weights.dequantize import dequantize
from slipstream.weights.formats.ggml_types import GGML_TYPES, describe_type

from .files import QUANT_TYPES, SCALE_OFFSETS, random_blocks, reference_values

pytestmark = pytest.mark.fast


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(actual.view(np.uint32), expected.ravel().view(np.uint32))


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    for number, kind in GGML_TYPES.items():
        other = gguf.GGMLQuantizationType(number)
        assert (kind.name, (kind.block_size, kind.type_size)) == (other.name, gguf.GGML_QUANT_SIZES[other])


def test_types_that_are_not_supported_are_still_named() -> None:
    for other in gguf.GGMLQuantizationType:
        if other.value not in GGML_TYPES and other.value <= 40:
            assert describe_type(other.value) == f"{other.name} (type {other.value})"
    assert describe_type(12) == "Q4_K"
    assert describe_type(777) == "type 777"


@pytest.mark.parametrize("dtype", QUANT_TYPES)
@given(seed=st.integers(0, 2**32 - 1), num_blocks=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_random_blocks_give_the_reference_bits(dtype: str, seed: int, num_blocks: int) -> None:
    raw = random_blocks(dtype, (num_blocks, 256), np.random.default_rng(seed))
    assert_same_bits(dequantize(raw.ravel(), dtype), reference_values(raw, dtype))


@pytest.mark.parametrize("dtype", QUANT_TYPES)
def test_every_byte_value_in_every_place(dtype: str) -> None:
    """256 blocks, each filled with one byte value apart from its scales."""
    raw = random_blocks(dtype, (256, 256), np.random.default_rng(0))
    kind = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    blocks = raw.reshape(-1, kind[1])
    keep = blocks.copy()
    blocks[:] = np.arange(len(blocks), dtype=np.int64).astype(np.uint8)[:, None]
    for offset in SCALE_OFFSETS[dtype]:
        blocks[:, offset : offset + 2] = keep[:, offset : offset + 2]
    assert_same_bits(dequantize(raw.ravel(), dtype), reference_values(raw, dtype))


def test_floats() -> None:
    values = np.array([0.0, -0.0, 1.5, -3.25, 65504.0, 2.0**-24], np.float32)
    assert_same_bits(dequantize(values.view(np.uint8), "F32"), values)
    assert_same_bits(dequantize(values.astype(np.float16).view(np.uint8), "F16"), values)
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    assert_same_bits(dequantize(raw, "BF16"), reference_values(raw, "BF16"))


def test_bytes_need_no_alignment() -> None:
    values = np.array([1.5, -3.25], np.float32)
    shifted = np.concatenate([np.zeros(1, np.uint8), values.view(np.uint8)])[1:]
    assert_same_bits(dequantize(shifted, "F32"), values)


@pytest.mark.parametrize("dtype", QUANT_TYPES)
def test_chunks_change_nothing(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(dtype, (7, 256), np.random.default_rng(1)).ravel()
    whole = dequantize(raw, dtype)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 512)
    assert_same_bits(dequantize(raw, dtype), whole)


def test_a_part_of_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="19 bytes are not a whole number of Q4_0 blocks of 18 bytes"):
        dequantize(np.zeros(19, np.uint8), "Q4_0")


def test_an_infinite_scale_gives_values_that_are_not_finite_without_a_warning() -> None:
    raw = np.zeros(18, np.uint8)
    raw[:2] = np.array([np.inf], "<f2").view(np.uint8)
    raw[2] = 8
    values = dequantize(raw, "Q4_0")
    assert np.isnan(values[0])
    assert values[1] == -np.inf
