"""From a checkpoint to a model that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ConfigError
from slipstream.kernels.table import Kernels, Weight
from slipstream.kv.spec import KVSpec
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.models.config import ModelConfig
from slipstream.models.family import Family, Model
from slipstream.models.registry import find_family, read_config
from slipstream.weights.cached_loader import load_cached
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.loader import load_weights
from slipstream.weights.packed_cache import CacheReport
from slipstream.weights.slots import TensorSlot


def load_model(
    checkpoint: Checkpoint,
    kernels: Kernels,
    *,
    max_position: int | None = None,
    shard: Shard | None = None,
    progress: Callable[[int, int], None] | None = None,
    packed_folder: Path | None = None,
    on_cache: Callable[[CacheReport], None] | None = None,
) -> Model:
    """Reads the configuration, then every tensor, and builds the model.

    Args:
        max_position: positions 0 ... max_position - 1 can be run; by default what the model was made for.
        progress: called with (bytes done, bytes in all).
        packed_folder: where weights are kept as the backend packs them (if it does), for later starts; None: nowhere.
        on_cache: called once with what became of that.

    Raises:
        UnsupportedModelError: an unknown architecture or option.
        ModelFormatError: a broken configuration, or tensors that do not fit it.
        ConfigError: `max_position` or `shard` asks for what the model cannot do.
    """
    family = find_family(checkpoint)
    config = read_config(family, checkpoint)

    def bind(slot: TensorSlot, values: NDArray[np.float32]) -> Weight:
        return kernels.bind(slot.kind, values)

    def bind_stored(slot: TensorSlot, dtype: str, data: NDArray[np.uint8]) -> Weight | None:
        return None if kernels.bind_stored is None else kernels.bind_stored(slot.kind, dtype, slot.shape, data)

    slots, ignore = family.slots(config), family.ignorable
    if packed_folder is None or kernels.packed is None:
        weights = load_weights(slots, checkpoint, bind, bind_stored=bind_stored, progress=progress, ignore=ignore)
    else:
        weights, report = load_cached(
            slots,
            checkpoint,
            bind,
            bind_stored=bind_stored,
            forms=kernels.packed,
            backend=kernels.name,
            folder=packed_folder,
            progress=progress,
            ignore=ignore,
        )
        if on_cache is not None:
            on_cache(report)
    return build_model(family, config, weights, kernels, max_position=max_position, shard=shard)


def build_model(
    family: Family,
    config: ModelConfig,
    weights: Mapping[str, Weight],
    kernels: Kernels,
    *,
    max_position: int | None = None,
    shard: Shard | None = None,
) -> Model:
    """The model over bound weights, one for every slot of `family.slots(config)`, by slot name."""
    limit = config.max_position_embeddings
    positions = limit if max_position is None else max_position
    if config.rope.kind == "dynamic" and positions > limit:
        raise ConfigError(
            f"dynamic rope scaling is served up to the model's own {limit} tokens, not {positions}.",
            where="max_model_len",
            fix=f"Use {limit} or less.",
        )
    return family.build(config, kernels, Weights(weights), shard or Shard(), positions)


def kv_spec(config: ModelConfig, *, block_size: int = 16, dtype: str = "float32") -> KVSpec:
    """The KV cache that this model needs."""
    return KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, block_size, dtype)
