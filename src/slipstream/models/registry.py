"""Which family reads which model."""

from __future__ import annotations

from slipstream.errors import UnsupportedModelError
from slipstream.models import gemma3, gguf, glm4, llama, mixtral, qwen2, qwen3, qwen3_moe
from slipstream.models.config import ModelConfig
from slipstream.models.family import Family
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint

FAMILIES: tuple[Family, ...] = (
    gemma3.FAMILY,
    glm4.FAMILY,
    llama.FAMILY,
    mixtral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
)


def find_family(checkpoint: Checkpoint) -> Family:
    """By general.architecture (GGUF) or the first of `architectures` (config.json).

    Raises UnsupportedModelError, listing what is supported, for any other architecture.
    """
    metadata = Reader(checkpoint.metadata, str(checkpoint.path))
    if checkpoint.format == "gguf":
        architecture = metadata.text("general.architecture")
        experts = gguf.has_experts(checkpoint)
        readers = [family for family in FAMILIES if family.gguf_experts in (None, experts)]
        known = {name: family for family in readers for name in family.gguf_architectures}
    else:
        architecture = (*metadata.texts("architectures"), "")[0]
        known = {name: family for family in FAMILIES for name in family.hf_architectures}
    if architecture not in known:
        raise UnsupportedModelError(
            f"the architecture {architecture!r:.80} is not supported.",
            where=str(checkpoint.path),
            fix=f"Supported: {', '.join(sorted(known))}.",
        )
    return known[architecture]


def read_config(family: Family, checkpoint: Checkpoint) -> ModelConfig:
    """Raises UnsupportedModelError for an option that the family does not have, ModelFormatError for a broken value."""
    if checkpoint.format == "gguf":
        return family.from_gguf(checkpoint)
    metadata = Reader(checkpoint.metadata, str(checkpoint.path))
    if metadata.has("quantization_config"):
        raise metadata.unsupported("quantization_config")
    return family.from_hf(metadata)
