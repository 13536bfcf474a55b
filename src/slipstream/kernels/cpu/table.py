"""The op table whose ops record."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ConfigError
from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu import graph
from slipstream.kernels.cpu.graph import LOGITS, Node
from slipstream.kernels.cpu.native import Sampler, ThreadPool, kernel_sets
from slipstream.kernels.cpu.record import RecordedModel, evaluate
from slipstream.kernels.cpu.weights import (
    CpuMatrix,
    CpuRope,
    CpuVector,
    bind,
    bind_rope,
    bind_stored,
    from_packed,
    new_kv,
    packed_layout,
    to_packed,
)
from slipstream.kernels.sampling import SamplingOps
from slipstream.kernels.specs import ActivationKind, AttentionSpec
from slipstream.kernels.table import Kernels, PackedForms
from slipstream.kv.storage import KVStorage


def cpu_kernels(num_threads: int | None = None, *, instructions: str | None = None) -> Kernels:
    """A backend with a thread team of its own.

    Args:
        num_threads: size of the team; by default one per processor that this process may use.
        instructions: a name from `kernel_sets()`; by default the best that this processor has.

    Raises:
        ConfigError: a number of threads or an instruction set that is not to be had.
    """
    usable = kernel_sets()
    chosen = usable[0] if instructions is None else instructions
    if chosen not in usable:
        raise ConfigError(
            f"this processor does not run the {chosen} kernels.",
            where="instructions",
            fix=f"Choose {' or '.join(usable)}.",
        )
    threads = len(os.sched_getaffinity(0)) if num_threads is None else num_threads
    if threads < 1:
        raise ConfigError(f"{threads} threads cannot run anything.", where="num_threads", fix="Use 1 or more.")
    pool = ThreadPool(threads)

    def to_numpy(x: Node | NDArray[np.float32]) -> NDArray[np.float32]:
        return evaluate(x, pool, chosen) if isinstance(x, Node) else x

    sampler = Sampler(pool, chosen)

    def compile_model(model: Callable[[ForwardBatch, KVStorage], Node], kv: KVStorage) -> RecordedModel:
        return RecordedModel(model, kv, pool, chosen)

    return Kernels(
        name="cpu",
        bind=lambda kind, array: bind(kind, array, pool),
        bind_rope=bind_rope,
        new_kv=new_kv,
        to_numpy=to_numpy,
        embedding=_embedding,
        inputs=_inputs,
        linear=_linear,
        rms_norm=_rms_norm,
        head_rms_norm=_head_rms_norm,
        rope=_rope,
        attention=_attention,
        gated_activation=_gated_activation,
        add=_add,
        scale=_scale,
        soft_cap=_soft_cap,
        select_rows=_select_rows,
        moe_route=_moe_route,
        moe_experts=_moe_experts,
        bind_stored=lambda kind, dtype, shape, data: bind_stored(kind, dtype, shape, data, pool),
        packed=PackedForms(
            layout=lambda dtypes: packed_layout(dtypes, pool),
            to_bytes=to_packed,
            from_bytes=from_packed,
        ),
        compile=compile_model,
        sampling=SamplingOps(
            draw=sampler.draw,
            draw_reduced=sampler.draw_reduced,
            draw_processed=sampler.draw_processed,
            logprobs=sampler.logprobs,
        ),
    )


def _embedding(batch: ForwardBatch, table: CpuMatrix, scale: float) -> Node:
    return graph.Embedding((), table.columns, graph.TOKENS, batch, table, scale)


def _inputs(batch: ForwardBatch, columns: int) -> Node:
    return graph.Inputs((), columns, graph.TOKENS, batch)


def _linear(x: Node, weight: CpuMatrix, bias: CpuVector | None) -> Node:
    if weight.columns != x.columns:
        raise ValueError(f"a matrix of {weight.columns} columns cannot take {x.columns} features")
    return graph.Linear((x,), weight.rows, x.domain, x.batch, weight, bias)


def _rms_norm(x: Node, weight: CpuVector, eps: float) -> Node:
    return graph.RMSNorm((x,), x.columns, x.domain, x.batch, weight, eps)


def _head_rms_norm(x: Node, weight: CpuVector, head_dim: int, eps: float) -> Node:
    return graph.HeadNorm((x,), x.columns, x.domain, x.batch, weight, head_dim, eps)


def _rope(x: Node, batch: ForwardBatch, table: CpuRope, head_dim: int) -> Node:
    return graph.Rope((x,), x.columns, x.domain, batch, table, head_dim)


def _attention(
    q: Node, k: Node, v: Node, batch: ForwardBatch, kv: KVStorage, layer_index: int, spec: AttentionSpec
) -> Node:
    return graph.Attention((q, k, v), q.columns, q.domain, batch, kv, layer_index, spec)


def _gated_activation(gate: Node, up: Node, kind: ActivationKind) -> Node:
    return graph.GatedActivation((gate, up), gate.columns, gate.domain, gate.batch, kind)


def _add(x: Node, y: Node) -> Node:
    if (x.columns, x.domain) != (y.columns, y.domain):
        raise ValueError(f"tensors of {x.columns} and {y.columns} columns cannot be added")
    return graph.Add((x, y), x.columns, x.domain, x.batch)


def _scale(x: Node, factor: float) -> Node:
    return graph.Scale((x,), x.columns, x.domain, x.batch, factor)


def _soft_cap(x: Node, cap: float) -> Node:
    return graph.SoftCap((x,), x.columns, x.domain, x.batch, cap)


def _select_rows(x: Node, batch: ForwardBatch) -> Node:
    return graph.SelectRows((x,), x.columns, LOGITS, batch)


def _moe_route(logits: Node, top_k: int, normalise: bool) -> Node:
    if not 1 <= top_k <= logits.columns:
        raise ValueError(f"{top_k} experts per token out of {logits.columns}")
    return graph.Route((logits,), 2 * top_k, logits.domain, logits.batch, top_k, normalise)


def _moe_experts(
    x: Node, routing: Node, experts: Sequence[tuple[CpuMatrix, CpuMatrix, CpuMatrix]], kind: ActivationKind
) -> Node:
    if not isinstance(routing, graph.Route):
        raise ValueError("the routing of experts comes from moe_route")
    if len(experts) != routing.inputs[0].columns:
        raise ValueError(f"{len(experts)} experts, but the router scores {routing.inputs[0].columns}")
    return graph.Experts((x, routing), x.columns, x.domain, x.batch, tuple(experts), kind)
