"""The ops a model is written in.

A backend is one frozen `Kernels` value. Models and layers call its ops and nothing else: a tensor, a weight or a KV
layer is whatever the backend made it, and only the backend looks inside. A backend may run the ops at once, or record
them: a forward has no control flow that depends on data, and reads index arrays only through its `ForwardBatch`.

Shapes: T tokens, R rows (sequences), L wanted logits, H query heads, K KV heads, D head size, E experts.
Activations are float32 [T, features] unless said otherwise.

Batch invariance: the numbers of a token depend only on that token and on what it attends to, bit for bit; never on the
other tokens of the batch, their order, the chunking, or the physical block ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.sampling import SamplingOps
from slipstream.kernels.specs import ActivationKind, AttentionSpec, RopeTable
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage

Tensor: TypeAlias = Any  # an activation, opaque outside the backend
Weight: TypeAlias = Any  # a bound weight, opaque outside the backend
Expert: TypeAlias = tuple[Weight, Weight, Weight]  # gate [I, hidden], up [I, hidden], down [hidden, I]


@dataclass(frozen=True, slots=True)
class PackedForms:
    """How a backend's matrices become bytes that can be kept in a file, and mapped from it."""

    layout: Callable[[Iterable[str]], str]
    """(GGUF type names): names the arrangement of the bytes that they are packed to; another one has another name."""

    to_bytes: Callable[[Weight], NDArray[np.uint8] | None]
    """(weight): its packed bytes, flat, without a copy; None for a weight that is no packed matrix."""

    from_bytes: Callable[[str, tuple[int, ...], NDArray[np.uint8]], Weight]
    """(GGUF type name, shape, packed bytes): the matrix over these bytes, without a copy. They start at a multiple of
    64, do not change, and 64 more can be read behind them. Raises ValueError for a wrong number of bytes."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """One backend's ops. All are positional."""

    name: str

    bind: Callable[[str, NDArray[np.float32]], Weight]
    """(kind, array): takes over a weight. Kinds: "linear" [out, in], "embedding" [vocab, hidden] (also usable as the
    weight of `linear`, for tied heads), "vector" [n]."""

    bind_rope: Callable[[RopeTable], Weight]
    """(table): the rotation table in the backend's form."""

    new_kv: Callable[[KVSpec, int], Sequence[Any]]
    """(spec, num_blocks): zeroed K and V of every layer, for `KVStorage`."""

    to_numpy: Callable[[Tensor], NDArray[np.float32]]
    """(x): a tensor's values on the host, float32."""

    embedding: Callable[[ForwardBatch, Weight, float], Tensor]
    """(batch, table, scale): rows of `table` at batch.token_ids, times scale -> [T, hidden]."""

    inputs: Callable[[ForwardBatch, int], Tensor]
    """(batch, n): batch.inputs -> [T, n]. At most once in a forward."""

    linear: Callable[[Tensor, Weight, Weight | None], Tensor]
    """(x [N, in], weight [out, in], bias [out] or None) -> x weight^T + bias, [N, out]."""

    rms_norm: Callable[[Tensor, Weight, float], Tensor]
    """(x [N, n], weight [n], eps) -> x / sqrt(mean(x^2) + eps) * weight. Zhang, Sennrich, arXiv 1910.07467."""

    head_rms_norm: Callable[[Tensor, Weight, int, float], Tensor]
    """(x [N, heads * D], weight [D], D, eps): rms_norm of each head by itself."""

    rope: Callable[[Tensor, ForwardBatch, Weight, int], Tensor]
    """(x [T, heads * D], batch, bound rope table, D): rotates every head by its token's batch.positions."""

    attention: Callable[[Tensor, Tensor, Tensor, ForwardBatch, KVStorage, int, AttentionSpec], Tensor]
    """(q [T, H * D], k [T, K * D], v [T, K * D], batch, kv, layer_index, spec): writes k and v to the paged cache at
    batch.slots, then attends causally over what each row's blocks hold -> [T, H * D]."""

    gated_activation: Callable[[Tensor, Tensor, ActivationKind], Tensor]
    """(gate [N, I], up [N, I], kind) -> act(gate) * up. GLU variants: Shazeer, arXiv 2002.05202."""

    add: Callable[[Tensor, Tensor], Tensor]
    """(x, y) of one shape -> x + y."""

    scale: Callable[[Tensor, float], Tensor]
    """(x, factor) -> x * factor."""

    soft_cap: Callable[[Tensor, float], Tensor]
    """(x, cap) -> cap * tanh(x / cap)."""

    select_rows: Callable[[Tensor, ForwardBatch], Tensor]
    """(x [T, n], batch) -> the rows batch.logits_rows, [L, n]."""

    moe_route: Callable[[Tensor, int, bool], Tensor]
    """(router logits [T, E], k, normalise): softmax over all experts, the k largest (the lower index first among
    equals), divided by their sum when `normalise` -> opaque routing."""

    moe_experts: Callable[[Tensor, Tensor, Sequence[Expert], ActivationKind], Tensor]
    """(x [T, hidden], routing, E experts, kind) -> sum of the chosen experts' gated MLPs times their weights."""

    bind_stored: Callable[[str, str, tuple[int, ...], NDArray[np.uint8]], Weight | None] | None = None
    """(kind, GGUF type name, shape, bytes): takes over a weight as a file stores it, flat bytes, rows in Hugging Face
    order; None when it wants `bind` with the values instead. Raises ValueError for numbers that are not finite."""

    packed: PackedForms | None = None
    """Set by a backend that repacks matrices."""

    compile: Callable[[Callable[[ForwardBatch, KVStorage], Tensor], KVStorage], Callable[..., Tensor]] | None = None
    """(model, kv): the same model, faster, for this `kv` alone; a model may give a tuple, logits first. None: call the
    model as it is. Its result holds until the next call."""

    sampling: SamplingOps | None = None
    """None: the definitions in NumPy are carried out as they are."""
