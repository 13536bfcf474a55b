"""Plain PyTorch: the definition of every op, written to be read and compared against.

The only room of the package that imports torch. Nothing here needs a gradient and no global torch setting is changed.
"""

from __future__ import annotations

from slipstream.kernels.reference.activation import gated_activation
from slipstream.kernels.reference.attention import attention
from slipstream.kernels.reference.binding import bind, bind_rope, new_kv, to_numpy
from slipstream.kernels.reference.elementwise import add, scale, soft_cap
from slipstream.kernels.reference.embedding import embedding, inputs, select_rows
from slipstream.kernels.reference.linear import linear
from slipstream.kernels.reference.moe import moe_experts, moe_route
from slipstream.kernels.reference.norm import head_rms_norm, rms_norm
from slipstream.kernels.reference.rope import rope
from slipstream.kernels.table import Kernels

__all__ = ["REFERENCE"]

REFERENCE = Kernels(
    name="reference",
    bind=bind,
    bind_rope=bind_rope,
    new_kv=new_kv,
    to_numpy=to_numpy,
    embedding=embedding,
    inputs=inputs,
    linear=linear,
    rms_norm=rms_norm,
    head_rms_norm=head_rms_norm,
    rope=rope,
    attention=attention,
    gated_activation=gated_activation,
    add=add,
    scale=scale,
    soft_cap=soft_cap,
    select_rows=select_rows,
    moe_route=moe_route,
    moe_experts=moe_experts,
)
