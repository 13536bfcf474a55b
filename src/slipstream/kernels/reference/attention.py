"""Causal attention over a paged KV cache.

Query tiles of QUERIES tokens meet key tiles of KEYS tokens that start at absolute positions 0, KEYS, 2 KEYS, ...
Each pair is a product of one fixed shape; the partial sums of the key tiles are added in order. The softmax maximum is
exact in any order, and a key tile outside a query's range contributes exactly zero, so neither the chunking of the
queries nor the length of the batch-mates changes a bit. Paged KV: Kwon et al., arXiv 2309.06180.
"""

from __future__ import annotations

import torch

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.reference.binding import KVLayer
from slipstream.kernels.reference.elementwise import soft_cap
from slipstream.kernels.reference.index import index
from slipstream.kernels.reference.tile import pad_last, pad_rows, round_up
from slipstream.kernels.specs import AttentionSpec
from slipstream.kv.storage import KVStorage

QUERIES = 16
KEYS = 64


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: ForwardBatch,
    kv: KVStorage,
    layer_index: int,
    spec: AttentionSpec,
) -> torch.Tensor:
    """q [T, H * D], k and v [T, K * D] -> [T, H * D]."""
    layer: KVLayer = kv.layers[layer_index]
    _write(layer.k, k, batch, spec)
    _write(layer.v, v, batch, spec)
    heads = q.reshape(-1, spec.num_heads, spec.head_dim)
    out = torch.empty_like(heads)
    for row in range(batch.num_rows):
        start, stop, length = int(batch.query_start[row]), int(batch.query_start[row + 1]), int(batch.kv_len[row])
        num_blocks = -(-length // kv.spec.block_size)
        blocks = index(batch.block_table[row, :num_blocks])
        keys, values = _gather(layer.k, blocks, length), _gather(layer.v, blocks, length)
        out[start:stop] = _attend(heads[start:stop], keys, values, length - (stop - start), spec)
    return out.reshape(q.shape)


def _write(cache: torch.Tensor, x: torch.Tensor, batch: ForwardBatch, spec: AttentionSpec) -> None:
    slots = index(batch.slots)
    cache.flatten(0, 1).index_copy_(0, slots, x.reshape(-1, spec.num_kv_heads, spec.head_dim).to(cache.dtype))


def _gather(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """-> [K, tiles, KEYS, D] float32; zero beyond `length`, whatever the blocks hold there."""
    tokens = pad_rows(cache.index_select(0, blocks).flatten(0, 1)[:length].float(), KEYS)
    return tokens.reshape(-1, KEYS, *tokens.shape[1:]).permute(2, 0, 1, 3)


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int, spec: AttentionSpec) -> torch.Tensor:
    """One row. q [n, H, D] at positions first ... first + n - 1 -> [n, H, D]."""
    keys = keys.transpose(2, 3).contiguous()  # [K, tiles, D, KEYS]
    values = pad_last(values).contiguous()  # [K, tiles, KEYS, D']
    parts = []
    for start in range(0, q.shape[0], QUERIES):
        tile = q[start : start + QUERIES]
        position = first + start
        low = 0 if spec.window is None else max(0, position - spec.window + 1) // KEYS
        high = round_up(position + len(tile), KEYS) // KEYS
        out = _tile(pad_rows(tile, QUERIES), keys[:, low:high], values[:, low:high], position, low * KEYS, spec)
        parts.append(out[: len(tile)])
    return torch.cat(parts)


def _tile(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, q_start: int, k_start: int, spec: AttentionSpec
) -> torch.Tensor:
    """q [QUERIES, H, D], keys [K, tiles, D, KEYS], values [K, tiles, KEYS, D'] -> [QUERIES, H, D]."""
    num_kv_heads, tiles = keys.shape[:2]
    group = spec.num_heads // num_kv_heads
    # [K, 1, group * QUERIES, D]: the query heads that share a KV head are rows of one product.
    grouped = q.reshape(QUERIES, num_kv_heads, group, -1).permute(1, 2, 0, 3)
    grouped = grouped.reshape(num_kv_heads, 1, group * QUERIES, -1)
    scores = torch.matmul(grouped, keys) * spec.scale  # [K, tiles, group * QUERIES, KEYS]
    if spec.soft_cap is not None:
        scores = soft_cap(scores, spec.soft_cap)
    scores = scores.reshape(num_kv_heads, tiles, group, QUERIES, KEYS)
    hidden = _hidden(tiles, q_start, k_start, spec.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    peak = scores.amax(dim=(1, 4), keepdim=True)
    weights = torch.exp(scores - peak).flatten(2, 3)
    sums = weights.sum(dim=-1, keepdim=True)  # [K, tiles, group * QUERIES, 1]
    products = torch.matmul(weights, values)  # [K, tiles, group * QUERIES, D']
    total, out = sums[:, 0], products[:, 0]
    for i in range(1, tiles):
        total = total + sums[:, i]
        out = out + products[:, i]
    out = (out / total)[..., : spec.head_dim]
    out = out.reshape(num_kv_heads, group, QUERIES, spec.head_dim).permute(2, 0, 1, 3)
    return out.reshape(QUERIES, spec.num_heads, spec.head_dim)


def _hidden(tiles: int, q_start: int, k_start: int, window: int | None) -> torch.Tensor:
    """-> bool [tiles, 1, QUERIES, KEYS]: the keys that a query must not see."""
    query = torch.arange(q_start, q_start + QUERIES)[:, None]
    key = torch.arange(k_start, k_start + tiles * KEYS).reshape(tiles, 1, 1, KEYS)
    hidden = key > query
    return hidden if window is None else hidden | (key <= query - window)
