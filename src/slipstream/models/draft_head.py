"""The draft head as a model: one decoder layer that goes on where the target's hidden states end.

EAGLE: Li et al., arXiv 2401.15077. At position i it is given the target's hidden state h_i (before the final norm) and
the embedding of token i + 1, and makes g_{i+1}, an estimate of h_{i+1}; the norm and the reduced output rows turn that
into logits for token i + 2. Beyond what the target has computed, g takes the place of h.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.specs import AttentionSpec
from slipstream.kernels.table import Kernels, Tensor, Weight
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage
from slipstream.layers.attention import Attention
from slipstream.layers.embedding import Embedding, LMHead
from slipstream.layers.linear import Linear
from slipstream.layers.mlp import GatedMLP
from slipstream.layers.norm import RMSNorm
from slipstream.layers.rope import rope_table
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.models.decoder import PreNormLayer
from slipstream.models.draft_head_file import DraftHeadConfig, DraftHeadFile
from slipstream.models.registry import find_family, read_config
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.dequantize import dequantize
from slipstream.weights.loader import read_source, stored_rows
from slipstream.weights.match import match_slots
from slipstream.weights.q8_0 import BLOCK, to_q8_0


class DraftHead:
    """model(batch, kv) -> (logits [L, draft_vocab] of batch.logits_rows, g [T, hidden]); batch.inputs: h, as g."""

    def __init__(
        self,
        config: DraftHeadConfig,
        kernels: Kernels,
        weights: Mapping[str, Weight],
        embedding: Embedding,
        output: LMHead,
        max_position: int,
    ) -> None:
        """weights: those of the file, fc.weight in two: `state.weight` and `token.weight`. embedding, output: the
        target's, `output` for the reduced vocabulary."""
        self.config = config
        self._kernels = kernels
        self._embedding = embedding
        self._output = output
        own = Weights(weights)
        self._of_state = Linear.load(kernels, own.at("state"))
        self._of_token = Linear.load(kernels, own.at("token"))
        layer, eps = own.at("layer"), config.rms_norm_eps
        spec = AttentionSpec(config.num_heads, config.num_kv_heads, config.head_dim, config.head_dim**-0.5)
        rope = kernels.bind_rope(rope_table(config.rope, max_position))
        self._layer = PreNormLayer(
            kernels,
            RMSNorm(kernels, layer["input_layernorm.weight"], eps),
            Attention(kernels, layer.at("self_attn"), spec, layer_index=0, rope=rope, shard=Shard()),
            RMSNorm(kernels, layer["post_attention_layernorm.weight"], eps),
            GatedMLP(kernels, layer.at("mlp"), "silu", Shard()),
        )
        self._norm = RMSNorm(kernels, own["norm.weight"], eps)

    def __call__(self, batch: ForwardBatch, kv: KVStorage) -> tuple[Tensor, Tensor]:
        state = self._kernels.inputs(batch, self.config.hidden_size)
        x = self._kernels.add(self._of_token(self._embedding(batch)), self._of_state(state))
        g = self._layer(x, batch, kv)
        return self._output(self._norm(self._kernels.select_rows(g, batch))), g


def head_kv_spec(config: DraftHeadConfig, *, block_size: int, dtype: str) -> KVSpec:
    """Of the head's KV cache: one layer."""
    return KVSpec(1, config.num_kv_heads, config.head_dim, block_size, dtype)


def bind_head(head: DraftHeadFile, kernels: Kernels) -> dict[str, Weight]:
    """The head's own weights. A backend that takes matrices as files store them gets them rounded to Q8_0: a draft is
    only a guess, and half the bytes are half the time."""
    fc = head.weights["fc.weight"]
    hidden = head.config.hidden_size
    matrices = {name: each for name, each in head.weights.items() if name != "fc.weight"}
    matrices |= {"state.weight": fc[:, :hidden], "token.weight": fc[:, hidden:]}
    return {name: _bind(np.ascontiguousarray(each), kernels) for name, each in matrices.items()}


def _bind(values: NDArray[np.float32], kernels: Kernels) -> Weight:
    if values.ndim == 1:
        return kernels.bind("vector", values)
    if kernels.bind_stored is not None and values.shape[1] % BLOCK == 0:
        bound = kernels.bind_stored("linear", "Q8_0", values.shape, to_q8_0(values))
        if bound is not None:
            return bound
    return kernels.bind("linear", values)


def reduced_output(checkpoint: Checkpoint, ids: NDArray[np.int32], kernels: Kernels) -> LMHead:
    """The target's output rows of these tokens, in the form in which its file has them."""
    family = find_family(checkpoint)
    config = read_config(family, checkpoint)
    name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    slot = next(each for each in family.slots(config) if each.name == name)
    [source] = match_slots([slot], checkpoint, ignore=lambda _: True)
    shape = (len(ids), slot.shape[1])
    if source.offset:
        return LMHead(kernels, kernels.bind("linear", read_source(source, checkpoint)[ids]), config.final_soft_cap)
    data = stored_rows(source, checkpoint).reshape(slot.shape[0], -1)[ids].reshape(-1)
    weight = None
    if kernels.bind_stored is not None:
        weight = kernels.bind_stored("linear", source.info.dtype, shape, data)
    if weight is None:
        weight = kernels.bind("linear", dequantize(data, source.info.dtype).reshape(shape))
    return LMHead(kernels, weight, config.final_soft_cap)
