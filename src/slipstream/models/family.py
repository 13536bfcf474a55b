"""What a model family tells the rest of the engine about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.table import Kernels, Tensor
from slipstream.kv.storage import KVStorage
from slipstream.layers.embedding import Embedding
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.lean import dataclass
from slipstream.models.config import ModelConfig
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.slots import TensorSlot

StatesModel = Callable[[ForwardBatch, KVStorage], tuple[Tensor, ...]]


class Model(Protocol):
    """A model ready to run; safe to call with any batch, holding no state between calls."""

    config: ModelConfig
    embedding: Embedding  # of tokens, scaled as the first layer sees them

    def __call__(self, batch: ForwardBatch, kv: KVStorage) -> Tensor:
        """logits [L, vocab] float32 of batch.logits_rows; K and V of every token are in `kv` afterwards."""
        ...

    def hidden_states(self, batch: ForwardBatch, kv: KVStorage) -> Tensor:
        """[T, hidden]: the residual stream behind the last layer, before the final norm; no logits are computed."""
        ...

    def with_hidden_states(self, after: Sequence[int]) -> StatesModel:
        """The same model, which also gives the residual stream behind these layers, counted from 0: the same logits,
        then [T, hidden] for each. The last one is what the final norm gets. Raises ConfigError for other numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """One file of this room exports one of these.

    Attributes:
        name: as people say it.
        hf_architectures: values of config.json's `architectures`.
        gguf_architectures: values of `general.architecture`.
        from_hf: reads config.json; raises UnsupportedModelError for options that the model class does not have.
        from_gguf: reads GGUF metadata, likewise.
        slots: every tensor of the model, tied ones once.
        ignorable: whether a file tensor of this name may be left unread.
        build: (config, kernels, weights, shard, max_position) -> the model, for positions below max_position.
        gguf_experts: whether it reads the GGUF files with experts, where a value is shared; None: all files.
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    from_hf: Callable[[Reader], ModelConfig]
    from_gguf: Callable[[Checkpoint], ModelConfig]
    slots: Callable[[ModelConfig], tuple[TensorSlot, ...]]
    ignorable: Callable[[str], bool]
    build: Callable[[ModelConfig, Kernels, Weights, Shard, int], Model]
    gguf_experts: bool | None = None
