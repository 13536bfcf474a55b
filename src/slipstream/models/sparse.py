"""The parts of mixture-of-experts models that families share: configuration, tensor slots, feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipstream.errors import UnsupportedModelError
from slipstream.kernels.table import Kernels, Tensor
from slipstream.layers.linear import Linear
from slipstream.layers.mlp import GatedMLP
from slipstream.layers.moe import MoE
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.lean import dataclass
from slipstream.models import gguf, tensors
from slipstream.models.config import ModelConfig, MoEConfig
from slipstream.models.decoder import CausalLM, build_pre_norm
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.slots import TensorSlot


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """A sparse layer's tensors: {block}.gate.weight (router) and {block}.experts.N.{gate, up, down}.weight."""

    block: str
    gate: str
    up: str
    down: str


def gguf_moe(checkpoint: Checkpoint, layers: Iterable[int], *, intermediate_size: int) -> MoEConfig:
    """The experts of `layers`, each of `intermediate_size`; the chosen ones' weights are normalised, as these
    architectures have it.

    Raises UnsupportedModelError for any other routing, and for experts in separate tensors.
    """
    config = gguf.reader(checkpoint)
    config.require("expert_shared_count", 0)
    config.require("expert_group_count", 0, 1)
    config.require("expert_gating_func", 1)  # softmax
    config.require("expert_weights_scale", 0.0, 1.0)
    config.require("expert_weights_norm", True)
    separate = "blk.0.ffn_gate.0.weight"
    if separate in checkpoint.tensors:
        raise UnsupportedModelError(
            f"the experts are stored one by one ({separate}), as files of before April 2024 have them.",
            where=str(checkpoint.path),
            fix="Use a newer conversion, whose experts are stacked (blk.0.ffn_gate_exps.weight).",
        )
    return MoEConfig(
        num_experts=config.integer("expert_count"),
        top_k=config.integer("expert_used_count"),
        intermediate_size=intermediate_size,
        normalise=True,
        sparse_layers=frozenset(layers),
    )


def slots(config: ModelConfig, names: ExpertNames, *, interleaved_rows: bool = False) -> tuple[TensorSlot, ...]:
    """Everything of a pre-norm model whose layers have experts (sparse_layers) or are dense (the others)."""
    moe = _moe(config)

    def feed_forward(config: ModelConfig, layer: int) -> list[TensorSlot]:
        if layer not in moe.sparse_layers:
            return tensors.mlp_slots(config, layer)
        return _expert_slots(config.hidden_size, moe, names, layer)

    return tensors.pre_norm_slots(config, interleaved_rows=interleaved_rows, feed_forward=feed_forward)


def _expert_slots(hidden: int, moe: MoEConfig, names: ExpertNames, layer: int) -> list[TensorSlot]:
    hf, blk = f"model.layers.{layer}.{names.block}", f"blk.{layer}"
    wide = moe.intermediate_size
    router = TensorSlot(f"{hf}.gate.weight", (moe.num_experts, hidden), "linear", f"{blk}.ffn_gate_inp.weight")
    parts = (
        (names.gate, "ffn_gate_exps", (wide, hidden)),
        (names.up, "ffn_up_exps", (wide, hidden)),
        (names.down, "ffn_down_exps", (hidden, wide)),
    )
    return [router] + [
        TensorSlot(f"{hf}.experts.{expert}.{part}.weight", shape, "linear", f"{blk}.{stack}.weight", gguf_expert=expert)
        for expert in range(moe.num_experts)
        for part, stack, shape in parts
    ]


def build(
    config: ModelConfig, kernels: Kernels, weights: Weights, shard: Shard, max_position: int, names: ExpertNames
) -> CausalLM:
    """A whole pre-norm model with such layers."""
    moe = _moe(config)

    def feed_forward(layer: int, own: Weights) -> Callable[[Tensor], Tensor]:
        if layer not in moe.sparse_layers:
            return GatedMLP(kernels, own.at("mlp"), config.activation, shard)
        block = own.at(names.block)
        experts = [block.at(f"experts.{expert}") for expert in range(moe.num_experts)]
        return MoE(
            kernels,
            Linear.load(kernels, block.at("gate")),
            [(one[f"{names.gate}.weight"], one[f"{names.up}.weight"], one[f"{names.down}.weight"]) for one in experts],
            top_k=moe.top_k,
            normalise=moe.normalise,
            kind=config.activation,
            shard=shard,
        )

    return build_pre_norm(config, kernels, weights, shard, max_position, feed_forward)


def _moe(config: ModelConfig) -> MoEConfig:
    if config.moe is None:
        raise ValueError("a sparse model needs config.moe")
    return config.moe
