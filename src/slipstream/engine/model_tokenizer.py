"""The tokenizer that belongs to a model, without the model: what a server's process needs beside the engine's."""

from __future__ import annotations

from pathlib import Path

from slipstream.config.env import read_environment
from slipstream.config.types import EngineOptions
from slipstream.hub.store import resolve_model
from slipstream.text.from_folder import tokenizer_from_folder
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.text.tokenizer import Tokenizer
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.open import open_checkpoint


def load_tokenizer(options: EngineOptions, *, cache_dir: Path | None = None) -> Tokenizer:
    """Raises ModelError, as `load_engine` would for the same files; that it fits the model is not checked here."""
    cache_dir = cache_dir or read_environment().cache_dir
    checkpoint = open_checkpoint(resolve_model(options.model.model, cache_dir))
    try:
        return tokenizer_of(checkpoint, options.model.tokenizer)
    finally:
        checkpoint.close()


def tokenizer_of(checkpoint: Checkpoint, asked: str | None) -> Tokenizer:
    """`asked`: a file or folder instead of the model's own."""
    if asked is not None and not asked.endswith(".gguf"):
        return tokenizer_from_folder(asked)
    if asked is not None:
        other = open_checkpoint(Path(asked))
        try:
            return tokenizer_from_gguf(other.metadata)
        finally:
            other.close()
    if checkpoint.format == "gguf":
        return tokenizer_from_gguf(checkpoint.metadata)
    return tokenizer_from_folder(checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent)
