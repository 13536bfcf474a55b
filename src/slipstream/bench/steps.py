"""Single forward steps to be measured: how many sequences, how much context, how many new tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from slipstream.errors import UsageError
from slipstream.kernels.batch import ForwardBatch

BLOCK = 16
VERIFIED = 8  # so many new tokens at most are a verification, which wants all their logits; more are a prefill

_DECODE = re.compile(r"([0-9]{1,5})x([0-9]{1,7})")


@dataclass(frozen=True, slots=True)
class Step:
    """`tokens` are fed per sequence, behind `context` tokens that are already cached."""

    name: str
    sequences: int
    context: int
    tokens: int

    @property
    def length(self) -> int:
        """Positions that the model must have."""
        return self.context + self.tokens


def step_batch(step: Step, vocab_size: int) -> ForwardBatch:
    """Every sequence in blocks of its own; verification wants all logits, prefill only the last."""
    blocks = -(-step.length // BLOCK)
    table = np.arange(step.sequences * blocks, dtype=np.int32).reshape(step.sequences, blocks)
    positions = np.arange(step.context, step.length)
    slots = table[:, positions // BLOCK] * BLOCK + positions % BLOCK
    count = step.sequences * step.tokens
    wanted = np.arange(count) if step.tokens <= VERIFIED else np.arange(1, step.sequences + 1) * step.tokens - 1
    return ForwardBatch(
        token_ids=np.random.default_rng(0).integers(0, vocab_size, count).astype(np.int32),
        positions=np.tile(positions, step.sequences).astype(np.int32),
        slots=slots.reshape(-1).astype(np.int32),
        query_start=(np.arange(step.sequences + 1) * step.tokens).astype(np.int32),
        kv_len=np.full(step.sequences, step.length, np.int32),
        block_table=table,
        logits_rows=wanted.astype(np.int32),
    )


def parse_steps(decode: str, prefill: str) -> tuple[Step, ...]:
    """From "SEQUENCESxCONTEXT,..." and "TOKENS,...", each possibly empty. Raises UsageError."""
    found: list[Step] = []
    for term in filter(None, (each.strip() for each in decode.split(","))):
        match = _DECODE.fullmatch(term)
        if match is None or not int(match[1]):
            raise UsageError(f"{term!r} is not SEQUENCESxCONTEXT.", where="--decode", fix="Write 1x128,16x128.")
        found.append(Step(f"decode {int(match[1])} at {int(match[2])}", int(match[1]), int(match[2]), 1))
    for term in filter(None, (each.strip() for each in prefill.split(","))):
        if not (term.isascii() and term.isdigit()) or not int(term[:9]) > VERIFIED or len(term) > 7:
            raise UsageError(
                f"{term!r} is not a number of tokens above {VERIFIED}.", where="--prefill", fix="Write 128,512."
            )
        found.append(Step(f"prefill {int(term)}", 1, 0, int(term)))
    if not found:
        raise UsageError("there is no step to measure.", fix="Give --decode or --prefill.")
    return tuple(found)
