"""The native module against numpy and /proc/cpuinfo."""

from __future__ import annotations

import platform
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import _native

pytestmark = pytest.mark.fast

KNOWN = {
    "x86_64": (
        *("amx_bf16", "amx_int8", "amx_tile", "avx", "avx2", "avx512_bf16", "avx512_vnni", "avx512bw", "avx512dq"),
        *("avx512f", "avx512vl", "avx_vnni", "bmi2", "f16c", "fma", "sse4_2"),
    ),
    "aarch64": ("bf16", "dotprod", "fp16", "i8mm", "neon", "sve", "sve2"),
}
ALL_BITS = np.arange(1 << 16, dtype=np.uint16)


def test_cpu_features_agree_with_the_kernel() -> None:
    """The kernel lists what both the processor and itself support, which is what the probe promises."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    key = "flags" if platform.machine() == "x86_64" else "Features"
    kernel = set(next(line for line in lines if line.startswith(key)).partition(":")[2].split())
    kernel_names = {"neon": "asimd", "fp16": "asimdhp", "dotprod": "asimddp"}
    assert _native.cpu_features() == [
        name for name in KNOWN[platform.machine()] if kernel_names.get(name, name) in kernel
    ]


def test_f16_to_f32_is_exact_for_every_bit_pattern() -> None:
    out = np.empty(ALL_BITS.size, np.float32)
    _native.f16_to_f32(ALL_BITS, out)
    expected = ALL_BITS.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(out[number].view(np.uint32), expected[number].view(np.uint32))
    assert np.isnan(out[~number]).all()
    np.testing.assert_array_equal(np.signbit(out), ALL_BITS >= 0x8000)


def test_bf16_to_f32_is_exact_for_every_bit_pattern() -> None:
    out = np.empty(ALL_BITS.size, np.float32)
    _native.bf16_to_f32(ALL_BITS, out)
    np.testing.assert_array_equal(out.view(np.uint32), ALL_BITS.astype(np.uint32) << 16)


@settings(max_examples=40, deadline=None)
@given(heads=st.integers(1, 5), half=st.integers(0, 6), row_bytes=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_unpermute_rows_undoes_the_interleave(heads: int, half: int, row_bytes: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (heads * half * 2, row_bytes), dtype=np.uint8)
    interleaved = rows.reshape(heads, 2, half, row_bytes).swapaxes(1, 2).reshape(rows.shape)
    out = np.empty_like(rows)
    _native.unpermute_rows(np.ascontiguousarray(interleaved), out, heads)
    np.testing.assert_array_equal(out, rows)


def test_read_only_sources_are_read_and_read_only_targets_refused() -> None:
    source = np.zeros(4, np.uint16)
    source.flags.writeable = False
    target = np.ones(4, np.float32)
    _native.f16_to_f32(source, target)
    assert not target.any()
    target.flags.writeable = False
    with pytest.raises(TypeError):
        _native.f16_to_f32(source, target)


@pytest.mark.parametrize("convert", [_native.f16_to_f32, _native.bf16_to_f32])
def test_conversions_refuse_what_does_not_fit(convert: object) -> None:
    assert callable(convert)
    bits, out = np.zeros(6, np.uint16), np.zeros(6, np.float32)
    with pytest.raises(ValueError, match="same number of elements"):
        convert(bits[:5], out)
    for wrong in (bits.astype(np.int32), bits[::2], bits.reshape(2, 3), None):
        with pytest.raises(TypeError):
            convert(wrong, out)
    for wrong in (out.astype(np.float64), out[::2], out.reshape(2, 3)):
        with pytest.raises(TypeError):
            convert(bits, wrong)


def test_unpermute_rows_refuses_what_does_not_fit() -> None:
    rows = np.zeros((8, 3), np.uint8)
    with pytest.raises(ValueError, match="same shape"):
        _native.unpermute_rows(rows, np.zeros((8, 4), np.uint8), 2)
    for heads in (0, 3, 8):
        with pytest.raises(ValueError, match="multiple of 2"):
            _native.unpermute_rows(rows, np.zeros_like(rows), heads)
    with pytest.raises(ValueError, match="overlap"):
        _native.unpermute_rows(rows, rows, 2)
    with pytest.raises(TypeError):
        _native.unpermute_rows(rows, np.zeros((8, 3), np.int8), 2)
    with pytest.raises(TypeError):
        _native.unpermute_rows(rows, np.zeros_like(rows), -1)


def test_threads_convert_at_the_same_time() -> None:
    outs = [np.empty(ALL_BITS.size, np.float32) for _ in range(4)]
    threads = [threading.Thread(target=_native.bf16_to_f32, args=(ALL_BITS, out)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for out in outs:
        np.testing.assert_array_equal(out.view(np.uint32), ALL_BITS.astype(np.uint32) << 16)
