"""What the model itself asks and says: prompts of the kind that it was made for, without a file.

A chat model that is given the beginning of a user's turn writes one (Magpie, arXiv 2406.08464); its answers to some of
those are texts that other prompts can be about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from slipstream.engine.llm import LLM
from slipstream.engine.outputs import RequestOutput
from slipstream.errors import EngineError, RequestError
from slipstream.lean import dataclass
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.rng import child_seed
from slipstream.training.progress import Stage

FILE = "own-texts.jsonl"
LONGEST_QUESTION, LONGEST_TEXT = 512, 320  # tokens
LEAST = 8  # characters
TOP_P = 0.95  # the model's unlikeliest words make no questions


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """Without repetitions, in the order of their numbers."""

    questions: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, asked: dict[int, str], told: dict[int, str]) -> OwnTexts:
        """Of what `read_own_texts` gives."""
        return cls(tuple(_distinct(asked)), tuple(_distinct(told)))

    @classmethod
    def wanted(cls, tokens: int) -> tuple[int, int]:
        """How many (questions, texts) to write for a training on so many tokens of answers."""
        return max(16, tokens // 400), max(8, tokens // 750)


def read_own_texts(folder: Path) -> tuple[dict[int, str], dict[int, str]]:
    """(questions, texts) of earlier runs by number; "" for what was no use. A damaged line is left out."""
    found: dict[str, dict[int, str]] = {"question": {}, "text": {}}
    path = folder / FILE
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            entry = json.loads(line)
            found[entry["kind"]][int(entry["number"])] = str(entry["text"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return found["question"], found["text"]


def write_own_texts(llm: LLM, folder: Path, *, questions: int, texts: int, seed: int, stage: Stage) -> OwnTexts:
    """Have the model write what is missing in `folder`; every one depends on `seed` and its number alone.

    Raises EngineError if the model cannot. Gives nothing for a model without a chat template.
    """
    if llm.tokenizer.chat_template is None:
        return OwnTexts()
    asked, told = read_own_texts(folder)
    before, behind = _around_content(llm)
    stops = frozenset({*behind[:1], *llm.tokenizer.eos_token_ids})
    path = folder / FILE
    cut_short = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    with path.open("a", encoding="utf-8") as file:
        if cut_short:
            file.write("\n")

        def keep(kind: str, known: dict[int, str], number: int, output: RequestOutput | RequestError) -> None:
            known[number] = text = _text_of(llm, output, stops)
            file.write(json.dumps({"kind": kind, "number": number, "text": text}) + "\n")
            file.flush()
            stage.advance(0 if isinstance(output, RequestError) else len(output.outputs[0].token_ids))

        if questions > len(asked):
            missing = [(number, before) for number in range(questions) if number not in asked]
            for number, output in _write(llm, missing, seed, LONGEST_QUESTION, stops):
                keep("question", asked, number, output)
        useful = _distinct(asked)
        if texts > len(told):
            missing = [
                (number, llm.encode_chat([{"role": "user", "content": question}]))
                for number, question in enumerate(useful[:texts])
                if number not in told
            ]
            for number, output in _write(llm, missing, child_seed(seed, 1), LONGEST_TEXT, stops):
                keep("text", told, number, output)
    return OwnTexts.of(asked, told)


def _write(
    llm: LLM, prompts: Sequence[tuple[int, Sequence[int]]], seed: int, longest: int, stops: frozenset[int]
) -> Iterator[tuple[int, RequestOutput | RequestError]]:
    room = llm.plan.options.max_model_len

    def wanted() -> Iterator[tuple[int, Sequence[int], SamplingParams]]:
        for number, prompt in prompts:
            most = min(longest, room - len(prompt))
            if most > 0:
                own = child_seed(seed, number)
                params = SamplingParams(
                    temperature=1.0, top_p=TOP_P, max_tokens=most, seed=own, stop_token_ids=tuple(sorted(stops))
                )
                yield number, prompt, params

    yield from llm.generate_as_completed(wanted(), max_open=llm.plan.options.max_num_seqs)


def _text_of(llm: LLM, output: RequestOutput | RequestError, stops: frozenset[int]) -> str:
    """ "" for what has no end."""
    if isinstance(output, RequestError):
        return ""
    [completion] = output.outputs
    if completion.error is not None:
        raise EngineError(completion.error)
    if completion.finish_reason != "stop":
        return ""
    text = llm.tokenizer.decode([token for token in completion.token_ids if token not in stops]).strip()
    return text if len(text) >= LEAST else ""


def _around_content(llm: LLM) -> tuple[list[int], list[int]]:
    """The tokens in front of a user's words and behind them."""
    one, other = (llm.encode_chat([{"role": "user", "content": content}]) for content in ("1", "?"))
    before = _common(one, other)
    behind = _common(one[before:][::-1], other[before:][::-1])
    return one[:before], one[len(one) - behind :]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        count += 1
    return count


def _distinct(known: dict[int, str]) -> list[str]:
    return list(dict.fromkeys(known[number] for number in sorted(known) if known[number]))
