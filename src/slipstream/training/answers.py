"""On-policy text: the target answers the prompts itself, in large batches; what is finished is kept in shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.engine.llm import LLM
from slipstream.engine.outputs import RequestOutput
from slipstream.errors import EngineError, RequestError
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.rng import child_seed
from slipstream.training.progress import Stage
from slipstream.training.prompts import Prompt
from slipstream.training.shards import read_arrays, write_arrays

Int32s = NDArray[np.int32]

SHARD_ANSWERS = 64
HELD_OUT = 32  # every so manieth pair of prompts is kept from training


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt to be answered. `place`: the prompt's own number; the same prompt may be answered several times."""

    index: int
    place: int
    prompt: Prompt
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """tokens: prompt and answer. The answer was drawn with `seed` at `temperature` (0 or 1) and no filter."""

    index: int
    domain: str
    tokens: Int32s
    prompt_length: int
    temperature: float
    seed: int
    held_out: bool

    @property
    def num_answer_tokens(self) -> int:
        return len(self.tokens) - self.prompt_length


def tasks_of(prompts: Iterable[Prompt], seed: int) -> Iterator[Task]:
    """Prompts in order, greedy and at temperature 1 in turns. When they end, all of them once more, what was greedy at
    temperature 1 and the other way round, and from then on at temperature 1."""
    kept: list[Prompt] = []
    index = 0
    for index, prompt in enumerate(prompts):
        kept.append(prompt)
        yield Task(index, index, prompt, float(index % 2), child_seed(seed, index))
    while kept:
        index += 1
        turn, place = divmod(index, len(kept))
        temperature = float((place + 1) % 2) if turn == 1 else 1.0
        yield Task(index, place, kept[place], temperature, child_seed(seed, index))


def read_answers(folder: Path) -> dict[int, Answer]:
    """What earlier runs have finished, by index. Raises ModelFormatError for a damaged shard."""
    return {each.index: each for path in sorted(folder.glob("answers-*.safetensors")) for each in _read_shard(path)}


def write_answers(llm: LLM, tasks: Iterator[Task], folder: Path, *, tokens: int, longest: int, stage: Stage) -> None:
    """Answer tasks in order until `tokens` tokens are there, those of earlier runs included.

    Prompts that leave no room for `longest` tokens are passed over. Whatever ends the work, what is finished is kept.
    An answer does not depend on the others: neither their number nor an interruption changes what comes out.

    Raises EngineError if the model cannot answer.
    """
    known = read_answers(folder)
    total = sum(each.num_answer_tokens for each in known.values())
    room = llm.plan.options.max_model_len - longest
    opened: dict[int, tuple[Task, list[int]]] = {}

    def wanted() -> Iterator[tuple[int, Sequence[int], SamplingParams]]:
        misfits = 0
        for task in tasks:
            if total >= tokens or misfits > 10_000:
                return
            if task.index in known:
                continue
            prompt = encode_prompt(llm, task.prompt)
            if not 0 < len(prompt) <= room:
                misfits += 1
                continue
            misfits = 0
            opened[task.index] = task, prompt
            yield task.index, prompt, SamplingParams(temperature=task.temperature, max_tokens=longest, seed=task.seed)

    finished: list[Answer] = []
    number = 1 + max((int(path.stem.rpartition("-")[2]) for path in folder.glob("answers-*.safetensors")), default=-1)
    try:
        for index, output in llm.generate_as_completed(wanted(), max_open=llm.plan.options.max_num_seqs):
            answer = _answer(*opened.pop(index), output)
            if answer.num_answer_tokens:
                finished.append(answer)
                total += answer.num_answer_tokens
                stage.advance(answer.num_answer_tokens)
            if len(finished) == SHARD_ANSWERS:
                _write_shard(folder / f"answers-{number:05d}.safetensors", finished)
                number, finished = number + 1, []
    finally:
        if finished:
            _write_shard(folder / f"answers-{number:05d}.safetensors", finished)


def first_answers(answers: Iterable[Answer], tokens: int) -> list[Answer]:
    """The answers in order of their prompts, as few as have `tokens` tokens (all, if they have fewer)."""
    chosen: list[Answer] = []
    total = 0
    for answer in sorted(answers, key=lambda each: each.index):
        if total >= tokens:
            break
        chosen.append(answer)
        total += answer.num_answer_tokens
    return chosen


def encode_prompt(llm: LLM, prompt: Prompt) -> list[int]:
    """By the model's chat template; of a model without one, the texts as they are."""
    if llm.tokenizer.chat_template is None:
        return llm.tokenizer.encode("\n\n".join(content for _, content in prompt.messages))
    return llm.encode_chat([{"role": role, "content": content} for role, content in prompt.messages])


def _answer(task: Task, prompt: list[int], output: RequestOutput | RequestError) -> Answer:
    if isinstance(output, RequestError):
        raise EngineError(f"the prompt {task.index} was refused: {output}")
    [completion] = output.outputs
    if completion.error is not None:
        raise EngineError(completion.error)
    tokens = np.array([*prompt, *completion.token_ids], np.int32)
    return Answer(
        task.index,
        task.prompt.domain,
        tokens,
        len(prompt),
        task.temperature,
        task.seed,
        held_out=(task.place // 2) % HELD_OUT == 0,
    )


def _write_shard(path: Path, answers: Sequence[Answer]) -> None:
    names = json.dumps([each.domain for each in answers]).encode()
    write_arrays(
        path,
        {
            "tokens": np.concatenate([each.tokens for each in answers]),
            "lengths": np.array([len(each.tokens) for each in answers], np.int64),
            "prompt_lengths": np.array([each.prompt_length for each in answers], np.int64),
            "indices": np.array([each.index for each in answers], np.int64),
            "temperatures": np.array([each.temperature for each in answers], np.float32),
            "seeds": np.array([each.seed for each in answers], np.uint64),
            "held_out": np.array([each.held_out for each in answers], np.uint8),
            "domains": np.frombuffer(names, np.uint8),
        },
    )


def _read_shard(path: Path) -> Iterator[Answer]:
    arrays = read_arrays(path)
    domains = json.loads(arrays["domains"].tobytes())
    stops = np.cumsum(arrays["lengths"])
    for place, tokens in enumerate(np.split(arrays["tokens"], stops[:-1])):
        yield Answer(
            int(arrays["indices"][place]),
            domains[place],
            tokens,
            int(arrays["prompt_lengths"][place]),
            float(arrays["temperatures"][place]),
            int(arrays["seeds"][place]),
            bool(arrays["held_out"][place]),
        )
