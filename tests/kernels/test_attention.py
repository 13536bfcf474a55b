"""Paged attention against a dense computation in float64, and exactness under any batching."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.select import select_kernels
from slipstream.kernels.specs import AttentionSpec
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage
from tests.kernels.batches import int32

pytestmark = pytest.mark.fast
K = select_kernels("reference")
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=6, scale=0.4)


def qkv(length: int, spec: AttentionSpec, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    widths = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    q, k, v = (rng.standard_normal((length, n * spec.head_dim)).astype(np.float32) for n in widths)
    return torch.from_numpy(q), torch.from_numpy(k), torch.from_numpy(v)


def storage(spec: AttentionSpec, block_size: int, num_blocks: int, dtype: str = "float32") -> KVStorage:
    kv_spec = KVSpec(1, spec.num_kv_heads, spec.head_dim, block_size, dtype)
    kv = KVStorage(kv_spec, num_blocks, K.new_kv(kv_spec, num_blocks))
    kv.layers[0].k.fill_(float("nan"))  # what nobody wrote must not matter
    kv.layers[0].v.fill_(float("nan"))
    return kv


def one_row(blocks: list[int], block_size: int, start: int, stop: int) -> ForwardBatch:
    positions = list(range(start, stop))
    return ForwardBatch(
        token_ids=int32([0] * len(positions)),
        positions=int32(positions),
        slots=int32([blocks[p // block_size] * block_size + p % block_size for p in positions]),
        query_start=int32([0, len(positions)]),
        kv_len=int32([stop]),
        block_table=int32(blocks)[None],
        logits_rows=int32([]),
    )


def run(
    tensors: tuple[torch.Tensor, ...], spec: AttentionSpec, block_size: int, chunk: int, seed: int | None = None
) -> torch.Tensor:
    """One sequence in chunks of `chunk`, in shuffled blocks when a seed is given."""
    length = len(tensors[0])
    count = -(-length // block_size)
    blocks = np.random.default_rng(seed).permutation(count).tolist() if seed is not None else list(range(count))
    kv = storage(spec, block_size, count)
    parts = []
    for start in range(0, length, chunk):
        stop = min(length, start + chunk)
        q, k, v = (t[start:stop] for t in tensors)
        parts.append(K.attention(q, k, v, one_row(blocks, block_size, start, stop), kv, 0, spec))
    return torch.cat(parts)


def dense(tensors: tuple[torch.Tensor, ...], spec: AttentionSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    q, k, v = (t.double().numpy().reshape(len(t), -1, spec.head_dim) for t in tensors)
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


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        dataclasses.replace(SPEC, num_kv_heads=4),
        dataclasses.replace(SPEC, num_kv_heads=1, head_dim=16),
        dataclasses.replace(SPEC, window=1),
        dataclasses.replace(SPEC, window=17),
        dataclasses.replace(SPEC, window=100),
        dataclasses.replace(SPEC, soft_cap=0.7),
        dataclasses.replace(SPEC, soft_cap=2.0, window=30),
    ],
    ids=str,
)
def test_equals_dense_attention(spec: AttentionSpec) -> None:
    tensors = qkv(140, spec)
    np.testing.assert_allclose(run(tensors, spec, 16, 140).numpy(), dense(tensors, spec), atol=2e-6)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 150),
    chunk=st.integers(1, 60),
    block_size=st.sampled_from([1, 5, 16, 32]),
    window=st.sampled_from([None, 1, 3, 64, 90]),
    kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([2, 6, 16, 20]),
    seed=st.integers(0, 99),
)
def test_chunks_and_shuffled_blocks_change_no_bit(
    length: int, chunk: int, block_size: int, window: int | None, kv_heads: int, head_dim: int, seed: int
) -> None:
    spec = AttentionSpec(4, kv_heads, head_dim, 0.3, window)
    tensors = qkv(length, spec, seed)
    assert torch.equal(run(tensors, spec, block_size, chunk, seed), run(tensors, spec, block_size, length))


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    lengths, block_size = (70, 1, 33), 8
    sequences = [qkv(n, SPEC, seed) for seed, n in enumerate(lengths)]
    tables, offset = [], 0
    for n in lengths:
        count = -(-n // block_size)
        tables.append(list(range(offset, offset + count)))
        offset += count
    rows = [one_row(table, block_size, 0, n) for table, n in zip(tables, lengths, strict=True)]
    width = max(map(len, tables))
    batch = ForwardBatch(
        token_ids=np.concatenate([row.token_ids for row in rows]),
        positions=np.concatenate([row.positions for row in rows]),
        slots=np.concatenate([row.slots for row in rows]),
        query_start=int32([0, *np.cumsum(lengths).tolist()]),
        kv_len=int32(lengths),
        block_table=np.array([table + [-1] * (width - len(table)) for table in tables], dtype=np.int32),
        logits_rows=int32([]),
    )
    q, k, v = (torch.cat(parts) for parts in zip(*sequences, strict=True))
    together = K.attention(q, k, v, batch, storage(SPEC, block_size, offset), 0, SPEC)
    alone = torch.cat([run(sequence, SPEC, block_size, 99) for sequence in sequences])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrow_cache_rounds_and_stays_exact_under_chunking(dtype: str) -> None:
    q, k, v = qkv(40, SPEC)
    narrow = getattr(torch, dtype)
    rounded = (q, k.to(narrow).float(), v.to(narrow).float())
    kv = storage(SPEC, 8, 5, dtype)
    parts = []
    for start, stop in ((0, 13), (13, 40)):
        batch = one_row([4, 2, 0, 1, 3], 8, start, stop)
        parts.append(K.attention(q[start:stop], k[start:stop], v[start:stop], batch, kv, 0, SPEC))
    assert torch.equal(torch.cat(parts), run(rounded, SPEC, 8, 40))
