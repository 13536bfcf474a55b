"""The draft head in PyTorch, for training: all drafted tokens of all positions at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.training.head_config import HeadConfig

KV = tuple[Tensor, Tensor]  # [B, heads, T, D] each


class DraftHead(torch.nn.Module):
    """fc, one Llama decoder layer, norm. Parameters have the names of `HeadConfig.shapes`, dots as underscores."""

    def __init__(self, config: HeadConfig, max_length: int) -> None:
        super().__init__()
        self.config = config
        for name, shape in config.shapes().items():
            start = torch.ones(shape) if len(shape) == 1 else torch.zeros(shape)
            self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(start))
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.arange(max_length, dtype=torch.float64)[:, None] * config.rope_theta**-half
        self.register_buffer("cos", torch.cos(angles).float(), persistent=False)
        self.register_buffer("sin", torch.sin(angles).float(), persistent=False)

    def weight(self, name: str) -> Tensor:
        """The parameter `name`.weight of `HeadConfig.shapes`."""
        found: Tensor = getattr(self, f"{name.replace('.', '_')}_weight")
        return found

    def forward(self, features: Tensor, embeddings: Tensor, steps: int) -> list[Tensor]:
        """Outputs of `steps` drafted tokens in a row, each [B, T, hidden].

        features: the target's hidden state of each position; embeddings: of the token behind each; both
        [B, T, hidden]. Output s at position i is what the head makes there as the s-th token of a draft that began at
        position i - s + 1: its feature is the output s - 1 of position i - 1, and it attends to what such a draft has
        in its KV cache: the first step's entries up to position i - s + 1, then one of each later step. So the head
        learns on its own features (EAGLE-3, arXiv 2503.01840; HASS, arXiv 2408.15766). Positions i < s - 1 have no
        such draft; their outputs mean nothing.
        """
        cache: list[KV] = []
        outputs: list[Tensor] = []
        for step in range(1, steps + 1):
            own = features if step == 1 else torch.cat([features[:, :1], outputs[-1][:, :-1]], 1)
            x = functional.linear(torch.cat([own, embeddings], -1), self.weight("fc"))
            q, k, v = self._project(self._norm(x, "layer.input_layernorm"))
            cache.append((k, v))
            x = x + functional.linear(self._attend(q, cache), self.weight("layer.self_attn.o_proj"))
            y = self._norm(x, "layer.post_attention_layernorm")
            gate = functional.silu(functional.linear(y, self.weight("layer.mlp.gate_proj")))
            up = functional.linear(y, self.weight("layer.mlp.up_proj"))
            outputs.append(x + functional.linear(gate * up, self.weight("layer.mlp.down_proj")))
        return outputs

    def normed(self, output: Tensor) -> Tensor:
        """What the reduced output rows multiply."""
        return self._norm(output, "norm")

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Copies of all parameters, by their names in the file."""
        return {name: getattr(self, name.replace(".", "_")).detach().numpy().copy() for name in self.config.shapes()}

    def load(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Takes over what `arrays` gave."""
        with torch.no_grad():
            for name in self.config.shapes():
                getattr(self, name.replace(".", "_")).copy_(torch.from_numpy(arrays[name]))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight(name), self.config.rms_norm_eps)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q with all heads; k and v repeated for the query heads that share them."""
        size, count, shape = self.config.head_dim, self.config.num_attention_heads, x.shape[:2]
        q, k, v = (
            functional.linear(x, self.weight(f"layer.self_attn.{name}_proj")).view(*shape, -1, size).transpose(1, 2)
            for name in "qkv"
        )
        q, k = self._rotate(q), self._rotate(k)
        group = count // self.config.num_key_value_heads
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def _rotate(self, x: Tensor) -> Tensor:
        length = x.shape[2]
        cos, sin = self.cos[:length], self.sin[:length]  # type: ignore[index]
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _attend(self, q: Tensor, cache: list[KV]) -> Tensor:
        """[B, heads, T, D] -> [B, T, heads * D]."""
        behind = len(cache) - 1  # entries of the draft's own before this one, this one included
        keys, values = cache[0]
        if behind == 0:
            out = functional.scaled_dot_product_attention(q, keys, values, is_causal=True)
            return out.transpose(1, 2).flatten(2)
        length, scale = q.shape[2], 1 / math.sqrt(q.shape[-1])
        scores = q @ keys.transpose(2, 3) * scale
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1 - behind), -torch.inf)
        drafted = [(_shift(k, behind - step), _shift(v, behind - step)) for step, (k, v) in enumerate(cache) if step]
        own = torch.stack([(q * k).sum(-1) * scale for k, _ in drafted], -1)  # [B, heads, T, behind]
        missing = torch.arange(length)[:, None] < behind - 1 - torch.arange(behind)
        weights = torch.softmax(torch.cat([scores, own.masked_fill(missing, -torch.inf)], -1), -1)
        out = weights[..., :length] @ values
        for place, (_, value) in enumerate(drafted):
            out = out + weights[..., length + place, None] * value
        return out.transpose(1, 2).flatten(2)


def _shift(x: Tensor, by: int) -> Tensor:
    """Entries of `by` positions before, zero where there are none."""
    return functional.pad(x, (0, 0, by, 0))[:, :, : x.shape[2]] if by else x
