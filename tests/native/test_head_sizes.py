"""Every head size that models have, with the norms and rotations that attention takes over."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.select import ModelNeeds, backend_refusals, select_kernels
from slipstream.kernels.specs import AttentionSpec, RopeTable
from slipstream.kernels.table import Kernels
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage
from tests.native.packed import Floats
from tests.native.test_attention import QKV, random_qkv, rows_batch

pytestmark = pytest.mark.fast
K = cpu_kernels(2)
REFERENCE = select_kernels("reference")
LENGTH = 45


def attend(kernels: Kernels, qkv: QKV, spec: AttentionSpec, chunk: int, norm: Floats, table: RopeTable) -> Floats:
    """One sequence in chunks; q and k are normalised and rotated first."""
    kv_spec = KVSpec(1, spec.num_kv_heads, spec.head_dim, 16, "float32")
    kv = KVStorage(kv_spec, 3, kernels.new_kv(kv_spec, 3))
    weight, rope, out = kernels.bind("vector", norm), kernels.bind_rope(table), []
    for start in range(0, LENGTH, chunk):
        batch = rows_batch([([2, 0, 1], start, min(LENGTH, start + chunk))], 16)
        q, k, v = (
            kernels.embedding(batch, kernels.bind("embedding", each[start : start + chunk].copy()), 1.0) for each in qkv
        )
        q, k = (
            kernels.rope(kernels.head_rms_norm(x, weight, spec.head_dim, 1e-6), batch, rope, spec.head_dim)
            for x in (q, k)
        )
        out.append(kernels.to_numpy(kernels.attention(q, k, v, batch, kv, 0, spec)))
    return np.concatenate(out)


@pytest.mark.parametrize("head_dim", range(32, 257, 8))
def test_attention(head_dim: int) -> None:
    spec = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=head_dim, scale=head_dim**-0.5)
    assert backend_refusals(ModelNeeds(head_dim))["cpu"] is None
    qkv = random_qkv(LENGTH, spec, head_dim)
    norm = np.random.default_rng(head_dim).standard_normal(head_dim).astype(np.float32)
    angles = np.arange(LENGTH)[:, None] * 100.0 ** -(np.arange(head_dim // 2) / (head_dim // 2))
    table = RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    whole = attend(K, qkv, spec, LENGTH, norm, table)
    np.testing.assert_array_equal(attend(K, qkv, spec, 1, norm, table), whole)
    expected = attend(REFERENCE, qkv, spec, LENGTH, norm, table)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
