"""The smaller model that drafts: checked against the target before anything is allocated, then loaded beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.config.resolve import EffectiveOptions
from slipstream.config.suggest import nearest_name
from slipstream.engine.draft_model import CATCH_UP, ModelDrafter
from slipstream.engine.footprint import activation_bytes, logits_bytes, rope_bytes
from slipstream.engine.model_tokenizer import tokenizer_of
from slipstream.engine.row_drafter import DraftPool
from slipstream.engine.runner import ModelRunner
from slipstream.engine.step_profile import ProfileSize
from slipstream.errors import ConfigError, ModelNotFoundError
from slipstream.hub.store import resolve_model
from slipstream.kernels.select import ModelNeeds, backend_refusals, weight_bytes
from slipstream.kernels.table import Kernels, Tensor
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec, load_model
from slipstream.models.config import ModelConfig
from slipstream.models.draft_head_file import is_draft_head
from slipstream.models.registry import find_family, read_config
from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.step_times import StepTimes
from slipstream.text.tokenizer import Tokenizer
from slipstream.weights.open import open_checkpoint
from slipstream.weights.packed_cache import CacheReport

WHERE = "[speculation] draft_model"
LEAST = np.float32(-1e30)  # a logit that no draw ever chooses


@dataclass(frozen=True, slots=True)
class DraftModel:
    """What its files say. `weights`: bytes as the backend holds them."""

    name: str  # as asked for
    path: Path
    family: str
    config: ModelConfig
    weights: int
    tokenizer: Tokenizer

    def spec(self, options: EffectiveOptions) -> KVSpec:
        """Of its KV pool, which has as many blocks as the target's, of the same size in tokens and the same type."""
        return kv_spec(self.config, block_size=options.block_size, dtype=options.kv_dtype)

    def max_model_len(self, options: EffectiveOptions) -> int:
        return min(options.max_model_len, self.config.max_position_embeddings)

    def max_step_tokens(self, options: EffectiveOptions) -> int:
        """Fed in one of its steps: what all rows may lag behind after drafts, and a piece of a prompt."""
        return options.max_num_seqs * (1 + options.num_speculative_tokens) + CATCH_UP

    def workspace(self, options: EffectiveOptions) -> int:
        step = self.max_step_tokens(options) * activation_bytes(self.config, options.backend)
        return step + logits_bytes(self.config, options.max_num_seqs)

    @property
    def bytes_per_position(self) -> int:
        return rope_bytes(self.config)


def read_draft_model(name: str, cache_dir: Path | None, backend: str) -> DraftModel:
    """Raises ModelError as for any model, or ConfigError if the backend cannot run it."""
    if is_draft_head(Path(name).expanduser()):
        raise ConfigError(f"{name} is a draft head, not a model.", where=WHERE, fix="Name it with draft_head.")
    try:
        checkpoint = open_checkpoint(resolve_model(name, cache_dir))
    except ModelNotFoundError as error:
        near = nearest_name(name, ("off", "auto", "ngram"))
        hint = f"Did you mean {near}?" if near else "Name a smaller model, or choose off, auto or ngram."
        raise ModelNotFoundError(f"drafts cannot be made: {error}", where=WHERE, fix=hint) from error
    try:
        family = find_family(checkpoint)
        config = read_config(family, checkpoint)
        refusal = backend_refusals(ModelNeeds(config.head_dim))[backend]
        if refusal is not None:
            raise ConfigError(f"backend {backend} cannot run {name}: {refusal}.", where=WHERE)
        held = weight_bytes(backend, ((info.dtype, info.shape) for info in checkpoint.tensors.values()))
        return DraftModel(name, checkpoint.path, family.name, config, held, tokenizer_of(checkpoint, None))
    finally:
        checkpoint.close()


def require_same_tokens(target: Tokenizer, draft: Tokenizer, draft_vocab_size: int) -> None:
    """Token by token: a draft is ids, which must mean the same to both. Ids that only one of them has are let pass if
    they are what converters fill vocabularies up with ([PAD...]). Raises ConfigError with the first difference."""
    for token_id in range(max(target.vocab_size, draft.vocab_size)):
        ours, theirs = target.id_to_token(token_id), draft.id_to_token(token_id)
        if ours != theirs and not (_is_padding(ours) and _is_padding(theirs)):
            raise ConfigError(
                f"its tokenizer is not the model's: token {token_id} is {_spell(theirs)}, but {_spell(ours)} there.",
                where=WHERE,
                fix="Name a model of the same family and generation.",
            )
        if token_id >= draft_vocab_size and not _is_padding(ours):
            raise ConfigError(f"its embedding has {draft_vocab_size} rows, too few for token {token_id}.", where=WHERE)


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A runner over an empty pool of its own, its logits as wide as the target's."""

    runner: ModelRunner
    pool: DraftPool
    vocab_size: int  # tokens that it can be fed
    files: tuple[Path, ...]
    size: ProfileSize  # what of its steps is measured

    def drafter(self, times: StepTimes | None) -> ModelDrafter:
        return ModelDrafter(self.runner, self.pool, self.vocab_size, times)


def load_draft_model(
    draft: DraftModel,
    options: EffectiveOptions,
    kernels: Kernels,
    *,
    num_blocks: int,
    vocab_size: int,
    packed_folder: Path | None,
    grammars: GrammarCompiler,
    on_cache: Callable[[CacheReport], None] | None = None,
) -> LoadedDraft:
    """vocab_size: the width of the target's logits. Raises what loading a model raises."""
    max_model_len, max_step_tokens = draft.max_model_len(options), draft.max_step_tokens(options)
    checkpoint = open_checkpoint(draft.path)
    try:
        model = load_model(
            checkpoint, kernels, max_position=max_model_len, packed_folder=packed_folder, on_cache=on_cache
        )
        files = tuple(checkpoint.files)
    finally:
        checkpoint.close()
    spec = draft.spec(options)
    kv = KVStorage(spec, num_blocks, kernels.new_kv(spec, num_blocks))
    forward = model if kernels.compile is None else kernels.compile(model, kv)
    # States of its own: a request's grammar is followed along the draft without moving the one that verifies.
    states = GrammarStates(grammars)
    return LoadedDraft(
        runner=ModelRunner(forward, kv, fit_width(kernels.to_numpy, vocab_size), states, kernels.sampling),
        pool=DraftPool(num_blocks, options.block_size, max_model_len, max_step_tokens, options.enable_prefix_caching),
        vocab_size=min(draft.config.vocab_size, vocab_size),
        files=files,
        size=ProfileSize(
            max_rows=options.max_num_seqs,
            max_tokens=1 + options.num_speculative_tokens,
            block_size=options.block_size,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_step_tokens=max_step_tokens,
        ),
    )


def fit_width(
    to_numpy: Callable[[Tensor], NDArray[np.float32]], vocab_size: int
) -> Callable[[Tensor], NDArray[np.float32]]:
    """Logits [L, V] cut or filled up to [L, vocab_size]: models pad their vocabularies differently."""

    def fitted(tensor: Tensor) -> NDArray[np.float32]:
        logits = to_numpy(tensor)
        width = logits.shape[1]
        if width == vocab_size:
            return logits
        if width > vocab_size:
            return np.ascontiguousarray(logits[:, :vocab_size])
        filled = np.full((len(logits), vocab_size), LEAST)
        filled[:, :width] = logits
        return filled

    return fitted


def _is_padding(piece: str | None) -> bool:
    return piece is None or piece.startswith("[PAD")


def _spell(piece: str | None) -> str:
    return "missing" if piece is None else repr(piece)
