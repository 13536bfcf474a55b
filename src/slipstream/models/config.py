"""What a model is, in numbers; the same whatever file it came from."""

from __future__ import annotations

from slipstream.errors import ModelFormatError
from slipstream.kernels.specs import ActivationKind, AttentionSpec
from slipstream.layers.rope import RopeConfig, is_usable
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Sparse layers. `sparse_layers` are the indices of the layers that have experts; the others are dense."""

    num_experts: int
    top_k: int
    intermediate_size: int  # of one expert
    normalise: bool  # divide the chosen experts' weights by their sum
    sparse_layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer.

    Attributes:
        windows: per layer, how many tokens a query sees (its own included); None sees all.
        rope: rotation of the layers that see all, and of windowed ones when `local_rope` is None.
        local_rope: rotation of the windowed layers.
        attention_scale: multiplies q . k; usually head_dim ** -0.5.
        attention_bias: whether the q, k and v projections have biases.
        qk_norm: whether every q and k head is RMS-normalised before the rotation.
        sandwich_norm: whether the outputs of attention and MLP are RMS-normalised too, before they are added.
        embedding_scale: multiplies the token embeddings.
        max_position_embeddings: context that the model was made for, in tokens.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope: RopeConfig
    windows: tuple[int | None, ...]
    attention_scale: float
    activation: ActivationKind = "silu"
    attention_bias: bool = False
    qk_norm: bool = False
    sandwich_norm: bool = False
    local_rope: RopeConfig | None = None
    embedding_scale: float = 1.0
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelFormatError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} KV heads evenly.")
        if len(self.windows) != self.num_layers:
            raise ModelFormatError(f"{len(self.windows)} layers are described, but the model has {self.num_layers}.")
        for rope in (self.rope, self.local_rope or self.rope):
            if not 0 < rope.rotary_dim <= self.head_dim or rope.rotary_dim % 2:
                raise ModelFormatError(f"{rope.rotary_dim} rotary dimensions do not fit a head of {self.head_dim}.")
            factors = rope.frequency_factors
            if factors is not None and len(factors) != rope.rotary_dim // 2:
                raise ModelFormatError(f"{len(factors)} rope frequency factors for {rope.rotary_dim // 2} pairs.")
            if not is_usable(rope, self.max_position_embeddings):
                raise ModelFormatError(
                    f"a {rope.kind} rotation of base {rope.theta} and factor {rope.factor} cannot be computed."
                )
        if self.rms_norm_eps < 0:
            raise ModelFormatError(f"the epsilon of the RMS norms must not be negative, but is {self.rms_norm_eps}.")
        if self.moe is not None and not 0 < self.moe.top_k <= self.moe.num_experts:
            raise ModelFormatError(f"{self.moe.top_k} experts per token out of {self.moe.num_experts}.")

    def attention_spec(self, layer: int) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.attention_scale,
            window=self.windows[layer],
            soft_cap=self.attention_soft_cap,
        )
