"""The target as an engine: it answers prompts, and shows its hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.config.types import EngineOptions
from slipstream.engine.llm import LLM
from slipstream.engine.loading import EnginePlan, inspect_model
from slipstream.hub.store import packed_dir
from slipstream.kernels.select import select_kernels
from slipstream.models.build import load_model
from slipstream.text.tokenizer import Tokenizer
from slipstream.training.answers import Answer, Task, read_answers, write_answers
from slipstream.training.features import HiddenStates, Stored, write_features
from slipstream.training.own_texts import OwnTexts, read_own_texts, write_own_texts
from slipstream.training.progress import stage
from slipstream.training.target import Target, read_target, refuse_unsupported
from slipstream.weights.open import open_checkpoint

MAX_LENGTH = 2048  # tokens of prompt and answer
MAX_SEQS = 48
BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEngine:
    """Settings of the engine as elsewhere. quiet: no bars."""

    model: str
    backend: str = "auto"
    num_threads: int | None = None
    cache_dir: Path | None = None
    quiet: bool = False

    def inspect(self) -> tuple[EnginePlan, Tokenizer]:
        """The plan of an engine that answers; its pool is as large as it needs, not as large as memory.

        Raises what loading the model would, and UnsupportedModelError for a model that heads are not made for.
        """
        plan, tokenizer = inspect_model(self._options(None, None), cache_dir=self.cache_dir)
        refuse_unsupported(plan.config)
        length = min(plan.options.max_model_len, MAX_LENGTH)
        blocks = min(plan.memory.num_blocks, -(-length // BLOCK) * MAX_SEQS)
        return inspect_model(self._options(length, blocks), cache_dir=self.cache_dir)[0], tokenizer

    def read_target(self, plan: EnginePlan) -> Target:
        checkpoint = open_checkpoint(plan.path)
        try:
            return read_target(checkpoint)
        finally:
            checkpoint.close()

    def own_texts(self, plan: EnginePlan, folder: Path, *, tokens: int, seed: int) -> OwnTexts:
        """What the model asks and says by itself, kept in `folder`, as much as a training on `tokens` tokens needs."""
        questions, texts = OwnTexts.wanted(tokens)
        asked, told = read_own_texts(folder)
        known = OwnTexts.of(asked, told)
        if len(asked) >= questions and len(told) >= min(texts, len(known.questions)):
            return known
        options = self._options(plan.options.max_model_len, plan.options.num_blocks, prefix_caching=True)
        with LLM(options, cache_dir=self.cache_dir) as llm, stage("Prompts", None, quiet=self.quiet) as bar:
            return write_own_texts(llm, folder, questions=questions, texts=texts, seed=seed, stage=bar)

    def answer(self, plan: EnginePlan, tasks: Iterator[Task], folder: Path, *, tokens: int, longest: int) -> None:
        """Have tasks answered until `tokens` tokens are in `folder`, by answers of at most `longest` tokens."""
        done = sum(each.num_answer_tokens for each in read_answers(folder).values())
        if done >= tokens:
            return
        longest = min(longest, plan.options.max_model_len // 2)
        options = self._options(plan.options.max_model_len, plan.options.num_blocks)
        with (
            LLM(options, cache_dir=self.cache_dir) as llm,
            stage("Answers", tokens, done=done, quiet=self.quiet) as bar,
        ):
            write_answers(llm, tasks, folder, tokens=tokens, longest=longest, stage=bar)

    def features(self, plan: EnginePlan, answers: Sequence[Answer], folder: Path) -> list[Stored]:
        """The hidden states of all answers, in `folder`."""
        kernels = select_kernels(plan.options.backend, num_threads=plan.options.num_threads)
        packed = packed_dir(self.cache_dir) if plan.options.weight_cache else None
        checkpoint = open_checkpoint(plan.path)
        try:
            model = load_model(checkpoint, kernels, max_position=plan.options.max_model_len, packed_folder=packed)
        finally:
            checkpoint.close()
        longest = max(len(each.tokens) for each in answers)
        compute = HiddenStates(model, kernels, max_length=longest, kv_dtype=plan.memory.spec.dtype)
        with stage("Features", sum(len(each.tokens) for each in answers), quiet=self.quiet) as bar:
            return write_features(answers, compute, folder, bar)

    def _options(
        self, max_model_len: int | None, num_blocks: int | None, *, prefix_caching: bool = False
    ) -> EngineOptions:
        return EngineOptions.from_flat(
            model=self.model,
            backend=self.backend,
            num_threads=self.num_threads,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            max_num_seqs=MAX_SEQS,
            block_size=BLOCK,
            enable_prefix_caching=prefix_caching,
        )
