"""The native call of each node, with everything that was fused into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ConfigError
from slipstream.kernels.cpu.fuse import Fusion, HeadPrologue, RowChain
from slipstream.kernels.cpu.graph import (
    TOKENS,
    Add,
    Attention,
    Embedding,
    Experts,
    GatedActivation,
    HeadNorm,
    Inputs,
    Linear,
    Node,
    RMSNorm,
    Rope,
    Route,
    Scale,
    SelectRows,
    SoftCap,
)
from slipstream.kernels.cpu.native import PackedMatrix, Program
from slipstream.kernels.cpu.weights import CpuKVLayer

Place = tuple[int, int]  # buffer, column
Floats = NDArray[np.float32]
Segment = tuple[PackedMatrix, Floats | None, Place, Place, float]  # matrix, bias, residual, out, cap
Prologue = tuple[Floats | None, float, tuple[Floats, Floats, bool] | None]
NOWHERE: Place = (-1, 0)


class Places:
    """Where every stored tensor lies."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Node, str], int] = {}

    def put(self, key: tuple[Node, str], buffer: int) -> None:
        self._buffers[key] = buffer

    def get(self, key: tuple[Node, str]) -> int:
        return self._buffers[key]

    def rows(self, node: Node) -> Place:
        return self._buffers[node, "rows"], 0

    def maybe_rows(self, node: Node | None) -> Place:
        return NOWHERE if node is None or (node, "rows") not in self._buffers else self.rows(node)

    def tiles(self, node: Node) -> int:
        return self._buffers[node, "tiles"]

    def maybe_tiles(self, node: Node) -> int:
        return self._buffers.get((node, "tiles"), -1)


def emit(node: Node, members: Sequence[Node], fusion: Fusion, program: Program) -> Callable[[Places], None]:
    """The call for `node`; `members` are the products that it leads."""

    def call(places: Places) -> None:
        if isinstance(node, Embedding):
            program.embed(node.table.packed, node.scale, places.rows(node))
        elif isinstance(node, Linear):
            _products([(each, None, each) for each in members if isinstance(each, Linear)], places, program)
        elif isinstance(node, Add) and node in fusion.residual_linear:
            product, other = fusion.residual_linear[node]
            _products([(product, other, node)], places, program)
        elif isinstance(node, SoftCap) and node in fusion.capped:
            _products([(fusion.capped[node], None, node)], places, program, node.cap)
        elif isinstance(node, GatedActivation) and node in fusion.gated:
            gate, up = fusion.gated[node]
            out, tiles = places.maybe_rows(node), places.maybe_tiles(node)
            x = places.tiles(gate.inputs[0])
            program.linear_gated(node.domain, x, gate.weight.packed, up.weight.packed, node.kind, out, tiles)
        elif isinstance(node, RMSNorm):
            _row_chain(node, fusion.chains[node], places, program)
        elif isinstance(node, Attention):
            _attention(node, fusion, places, program)
        else:
            _single(node, places, program)

    return call


def _products(
    parts: Sequence[tuple[Linear, Node | None, Node]], places: Places, program: Program, cap: float = 0.0
) -> None:
    first = parts[0][0]
    segments: list[Segment] = []
    for product, residual, out in parts:
        bias = None if product.bias is None else product.bias.values
        target = places.rows(residual) if residual is not None else NOWHERE
        segments.append((product.weight.packed, bias, target, places.rows(out), cap))
    x = first.inputs[0]
    tiles, rows = (places.tiles(x), NOWHERE) if first.quantized else (-1, places.rows(x))
    program.linear(first.domain, tiles, rows, segments)


def _row_chain(node: RMSNorm, chain: RowChain, places: Places, program: Program) -> None:
    post, residual = chain.post, chain.residual
    program.token(
        node.domain,
        node.columns,
        places.rows(chain.source),
        chain.gather,
        None if post is None else post.weight.values,
        0.0 if post is None else post.eps,
        chain.scale,
        NOWHERE if residual is None else places.rows(residual),
        NOWHERE if chain.sum is None else places.rows(chain.sum),
        node.weight.values,
        node.eps,
        places.maybe_rows(node),
        places.maybe_tiles(node),
    )


def _attention(node: Attention, fusion: Fusion, places: Places, program: Program) -> None:
    spec, kv = node.spec, node.kv
    q, k = fusion.prologues[node]
    layer = kv.layers[node.layer_index]
    if not isinstance(layer, CpuKVLayer):
        raise ConfigError("the KV cache was made by another backend.", where="the cpu backend")
    program.attention(
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        spec.scale,
        spec.window or 0,
        spec.soft_cap or 0.0,
        places.rows(q.source),
        places.rows(k.source),
        places.rows(node.inputs[2]),
        places.rows(node),
        places.maybe_tiles(node),
        _prologue(q),
        _prologue(k),
        kv.spec.dtype,
        kv.spec.block_size,
        kv.num_blocks,
        layer.cache,
    )


def _prologue(p: HeadPrologue) -> Prologue:
    norm = None if p.norm is None else p.norm.weight.values
    return norm, 0.0 if p.norm is None else p.norm.eps, None if p.rope is None else p.rope.table.native


def _single(node: Node, places: Places, program: Program) -> None:
    """A node that nothing was fused into."""
    if isinstance(node, Inputs):
        return  # `run` fills its buffer
    out = places.rows(node) if not isinstance(node, GatedActivation) else places.maybe_rows(node)
    source = places.rows(node.inputs[0])
    if isinstance(node, SoftCap):
        program.soft_cap(node.domain, node.columns, node.cap, source, out)
    elif isinstance(node, Add | Scale | SelectRows):
        other = places.rows(node.inputs[1]) if isinstance(node, Add) else NOWHERE
        factor = node.factor if isinstance(node, Scale) else 1.0
        gather = isinstance(node, SelectRows)
        program.token(node.domain, node.columns, source, gather, None, 0.0, factor, other, NOWHERE, None, 0.0, out, -1)
    elif node.domain != TOKENS:
        raise ConfigError(
            f"the cpu backend has no native form of the op {type(node).__name__} on selected rows.",
            where="backend",
            fix="Use backend=reference.",
        )
    elif isinstance(node, GatedActivation):
        up = places.rows(node.inputs[1])
        program.gate(node.columns, node.kind, source, up, out, places.maybe_tiles(node))
    elif isinstance(node, HeadNorm):
        program.head_norm(node.columns, node.head_dim, source, out, node.weight.values, node.eps)
    elif isinstance(node, Rope):
        program.rope(node.columns, node.head_dim, source, out, node.table.native)
    elif isinstance(node, Route):
        program.route(node.inputs[0].columns, node.top_k, node.normalise, source, out)
    elif isinstance(node, Experts):
        matrices = [(gate.packed, up.packed, down.packed) for gate, up, down in node.experts]
        routing = node.inputs[1]
        program.experts(routing.columns // 2, node.kind, source, places.rows(routing), out, matrices)
    else:
        raise AssertionError(f"no lowering for {type(node).__name__}")
