"""Programs that make no sense are refused when they are put together, with the reason, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.kernels.cpu.native import PackedMatrix, Program, ThreadPool, kernel_sets
from tests.native.packed import random_blocks

pytestmark = pytest.mark.fast
POOL = ThreadPool(2)
TOKENS, LOGITS, NONE = 0, 1, (-1, 0)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def matrix(rows: int, columns: int, dtype: str = "F32") -> PackedMatrix:
    return PackedMatrix(dtype, rows, columns, random_blocks(dtype, rows, columns), POOL)


class Sketch:
    """A program with a buffer of each kind: 64 columns by tokens and by wanted logits, tiles, an output of 40."""

    def __init__(self) -> None:
        self.program = Program(POOL, kernel_sets()[0])
        self.tokens = (self.program.add_rows(TOKENS, 64), 0)
        self.logits = (self.program.add_rows(LOGITS, 64), 0)
        self.tiles = self.program.add_tiles(TOKENS, 64)
        self.logit_tiles = self.program.add_tiles(LOGITS, 64)
        self.output = (self.program.add_output(40), 0)

    def token(self, *, domain: int = TOKENS, columns: int = 64, gather: bool = False, **places: Any) -> None:
        source, residual = places.get("source", self.tokens), places.get("residual", NONE)
        added, out, tiles = places.get("added", NONE), places.get("out", NONE), places.get("tiles", -1)
        self.program.token(
            domain, columns, source, gather, places.get("post"), 1e-5, 1.0, residual, added, places.get("weight"), 1e-5,
            out, tiles,
        )  # fmt: skip

    def linear(self, weight: PackedMatrix, *, domain: int = TOKENS, **places: Any) -> None:
        tiles, source = places.get("tiles", -1), places.get("source", NONE)
        segment = (weight, places.get("bias"), places.get("residual", NONE), places.get("out", self.tokens), 0.0)
        self.program.linear(domain, tiles, source, [segment])

    def gated(self, gate: PackedMatrix, up: PackedMatrix, *, domain: int = TOKENS, **places: Any) -> None:
        out, out_tiles = places.get("out", NONE), places.get("out_tiles", -1)
        self.program.linear_gated(domain, places.get("tiles", self.tiles), gate, up, "silu", out, out_tiles)

    def attention(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "num_heads": 2, "num_kv_heads": 2, "head_dim": 32, "scale": 1.0, "window": 0, "cap": 0.0, "q": self.tokens,
            "k": self.tokens, "v": self.tokens, "out": self.tokens, "tiles": -1, "q_prologue": (None, 0.0, None),
            "k_prologue": (None, 0.0, None), "kv_dtype": "float32", "block_size": 4, "num_blocks": 2,
            "cache": np.zeros(2 * 2 * 2 * 4 * 32, np.float32),
        }  # fmt: skip
        self.program.attention(**{**values, **changes})

    def experts(self, *experts: tuple[PackedMatrix, ...], top_k: int = 1, **places: Any) -> None:
        source, routing, out = (places.get(name, self.tokens) for name in ("source", "routing", "out"))
        self.program.experts(top_k, "silu", source, routing, out, list(experts))


def expert(hidden: int, wide: int) -> tuple[PackedMatrix, ...]:
    return matrix(wide, hidden), matrix(wide, hidden), matrix(hidden, wide)


ROPE = (ones(8, 16), ones(8, 16), False)
WIDE = (ones(8, 17), ones(8, 17), False)
REFUSED: dict[str, tuple[Callable[[Sketch], object], str]] = {
    "rows too wide": (lambda s: s.program.add_rows(TOKENS, 2**31 - 1), "2147483647 columns, where 1"),
    "rows without columns": (lambda s: s.program.add_rows(TOKENS, 0), "0 columns"),
    "a domain that is none": (lambda s: s.program.add_rows(2, 8), "domain is 0 or 1"),
    "tiles too wide": (lambda s: s.program.add_tiles(TOKENS, 2**31 - 1), "columns, where 1"),
    "output too wide": (lambda s: Program(POOL, "scalar").add_output(2**31 - 1), "columns, where 1"),
    "two outputs": (lambda s: s.program.add_output(8), "a program has one output"),
    "embed nowhere": (lambda s: s.program.embed(matrix(4, 64), 1.0, NONE), "the embedding is missing"),
    "embed for logits": (lambda s: s.program.embed(matrix(4, 64), 1.0, s.logits), "are wanted logits, not tokens"),
    "embed too wide": (
        lambda s: s.program.embed(matrix(4, 65), 1.0, s.tokens),
        "65 more are not in a buffer of 64",
    ),
    "embed into the output": (lambda s: s.program.embed(matrix(4, 40), 1.0, s.output), "only products write"),
    "a buffer that is none": (lambda s: s.program.embed(matrix(4, 8), 1.0, (9, 0)), "there is no buffer 9"),
    "token without input": (lambda s: s.token(source=NONE, out=s.tokens), "the input is missing"),
    "token of other rows": (lambda s: s.token(source=s.logits, out=s.tokens), "are wanted logits, not tokens"),
    "token to other rows": (lambda s: s.token(out=s.logits), "are wanted logits, not tokens"),
    "token adds other rows": (lambda s: s.token(out=s.tokens, residual=s.logits), "what is added: the rows"),
    "token sum elsewhere": (lambda s: s.token(added=s.logits), "the sum: the rows"),
    "token of logits from tokens": (lambda s: s.token(domain=LOGITS, out=s.logits), "are tokens, not wanted logits"),
    "gathering tokens": (lambda s: s.token(gather=True, out=s.tokens), "gathered for the wanted logits only"),
    "gathering logits": (
        lambda s: s.token(domain=LOGITS, gather=True, source=s.logits, out=s.logits),
        "are wanted logits, not tokens",
    ),
    "token without columns": (lambda s: s.token(columns=-5, out=s.tokens), "-5 columns"),
    "token too wide": (lambda s: s.token(columns=2**31 - 1, out=s.tokens), "2147483647 columns"),
    "token from the middle": (lambda s: s.token(columns=40, source=(s.tokens[0], 24), out=s.tokens), "24 and 40 more"),
    "token from before": (lambda s: s.token(columns=32, source=(s.tokens[0], -8), out=s.tokens), "columns -8"),
    "token from far behind": (lambda s: s.token(source=(s.tokens[0], 2**31 - 8), out=s.tokens), "columns 2147483640"),
    "token with a short weight": (lambda s: s.token(weight=ones(63), out=s.tokens), "63 numbers, 64 are needed"),
    "token to no tiles": (lambda s: s.token(tiles=7), "there are no tiles 7"),
    "token to other tiles": (lambda s: s.token(tiles=s.logit_tiles), "rows of tiles 1 are wanted logits"),
    "token to narrow tiles": (lambda s: s.token(columns=32, tiles=s.tiles), "tiles of 32 columns"),
    "token to the output": (lambda s: s.token(domain=LOGITS, gather=True, columns=40, out=s.output), "only products"),
    "head norm of logits": (
        lambda s: s.program.head_norm(64, 32, s.logits, s.logits, ones(32), 1e-5),
        "are wanted logits, not tokens",
    ),
    "head norm of half a head": (
        lambda s: s.program.head_norm(48, 32, s.tokens, s.tokens, ones(32), 1e-5),
        "head size 32 is not",
    ),
    "head norm of nothing": (
        lambda s: s.program.head_norm(64, 0, s.tokens, s.tokens, ones(32), 1e-5),
        "head size 0 is not",
    ),
    "rope of logits": (lambda s: s.program.rope(64, 32, s.logits, s.logits, ROPE), "are wanted logits, not tokens"),
    "rope too wide": (lambda s: s.program.rope(64, 32, s.tokens, s.tokens, WIDE), "more dimensions to rotate"),
    "rope of no heads": (lambda s: s.program.rope(64, 0, s.tokens, s.tokens, ROPE), "more dimensions to rotate"),
    "rope tables that differ": (
        lambda s: s.program.rope(64, 32, s.tokens, s.tokens, (ones(8, 16), ones(7, 16), False)),
        "cos and sin differ",
    ),
    "product of nothing": (lambda s: s.program.linear(TOKENS, s.tiles, NONE, []), "at least one matrix"),
    "product without input": (lambda s: s.linear(matrix(8, 64)), "the input is missing"),
    "product of other tiles": (lambda s: s.linear(matrix(8, 64, "Q8_0"), tiles=s.logit_tiles), "rows of tiles 1"),
    "product of other rows": (lambda s: s.linear(matrix(8, 64), source=s.logits), "are wanted logits, not tokens"),
    "dense product of tiles": (lambda s: s.linear(matrix(8, 64), tiles=s.tiles), "differ in their input"),
    "quantised product of rows": (lambda s: s.linear(matrix(8, 64, "Q8_0"), source=s.tokens), "differ in their input"),
    "product nowhere": (lambda s: s.linear(matrix(8, 64), source=s.tokens, out=NONE), "a product's result is missing"),
    "product too wide": (lambda s: s.linear(matrix(65, 64), source=s.tokens), "0 and 65 more"),
    "product of tokens to the output": (
        lambda s: s.linear(matrix(40, 64), source=s.tokens, out=s.output),
        "rows of the output are wanted logits",
    ),
    "product beyond the output": (
        lambda s: s.linear(matrix(41, 64), domain=LOGITS, source=s.logits, out=s.output),
        "not in an output of 40",
    ),
    "product adds the output": (
        lambda s: s.linear(matrix(40, 64), domain=LOGITS, source=s.logits, out=s.logits, residual=s.output),
        "nothing reads it",
    ),
    "product with a short bias": (lambda s: s.linear(matrix(8, 64), source=s.tokens, bias=ones(8)), "16 are needed"),
    "gated without a result": (
        lambda s: s.gated(matrix(64, 64, "Q8_0"), matrix(64, 64, "Q8_0")),
        "the result is missing",
    ),
    "gated of unlike sizes": (
        lambda s: s.gated(matrix(64, 64, "Q8_0"), matrix(32, 64, "Q8_0"), out=s.tokens),
        "gate and up must be alike",
    ),
    "gated dense": (lambda s: s.gated(matrix(64, 64), matrix(64, 64), tiles=-1, out=s.tokens), "the input is missing"),
    "gated to logits": (
        lambda s: s.gated(matrix(64, 64, "Q8_0"), matrix(64, 64, "Q8_0"), out=s.logits),
        "are wanted logits, not tokens",
    ),
    "gate of logits": (
        lambda s: s.program.gate(64, "silu", s.logits, s.logits, s.logits, -1),
        "the gate: the rows of buffer",
    ),
    "soft cap elsewhere": (lambda s: s.program.soft_cap(LOGITS, 64, 1.0, s.logits, s.tokens), "are tokens, not wanted"),
    "attention to logits": (lambda s: s.attention(out=s.logits), "are wanted logits, not tokens"),
    "attention without queries": (lambda s: s.attention(q=NONE), "q is missing"),
    "attention of no heads": (lambda s: s.attention(num_heads=0), "query heads must be a multiple"),
    "attention of too many heads": (lambda s: s.attention(num_heads=2**31 - 2), "2147483646 heads are too many"),
    "attention over a short cache": (lambda s: s.attention(cache=ones(7)), "the KV cache has the wrong size"),
    "attention over a negative window": (lambda s: s.attention(window=-1), "no negative size"),
    "attention to narrow tiles": (lambda s: s.attention(tiles=s.program.add_tiles(TOKENS, 32)), "tiles of 64 columns"),
    "route among none": (lambda s: s.program.route(0, 1, True, s.tokens, s.tokens), "0 columns"),
    "route to too many": (lambda s: s.program.route(4, 5, True, s.tokens, s.tokens), "5 experts per token out of 4"),
    "route to none": (lambda s: s.program.route(4, 0, True, s.tokens, s.tokens), "0 experts per token out of 4"),
    "route beyond the buffer": (
        lambda s: s.program.route(64, 33, True, s.tokens, s.tokens),
        "the routing: columns 0 and 66",
    ),
    "route of more than there are": (
        lambda s: s.program.route(65, 1, True, s.tokens, s.tokens),
        "the router's logits: columns",
    ),
    "route of logits": (lambda s: s.program.route(4, 1, True, s.logits, s.tokens), "are wanted logits, not tokens"),
    "no experts": (lambda s: s.experts(), "every expert has a gate"),
    "more experts per token than experts": (
        lambda s: s.experts(expert(64, 8), top_k=2),
        "2 experts per token out of 1",
    ),
    "unlike experts": (lambda s: s.experts(expert(64, 8), expert(64, 9)), "gate and up matrices differ in shape"),
    "experts too wide": (lambda s: s.experts(expert(65, 8)), "the input: columns 0 and 65"),
    "experts to logits": (lambda s: s.experts(expert(64, 8), out=s.logits), "are wanted logits, not tokens"),
    "experts without routing": (lambda s: s.experts(expert(64, 8), routing=NONE), "the routing is missing"),
    "attention that rotates too much": (
        lambda s: s.attention(q_prologue=(None, 0.0, WIDE)),
        "more dimensions to rotate",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str) -> None:
    sketch = Sketch()
    add, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        add(sketch)
    assert sketch.program.num_ops == 0


def test_what_is_refused_leaves_the_program_as_it_was() -> None:
    """After all those attempts it still runs what it is made of."""
    sketch = Sketch()
    for add, _ in REFUSED.values():
        with pytest.raises(ValueError, match=r"."):
            add(sketch)
    weight = matrix(40, 64)
    sketch.program.embed(matrix(4, 64), 1.0, sketch.tokens)
    sketch.token(domain=LOGITS, gather=True, out=sketch.logits)
    sketch.linear(weight, domain=LOGITS, source=sketch.logits, out=sketch.output)
    out = np.empty((1, 40), np.float32)
    ids, zero = np.array([3, 1], np.int32), np.zeros(2, np.int32)
    sketch.program.run(
        ids, zero, zero, np.array([0, 2], np.int32), ids[:1], np.zeros((1, 1), np.int32), np.array([1], np.int32), out
    )
    row, expected = np.empty(64, np.float32), random_blocks("F32", 40, 64).view(np.float32).reshape(40, 64)
    matrix(4, 64).unpack_row(1, row)
    np.testing.assert_allclose(out[0], expected @ row, rtol=1e-5, atol=1e-5)


def test_a_routing_that_is_none_chooses_experts_that_there_are() -> None:
    """Buffers hold what their last writer left; expert numbers are looked at before they are used."""
    sketch = Sketch()
    sketch.program.embed(matrix(4, 64), 1e30, sketch.tokens)
    result = (sketch.program.add_rows(TOKENS, 64), 0)
    sketch.experts(expert(64, 8), expert(64, 8), top_k=2, out=result)
    ids, zero = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    sketch.program.run(
        ids, zero, zero, np.array([0, 4], np.int32), ids[:1], np.zeros((1, 1), np.int32), zero[:0],
        np.empty((0, 40), np.float32),
    )  # fmt: skip
    sketch.program.copy_rows(result[0], np.empty((4, 64), np.float32))


@pytest.mark.parametrize(
    ("query_start", "kv_len", "message"),
    [
        ([0, 2**31 - 1, 2], [1, 1], "query_start must run from 0"),
        ([0, 1, 3], [1, 1], "query_start must run from 0"),
        ([0, 0, 2], [1, 2], "row 0 has no token"),
        ([0, 2], [2**31 - 1], "row 0 has too few blocks"),
        ([0, 2], [1], "row 0 attends to fewer tokens than it brings"),
    ],
)
def test_rows_of_a_batch_that_make_no_sense(query_start: list[int], kv_len: list[int], message: str) -> None:
    sketch = Sketch()
    sketch.attention()
    zero, rows = np.zeros(2, np.int32), len(kv_len)
    with pytest.raises(ValueError, match=message):
        sketch.program.run(
            zero, np.arange(2, dtype=np.int32), zero, np.array(query_start, np.int32), np.array(kv_len, np.int32),
            np.zeros((rows, 2), np.int32), np.zeros(0, np.int32), np.empty((0, 40), np.float32),
        )  # fmt: skip
