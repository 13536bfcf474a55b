"""The draft head: checked against the target before anything is allocated, then loaded beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.config.resolve import EffectiveOptions
from slipstream.engine.footprint import FLOAT32_BYTES
from slipstream.engine.head_drafter import HeadDrafter
from slipstream.engine.head_runner import HeadRunner
from slipstream.engine.head_states import HeadStates
from slipstream.engine.row_drafter import DraftPool
from slipstream.engine.step_profile import ProfileSize
from slipstream.errors import ConfigError
from slipstream.kernels.select import ModelNeeds, backend_refusals, weight_bytes
from slipstream.kernels.table import Kernels
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage
from slipstream.layers.embedding import LMHead
from slipstream.models.config import ModelConfig
from slipstream.models.draft_head import DraftHead, bind_head, head_kv_spec
from slipstream.models.draft_head_file import DraftHeadFile, read_draft_head, require_fit
from slipstream.models.family import Model
from slipstream.models.fingerprint import model_fingerprint
from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.step_times import StepTimes
from slipstream.weights.checkpoint import Checkpoint

WHERE = "[speculation] draft_head"
MOST_STATES = 512  # positions per request whose hidden states are kept until the head reads them


@dataclass(frozen=True, slots=True, eq=False)
class PlannedHead:
    """What its files say. `weights`: bytes as the backend holds them, the target's output rows included."""

    file: DraftHeadFile
    weights: int

    def spec(self, options: EffectiveOptions) -> KVSpec:
        """Of its KV pool, which has as many blocks as the target's, of the same size in tokens and the same type."""
        return head_kv_spec(self.file.config, block_size=options.block_size, dtype=options.kv_dtype)

    def max_step_tokens(self, options: EffectiveOptions) -> int:
        return options.max_num_seqs * (1 + options.num_speculative_tokens) + MOST_STATES

    def workspace(self, options: EffectiveOptions) -> int:
        """Activations and logits of its largest step, and the target's states: those of a step, and those that wait."""
        config = self.file.config
        heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        step = self.max_step_tokens(options) * (6 * config.hidden_size + heads + 3 * config.intermediate_size)
        logits = options.max_num_seqs * (2 * config.draft_vocab_size + 2 * config.vocab_size)
        waiting = options.max_num_seqs * MOST_STATES + options.max_num_batched_tokens
        return FLOAT32_BYTES * (step + logits + 2 * waiting * config.hidden_size)

    @property
    def bytes_per_position(self) -> int:
        """Of its rotation table."""
        return FLOAT32_BYTES * self.file.config.head_dim


def read_head(folder: str, checkpoint: Checkpoint, target: ModelConfig, backend: str) -> PlannedHead:
    """Raises ModelError for a folder that is no head or one for another model, ConfigError if the backend cannot run
    it."""
    head = read_draft_head(Path(folder).expanduser())
    config = head.config
    require_fit(head, target.hidden_size, target.vocab_size, model_fingerprint(checkpoint))
    refusal = backend_refusals(ModelNeeds(config.head_dim))[backend]
    if refusal is not None:
        raise ConfigError(f"backend {backend} cannot run {folder}: {refusal}.", where=WHERE)
    tensors = [("F32" if len(shape) == 1 else "Q8_0", shape) for shape in config.shapes().values()]
    rows = ("F16", (config.draft_vocab_size, config.hidden_size))
    return PlannedHead(head, weight_bytes(backend, [*tensors, rows]))


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A runner over an empty pool of its own, its logits as wide as the target's."""

    runner: HeadRunner
    pool: DraftPool
    states: HeadStates
    files: tuple[Path, ...]
    size: ProfileSize  # what of its steps is measured

    def drafter(self, times: StepTimes | None) -> HeadDrafter:
        return HeadDrafter(self.runner, self.pool, self.states, times)


def load_head(
    head: PlannedHead,
    options: EffectiveOptions,
    kernels: Kernels,
    target: Model,
    output: LMHead,
    *,
    num_blocks: int,
    grammars: GrammarCompiler,
    states: HeadStates,
) -> LoadedHead:
    """output: the target's output rows of the head's tokens. states: what the target's runner fills."""
    config, max_model_len = head.file.config, options.max_model_len
    model = DraftHead(config, kernels, bind_head(head.file, kernels), target.embedding, output, max_model_len)
    spec = head.spec(options)
    kv = KVStorage(spec, num_blocks, kernels.new_kv(spec, num_blocks))
    runner = HeadRunner(
        model if kernels.compile is None else kernels.compile(model, kv),
        kv,
        kernels.to_numpy,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        draft_ids=head.file.draft_ids,
        # States of its own: a request's grammar is followed along the draft without moving the one that verifies.
        grammars=GrammarStates(grammars),
        sampling=kernels.sampling,
    )
    max_step_tokens = head.max_step_tokens(options)
    return LoadedHead(
        runner=runner,
        pool=DraftPool(num_blocks, options.block_size, max_model_len, max_step_tokens, prefix_caching=False),
        states=states,
        files=head.file.files,
        size=ProfileSize(
            max_rows=options.max_num_seqs,
            max_tokens=1 + options.num_speculative_tokens,
            block_size=options.block_size,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_step_tokens=max_step_tokens,
        ),
    )
