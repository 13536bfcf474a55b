"""Native paged attention against float64, and the same bits under any batching."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import kernel_sets
from slipstream.kernels.specs import AttentionSpec
from slipstream.kernels.table import Kernels
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage
from tests.kernels.batches import int32
from tests.native.packed import Floats

pytestmark = pytest.mark.fast
K = cpu_kernels(2)
OTHERS = [cpu_kernels(1), cpu_kernels(3), *(cpu_kernels(1, instructions=name) for name in kernel_sets()[1:])]
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.3)
QKV = tuple[Floats, Floats, Floats]


def random_qkv(length: int, spec: AttentionSpec, seed: int = 0) -> QKV:
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal((length, n * spec.head_dim)).astype(np.float32)
        for n in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    )
    return q, k, v


def storage(
    kernels: Kernels, spec: AttentionSpec, block_size: int, num_blocks: int, dtype: str = "float32"
) -> KVStorage:
    kv_spec = KVSpec(1, spec.num_kv_heads, spec.head_dim, block_size, dtype)
    kv = KVStorage(kv_spec, num_blocks, kernels.new_kv(kv_spec, num_blocks))
    cache = kv.layers[0].cache
    cache.fill(np.nan if cache.dtype == np.float32 else 0x7FFF)  # NaN: what nobody wrote must not matter
    return kv


def rows_batch(rows: Sequence[tuple[list[int], int, int]], block_size: int) -> ForwardBatch:
    """One row per (blocks, start, stop); the token ids count up over the batch."""
    positions = [p for _, start, stop in rows for p in range(start, stop)]
    slots = [blocks[p // block_size] * block_size + p % block_size for blocks, a, b in rows for p in range(a, b)]
    width = max(len(blocks) for blocks, _, _ in rows)
    return ForwardBatch(
        token_ids=int32(range(len(positions))),
        positions=int32(positions),
        slots=int32(slots),
        query_start=int32(np.cumsum([0, *(b - a for _, a, b in rows)]).tolist()),
        kv_len=int32([stop for _, _, stop in rows]),
        block_table=np.array([blocks + [-1] * (width - len(blocks)) for blocks, _, _ in rows], np.int32),
        logits_rows=int32([]),
    )


def attend(kernels: Kernels, parts: QKV, batch: ForwardBatch, kv: KVStorage, spec: AttentionSpec) -> Floats:
    tensors = [kernels.embedding(batch, kernels.bind("embedding", each), 1.0) for each in parts]
    return kernels.to_numpy(kernels.attention(*tensors, batch, kv, 0, spec))


def run(
    kernels: Kernels,
    qkv: QKV,
    spec: AttentionSpec,
    block_size: int,
    chunk: int,
    *,
    seed: int | None = None,
    dtype: str = "float32",
) -> Floats:
    """One sequence in chunks of `chunk`, in shuffled blocks when a seed is given."""
    length = len(qkv[0])
    count = -(-length // block_size)
    blocks = list(range(count)) if seed is None else np.random.default_rng(seed).permutation(count).tolist()
    kv = storage(kernels, spec, block_size, count, dtype)
    out = []
    for start in range(0, length, chunk):
        stop = min(length, start + chunk)
        batch = rows_batch([(blocks, start, stop)], block_size)
        q, k, v = (each[start:stop] for each in qkv)
        out.append(attend(kernels, (q, k, v), batch, kv, spec))
    return np.concatenate(out)


def dense(qkv: QKV, spec: AttentionSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    q, k, v = (each.astype(np.float64).reshape(len(each), -1, spec.head_dim) for each in qkv)
    group = spec.num_heads // spec.num_kv_heads
    out = np.zeros_like(q)
    for position in range(len(q)):
        low = 0 if spec.window is None else max(0, position - spec.window + 1)
        for head in range(spec.num_heads):
            keys, values = k[low : position + 1, head // group], v[low : position + 1, head // group]
            scores = keys @ q[position, head] * spec.scale
            if spec.soft_cap is not None:
                scores = np.tanh(scores / spec.soft_cap) * spec.soft_cap
            weights = np.exp(scores - scores.max())
            out[position, head] = weights @ values / weights.sum()
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 300])
@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        dataclasses.replace(SPEC, num_heads=2, head_dim=8),
        dataclasses.replace(SPEC, num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125),
        dataclasses.replace(SPEC, num_heads=4, num_kv_heads=1, head_dim=256, scale=0.06),
        dataclasses.replace(SPEC, num_heads=7, num_kv_heads=1, head_dim=40),
        dataclasses.replace(SPEC, num_heads=8, num_kv_heads=1, head_dim=24),
        dataclasses.replace(SPEC, window=1),
        dataclasses.replace(SPEC, window=17),
        dataclasses.replace(SPEC, window=280),
        dataclasses.replace(SPEC, soft_cap=0.7),
        dataclasses.replace(SPEC, soft_cap=2.0, window=30),
    ],
    ids=str,
)
def test_equals_dense_attention(spec: AttentionSpec, length: int) -> None:
    qkv = random_qkv(length, spec)
    np.testing.assert_allclose(run(K, qkv, spec, 16, length), dense(qkv, spec), rtol=1e-5, atol=3e-6)


@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(1, 600),
    chunk=st.integers(1, 200),
    block_size=st.sampled_from([1, 5, 8, 16, 32, 64]),
    window=st.sampled_from([None, 1, 3, 64, 257, 300]),
    heads=st.sampled_from([(4, 1), (4, 2), (3, 1), (5, 1), (2, 2)]),
    head_dim=st.sampled_from([8, 32, 40]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    seed=st.integers(0, 99),
)
def test_chunks_and_shuffled_blocks_change_no_bit(
    length: int,
    chunk: int,
    block_size: int,
    window: int | None,
    heads: tuple[int, int],
    head_dim: int,
    dtype: str,
    seed: int,
) -> None:
    spec = AttentionSpec(*heads, head_dim, 0.3, window)
    qkv = random_qkv(length, spec, seed)
    whole = run(K, qkv, spec, 16, length, dtype=dtype)
    np.testing.assert_array_equal(
        run(K, qkv, spec, block_size, max(chunk, length // 20), seed=seed, dtype=dtype), whole
    )
    for other in OTHERS:
        np.testing.assert_array_equal(run(other, qkv, spec, 8, max(chunk, length // 3), dtype=dtype), whole)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_decoding_one_by_one_is_prefill(dtype: str) -> None:
    """Over the borders of chunks and of the window, with the work split between threads and without."""
    spec = dataclasses.replace(SPEC, window=270)
    qkv = random_qkv(540, spec)
    whole = run(K, qkv, spec, 16, 540, dtype=dtype)
    kv = storage(K, spec, 16, 34, dtype)
    blocks = list(range(34))
    for start, stop, step in ((0, 250, 250), (250, 275, 1), (275, 508, 233), (508, 516, 1), (516, 540, 8)):
        for first in range(start, stop, step):
            q, k, v = (each[first : first + step] for each in qkv)
            out = attend(K, (q, k, v), rows_batch([(blocks, first, first + step)], 16), kv, spec)
            np.testing.assert_array_equal(out, whole[first : first + step])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrow_cache_rounds_to_nearest(dtype: str) -> None:
    q, k, v = random_qkv(40, SPEC)

    def narrow(x: Floats) -> Floats:
        if dtype == "float16":
            return x.astype(np.float16).astype(np.float32)
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)

    expected = run(K, (q, narrow(k), narrow(v)), SPEC, 8, 40)
    np.testing.assert_array_equal(run(K, (q, k, v), SPEC, 8, 40, dtype=dtype), expected)


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    """Prefill, verification and decode rows of one ragged batch give what each gives alone."""
    block_size, lengths, cached = 8, (70, 1, 300, 33), (0, 0, 299, 28)
    sequences = [random_qkv(n, SPEC, seed) for seed, n in enumerate(lengths)]
    tables, offset = [], 0
    for n in lengths:
        tables.append(list(range(offset, offset + -(-n // block_size))))
        offset += len(tables[-1])
    kv = storage(K, SPEC, block_size, offset, "float16")
    for qkv, table, n in zip(sequences, tables, cached, strict=True):
        if n:
            q, k, v = (each[:n] for each in qkv)
            attend(K, (q, k, v), rows_batch([(table, 0, n)], block_size), kv, SPEC)
    rows = list(zip(tables, cached, lengths, strict=True))
    q, k, v = (np.concatenate([s[i][c:] for s, c in zip(sequences, cached, strict=True)]) for i in range(3))
    together = attend(K, (q, k, v), rows_batch(rows, block_size), kv, SPEC)
    alone = [run(K, s, SPEC, 16, 99, dtype="float16")[c:] for s, c in zip(sequences, cached, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 12), ((1, 1), 264)])
def test_head_sizes_without_a_kernel_are_named(heads: tuple[int, int], head_dim: int) -> None:
    spec = AttentionSpec(*heads, head_dim, 1.0)
    with pytest.raises(ConfigError, match=f"head size {head_dim} is not a multiple of 8 up to 256"):
        run(K, random_qkv(2, spec), spec, 16, 2)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = random_qkv(50, SPEC)
    out = run(K, (q * 1e4, k * 1e3, v), SPEC, 16, 50)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out, dense((q * 1e4, k * 1e3, v), SPEC), rtol=1e-4, atol=1e-4)
