"""What is asked of the server. The n-th request of a level is a function of (workload, level, n, seed, salt), so two
runs with one seed ask for the same lengths in the same order, whatever the server's speed.

The salt makes the words of a run its own: with a new one, nothing that an earlier run left in a prefix cache helps.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.bench.words import Calibration, draw_words
from slipstream.errors import UsageError

DEFAULT_LENGTHS = "16-64:16-64,128-512:64-128,1024-2048:128-256"
_CLASS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?:([0-9]{1,7})(?:-([0-9]{1,7}))?")
_NAMES = ("short", "medium", "long")


_UNKNOWN = Calibration()


@dataclass(frozen=True, slots=True)
class Item:
    """One request: a text, or messages of a chat. `due` is seconds from the start of a trace,
    None behind its end and in other workloads."""

    group: str
    prompt: str | Sequence[Mapping[str, Any]]
    max_tokens: int
    due: float | None = None


class Workload(Protocol):
    def item(self, level: int, index: int) -> Item: ...

    def describe(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Prompt and output tokens are drawn evenly between the bounds, both included."""

    name: str
    prompt: tuple[int, int]
    output: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the randomness of one run comes from."""

    seed: int
    salt: str
    calibration: Calibration = _UNKNOWN

    def lengths(self, level: int, index: int) -> random.Random:
        return random.Random(f"lengths {self.seed} {level} {index}")

    def text(self, rng_name: str, tokens: int) -> str:
        """About so many tokens of words that belong to this name and salt."""
        return draw_words(random.Random(f"{self.salt} {self.seed} {rng_name}"), self.calibration.words(tokens))


@dataclass(frozen=True, slots=True)
class Mixed:
    """Each class has an equal share; every run of len(classes) requests holds all of them, in random order."""

    classes: tuple[LengthClass, ...]
    source: Source

    def item(self, level: int, index: int) -> Item:
        size = len(self.classes)
        order = list(range(size))
        random.Random(f"order {self.source.seed} {level} {index // size}").shuffle(order)
        chosen = self.classes[order[index % size]]
        rng = self.source.lengths(level, index)
        prompt_tokens, output_tokens = rng.randint(*chosen.prompt), rng.randint(*chosen.output)
        return Item(chosen.name, self.source.text(f"{level} {index}", prompt_tokens), output_tokens)

    def describe(self) -> dict[str, str]:
        shown = ", ".join(f"{each.name} {_span(each.prompt)} + {_span(each.output)} tokens" for each in self.classes)
        return {"kind": "mixed", "classes": shown, "prompts": "random words, all different"}


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Requests of `groups` groups; those of a group begin with the same `prefix` tokens and then differ."""

    groups: int
    prefix: int
    suffix: tuple[int, int]
    output: tuple[int, int]
    source: Source

    def item(self, level: int, index: int) -> Item:
        rng = self.source.lengths(level, index)
        group = rng.randrange(self.groups)
        suffix, output = rng.randint(*self.suffix), rng.randint(*self.output)
        begin = self.source.text(f"prefix {level} {group}", self.prefix)
        words = self.source.calibration.per_word
        rest = draw_words(
            random.Random(f"{self.source.salt} {self.source.seed} {level} {index}"), max(1, round(suffix / words))
        )
        return Item(f"prefix {group}", f"{begin} {rest}", output)

    def describe(self) -> dict[str, str]:
        return {
            "kind": "shared-prefix",
            "groups": str(self.groups),
            "prefix": f"{self.prefix} tokens",
            "suffix": f"{_span(self.suffix)} tokens",
            "output": f"{_span(self.output)} tokens",
        }


def parse_lengths(text: str) -> tuple[LengthClass, ...]:
    """From "PROMPT:OUTPUT" of each class, comma-separated, a number or a LOW-HIGH range each. Raises UsageError."""
    found: list[LengthClass] = []
    terms = text.split(",")
    for number, term in enumerate(terms):
        match = _CLASS.fullmatch(term.strip())
        if match is None:
            raise UsageError(
                f"{term.strip()!r} is not PROMPT:OUTPUT in tokens.",
                where="--lengths",
                fix=f"Write ranges as in {DEFAULT_LENGTHS}.",
            )
        bounds = [int(each) if each else None for each in match.groups()]
        prompt = (bounds[0] or 0, bounds[1] if bounds[1] is not None else bounds[0] or 0)
        output = (bounds[2] or 0, bounds[3] if bounds[3] is not None else bounds[2] or 0)
        if not 1 <= prompt[0] <= prompt[1] or not 1 <= output[0] <= output[1]:
            raise UsageError(
                f"{term.strip()!r} has an empty range or a length of zero.", where="--lengths", fix="Write LOW-HIGH."
            )
        name = _NAMES[number] if len(terms) == len(_NAMES) else f"class {number + 1}"
        found.append(LengthClass(name, prompt, output))
    return tuple(found)


def _span(bounds: tuple[int, int]) -> str:
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]}-{bounds[1]}"
