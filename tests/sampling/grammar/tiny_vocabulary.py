"""A vocabulary of all bytes, some longer pieces and two end-of-sequence tokens; and random walks under a grammar."""

from __future__ import annotations

from functools import cache

import numpy as np

from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.readers import GrammarReaders
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import GrammarState

PIECES = ['{"', '":', '",', '"}', "[]", "{}", '":"', '""', "null", "name", "age", "ab", "abc", "12", " the", "é"]
EOS = (256, 257)
VOCAB_SIZE = 258 + len(PIECES) + 3  # the last three are padding without bytes


class TinyTokenizer:
    special_ids = frozenset(EOS)

    def __init__(self) -> None:
        self._bytes = [bytes([i]) for i in range(256)] + [b"<end>", b"<stop>"] + [p.encode() for p in PIECES]

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        data, ids = text.encode(), []
        while data:
            best = max((piece for piece in PIECES if data.startswith(piece.encode())), key=len, default=None)
            ids.append(data[0] if best is None else 258 + PIECES.index(best))
            data = data[1 if best is None else len(best.encode()) :]
        return ids


TOKENIZER = TinyTokenizer()


@cache
def shared_readers() -> GrammarReaders:
    return GrammarReaders(VOCAB_SIZE, {i: TOKENIZER.token_bytes(i) for i in EOS})


@cache
def shared_compiler() -> GrammarCompiler:
    return compiler()


def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=shared_readers())


def text_of(tokens: list[int]) -> str:
    return b"".join(TOKENIZER.token_bytes(token) for token in tokens if token not in EOS).decode()


def still() -> float:
    """A clock: what a test asks for does not depend on how busy the machine is."""
    return 0.0


def state(spec: GrammarSpec, text: str = "") -> GrammarState:
    result = GrammarState(shared_compiler().compile(spec), clock=still)
    result.advance(TOKENIZER.encode(text))
    return result


def next_texts(at: GrammarState, remaining: int = 10_000) -> set[str]:
    """What the mask allows, as text; "END" for the end of sequence."""
    mask = at.mask(np.zeros(VOCAB_SIZE, np.float32), remaining=remaining)
    assert mask.shape == (VOCAB_SIZE,)
    ids = np.flatnonzero(mask).tolist()
    return {"END" if i in EOS else TOKENIZER.token_bytes(i).decode("latin-1") for i in ids}


def walk(spec: GrammarSpec, budget: int, seed: int, *, eos_bias: float = 0.0) -> tuple[list[int], GrammarState]:
    """Draw tokens at random until the grammar or an end-of-sequence token ends the text, or the budget does."""
    rng = np.random.default_rng(seed)
    at = GrammarState(shared_compiler().compile(spec), clock=still)
    tokens: list[int] = []
    while len(tokens) < budget and not at.finished and tokens[-1:] not in ([EOS[0]], [EOS[1]]):
        scores = rng.standard_normal(VOCAB_SIZE)
        scores[list(EOS)] += eos_bias
        mask = at.mask(scores, remaining=budget - len(tokens))
        tokens.append(int(np.where(mask, scores, -np.inf).argmax()))
        at.advance(tokens[-1:])
    return tokens, at
