"""The frame that decoder-only families share: embed, layers, norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.errors import ConfigError
from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.table import Kernels, Tensor, Weight
from slipstream.kv.storage import KVStorage
from slipstream.layers.attention import Attention
from slipstream.layers.embedding import Embedding, LMHead
from slipstream.layers.mlp import GatedMLP
from slipstream.layers.norm import RMSNorm
from slipstream.layers.rope import rope_table
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.models.config import ModelConfig
from slipstream.models.family import StatesModel

Layer = Callable[[Tensor, ForwardBatch, KVStorage], Tensor]


class CausalLM:
    """model(batch, kv) -> logits [L, vocab] float32 of batch.logits_rows, an opaque tensor of the backend."""

    def __init__(
        self,
        config: ModelConfig,
        kernels: Kernels,
        embedding: Embedding,
        layers: Sequence[Layer],
        norm: RMSNorm,
        head: LMHead,
    ) -> None:
        self.config = config
        self._kernels = kernels
        self.embedding = embedding
        self._layers = tuple(layers)
        self._norm = norm
        self._head = head

    def __call__(self, batch: ForwardBatch, kv: KVStorage) -> Tensor:
        return self._forward(batch, kv, ())[0]

    def hidden_states(self, batch: ForwardBatch, kv: KVStorage) -> Tensor:
        """See `Model.hidden_states`."""
        return self._through_layers(batch, kv)[-1]

    def with_hidden_states(self, after: Sequence[int]) -> StatesModel:
        """See `Model.with_hidden_states`."""
        wanted = tuple(after)
        if not wanted or min(wanted) < 0 or max(wanted) >= len(self._layers):
            raise ConfigError(f"the model has the layers 0 to {len(self._layers) - 1}.", where=f"layers {wanted}")

        def forward(batch: ForwardBatch, kv: KVStorage) -> tuple[Tensor, ...]:
            return self._forward(batch, kv, wanted)

        return forward

    def _forward(self, batch: ForwardBatch, kv: KVStorage, after: tuple[int, ...]) -> tuple[Tensor, ...]:
        states = self._through_layers(batch, kv, after)
        logits = self._head(self._norm(self._kernels.select_rows(states[-1], batch)))
        return (logits, *states[:-1])

    def _through_layers(self, batch: ForwardBatch, kv: KVStorage, after: tuple[int, ...] = ()) -> list[Tensor]:
        """[T, hidden] behind each layer of `after`, then behind the last one."""
        x = self.embedding(batch)
        states = {}
        for index, layer in enumerate(self._layers):
            x = layer(x, batch, kv)
            if index in after:
                states[index] = x
        return [*[states[index] for index in after], x]


class PreNormLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self,
        kernels: Kernels,
        attention_norm: RMSNorm,
        attention: Attention,
        mlp_norm: RMSNorm,
        mlp: Callable[[Tensor], Tensor],
    ) -> None:
        self._add = kernels.add
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp

    def __call__(self, x: Tensor, batch: ForwardBatch, kv: KVStorage) -> Tensor:
        x = self._add(x, self._attention(self._attention_norm(x), batch, kv))
        return self._add(x, self._mlp(self._mlp_norm(x)))


class SandwichNormLayer:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))). Sandwich norm: Ding et al., arXiv 2105.13290."""

    def __init__(
        self,
        kernels: Kernels,
        attention_norm: RMSNorm,
        attention: Attention,
        attention_out_norm: RMSNorm,
        mlp_norm: RMSNorm,
        mlp: Callable[[Tensor], Tensor],
        mlp_out_norm: RMSNorm,
    ) -> None:
        self._add = kernels.add
        self._attention_norm = attention_norm
        self._attention = attention
        self._attention_out_norm = attention_out_norm
        self._mlp_norm = mlp_norm
        self._mlp = mlp
        self._mlp_out_norm = mlp_out_norm

    def __call__(self, x: Tensor, batch: ForwardBatch, kv: KVStorage) -> Tensor:
        x = self._add(x, self._attention_out_norm(self._attention(self._attention_norm(x), batch, kv)))
        return self._add(x, self._mlp_out_norm(self._mlp(self._mlp_norm(x))))


def build_decoder(config: ModelConfig, kernels: Kernels, weights: Weights, layers: Sequence[Layer]) -> CausalLM:
    """The frame around finished layers, with the usual names."""
    table = weights["model.embed_tokens.weight"]
    return CausalLM(
        config,
        kernels,
        Embedding(kernels, table, config.embedding_scale),
        layers,
        RMSNorm(kernels, weights["model.norm.weight"], config.rms_norm_eps),
        LMHead(kernels, table if config.tie_word_embeddings else weights["lm_head.weight"], config.final_soft_cap),
    )


def build_pre_norm(
    config: ModelConfig,
    kernels: Kernels,
    weights: Weights,
    shard: Shard,
    max_position: int,
    mlp: Callable[[int, Weights], Callable[[Tensor], Tensor]] | None = None,
) -> CausalLM:
    """A whole model of pre-norm layers; `mlp(index, layer weights)` makes their feed-forward part, by default dense."""
    ropes = layer_ropes(config, kernels, max_position)
    layers: list[Layer] = []
    for index in range(config.num_layers):
        own = weights.at(f"model.layers.{index}")
        layers.append(
            PreNormLayer(
                kernels,
                RMSNorm(kernels, own["input_layernorm.weight"], config.rms_norm_eps),
                _attention(config, kernels, own, shard, index, ropes[index]),
                RMSNorm(kernels, own["post_attention_layernorm.weight"], config.rms_norm_eps),
                mlp(index, own) if mlp is not None else GatedMLP(kernels, own.at("mlp"), config.activation, shard),
            )
        )
    return build_decoder(config, kernels, weights, layers)


def build_sandwich_norm(
    config: ModelConfig,
    kernels: Kernels,
    weights: Weights,
    shard: Shard,
    max_position: int,
    norms: tuple[str, str, str, str],
) -> CausalLM:
    """A whole dense model of sandwich-norm layers.

    `norms` are the family's names for the norms before and after attention, then before and after the MLP.
    """
    ropes = layer_ropes(config, kernels, max_position)
    layers: list[Layer] = []
    for index in range(config.num_layers):
        own = weights.at(f"model.layers.{index}")
        before, after, mlp_before, mlp_after = (
            RMSNorm(kernels, own[f"{name}.weight"], config.rms_norm_eps) for name in norms
        )
        layers.append(
            SandwichNormLayer(
                kernels,
                before,
                _attention(config, kernels, own, shard, index, ropes[index]),
                after,
                mlp_before,
                GatedMLP(kernels, own.at("mlp"), config.activation, shard),
                mlp_after,
            )
        )
    return build_decoder(config, kernels, weights, layers)


def _attention(
    config: ModelConfig, kernels: Kernels, layer: Weights, shard: Shard, index: int, rope: Weight
) -> Attention:
    return Attention(
        kernels,
        layer.at("self_attn"),
        config.attention_spec(index),
        layer_index=index,
        rope=rope,
        qk_norm_eps=config.rms_norm_eps if config.qk_norm else None,
        shard=shard,
    )


def layer_ropes(config: ModelConfig, kernels: Kernels, max_position: int) -> list[Weight]:
    """Every layer's bound rotation table, shared between the layers that rotate alike."""
    everywhere = kernels.bind_rope(rope_table(config.rope, max_position))
    local = everywhere if config.local_rope is None else kernels.bind_rope(rope_table(config.local_rope, max_position))
    return [everywhere if window is None else local for window in config.windows]
