"""Native code (C++): the processor probe and helpers that repack weights. Sources under cpp/."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

def cpu_features() -> list[str]:
    """Instruction sets that both the processor and the operating system support, sorted, e.g. ["avx", "avx2", ...].

    x86-64: amx_bf16 amx_int8 amx_tile avx avx2 avx512_bf16 avx512_vnni avx512bw avx512dq avx512f avx512vl avx_vnni
    bmi2 f16c fma sse4_2. aarch64: bf16 dotprod fp16 i8mm neon sve sve2.
    """

def f16_to_f32(src: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    """Write the fp16 numbers whose bits are `src` [n] into `out` [n], exactly. Without the GIL.

    Raises TypeError for another dtype, shape or a non-contiguous array; ValueError for different lengths.
    """

def bf16_to_f32(src: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    """Write the bfloat16 numbers whose bits are `src` [n] into `out` [n], exactly. Without the GIL.

    Raises TypeError for another dtype, shape or a non-contiguous array; ValueError for different lengths.
    """

def unpermute_rows(src: NDArray[np.uint8], out: NDArray[np.uint8], num_heads: int) -> None:
    """Undo the row interleave of query and key projections in GGUF files of the Llama family. Without the GIL.

    `src`, `out` [num_rows, row_bytes]: rows as raw bytes, so that quantised rows move unchanged. Within each of the
    `num_heads` heads, even rows go to the first half and odd rows to the second.

    Raises TypeError for another dtype, shape or a non-contiguous array; ValueError if the shapes differ, the arrays
    overlap or num_rows is not a multiple of 2 * num_heads.
    """

def read_strings(data: NDArray[np.uint8], start: int, count: int) -> tuple[list[str], int]:
    """`count` strings as GGUF stores them (64-bit length, UTF-8) from byte `start` on, and where the last one ends.

    Fewer come back when the next one is not whole or not valid UTF-8.
    """

class SuffixAutomaton:
    """Suffix automaton over token ids (Blumer et al., The smallest automaton recognizing the subwords of a text, 1985).

    Tokens are added at the end, amortised O(1) each, with O(n) memory.
    """

    def __init__(self) -> None: ...
    def extend(self, tokens: Sequence[int]) -> None:
        """All of them or, with ValueError, none if one is negative."""

    def longest(self, min_length: int, max_length: int) -> tuple[int, int] | None:
        """The first of `matches`, without looking for the others."""

    def matches(self, min_length: int, max_length: int) -> list[tuple[int, int]]:
        """(length, end) of suffixes that occurred before, longest first.

        tokens[end - length + 1 : end + 1] equals the sequence's last `length` tokens and `end` lies before the last
        token. Ends are distinct; a match longer than `max_length` counts as one of `max_length`; those shorter than
        `min_length` are left out.
        """

    def continuation(self, end: int, count: int) -> tuple[int, ...]:
        """The `count` tokens after index `end`; past the sequence's own end it goes on as it did since `end`.

        So a loop is drafted as a loop. Raises IndexError if nothing follows `end`.
        """

    def __len__(self) -> int:
        """Tokens."""

    @property
    def num_states(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Memory, what is reserved for growth included."""

def return_free_memory() -> None:
    """Give the pages of the heap that nothing uses back to the system, where the C library can (glibc)."""

def split_merges(merges: list[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """BPE merges "left right" as pairs. Fewer come back when the next one does not hold exactly one space, or does not
    join two tokens of `vocab` to a third."""

def kernel_sets() -> list[str]:
    """Instruction sets that the CPU kernels are compiled for and that run here, best first: "avx2", "scalar"."""

def ceilings(pool: ThreadPool, kernels: str, num_bytes: int, rounds: int) -> list[tuple[str, float]]:
    """What the team reaches at most, best of `rounds`: ("maddubs", multiply-adds/s), ("fma", multiply-adds/s) and
    ("read", bytes/s of memory in four streams per thread over num_bytes). Without the GIL."""

class ThreadPool:
    """A fixed team of threads that the caller joins for each job; idle members sleep after a moment.

    Raises ValueError unless 1 <= num_threads <= 1024.
    """

    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...
    def stall(self, thread: int, microseconds: int) -> None:
        """For tests: member `thread` loses its processor for so long, again and again within a step; 0 ends that."""

class PackedMatrix:
    """A weight matrix repacked without loss for the kernels. `source` is copied: the file's bytes, flat.

    dtype: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K F32 F16 BF16. Raises ValueError for another one, a
    shape that its blocks do not divide, a wrong number of bytes, or numbers that are not finite.
    """

    def __init__(self, dtype: str, rows: int, cols: int, source: NDArray[np.uint8], pool: ThreadPool) -> None: ...
    @staticmethod
    def adopt(dtype: str, rows: int, cols: int, packed: NDArray[np.uint8]) -> PackedMatrix:
        """Over `packed`, the `data` of an equal matrix, without a copy or a look at the values.

        It must start at a multiple of 64 bytes, stay as it is, and have 64 readable bytes behind it. Raises
        ValueError for another alignment or number of bytes.
        """

    @staticmethod
    def from_arrays(
        dtype: str,
        quants: NDArray[np.int8] | NDArray[np.uint8],
        scales: NDArray[np.float16] | NDArray[np.float32],
        minima: NDArray[np.float16] | None,
        pool: ThreadPool,
    ) -> PackedMatrix:
        """From integers [rows, columns] with scales and minima [rows, groups]; nothing is converted.

        dtype: INT4_G32 INT4_G64 INT4_G128 INT8_G32 (int8, float16), INT8_CHANNEL (int8, float32, one group), UINT4_G32
        UINT4_G64 UINT4_G128 (uint8, float16, with minima). Raises ValueError for another type or shape, integers that
        do not fit, and numbers that are not finite; TypeError for arrays that are not contiguous.
        """

    @staticmethod
    def size_of(dtype: str, rows: int, cols: int) -> int:
        """Bytes of `data`. Raises ValueError for a type without a packed form or a shape that it does not divide."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """The packed bytes, read-only, flat, without a copy."""

    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dense(self) -> bool:
        """Whether products take float32 activations instead of int8."""

    def unpack_row(self, row: int, out: NDArray[np.float32]) -> None:
        """The exact values of a row; `out` holds at least the columns rounded up to 32."""

_Place = tuple[int, int]  # (buffer, first column); buffer -1: none
_Rope = tuple[NDArray[np.float32], NDArray[np.float32], bool]  # cos, sin [max_position, pairs], interleaved
_Prologue = tuple[NDArray[np.float32] | None, float, _Rope | None]  # head norm weight and epsilon, rotation

class Program:
    """A forward as a list of fused ops. Domains: 0 rows by token, 1 rows by wanted logits. cpp/kernels/cpu/ops.h says
    what each op does. The adding methods raise ValueError for shapes that no kernel takes and for buffers that are not
    what an op needs (whose rows, how many columns), and then add nothing."""

    def __init__(self, pool: ThreadPool, kernels: str) -> None: ...
    def add_rows(self, domain: int, columns: int) -> int:
        """A float32 buffer."""

    def add_output(self, columns: int) -> int:
        """The buffer that `run` is given."""

    def add_input(self, columns: int) -> int:
        """A float32 buffer, rows by token, that `run` fills with its `input`. At most one."""

    def add_tiles(self, domain: int, columns: int) -> int:
        """A buffer of int8 activations with their scales."""

    def embed(self, table: PackedMatrix, scale: float, out: _Place) -> None: ...
    def token(
        self,
        domain: int,
        columns: int,
        input: _Place,
        gather: bool,
        post_weight: NDArray[np.float32] | None,
        post_eps: float,
        scale: float,
        residual: _Place,
        sum: _Place,
        weight: NDArray[np.float32] | None,
        eps: float,
        out: _Place,
        tiles: int,
    ) -> None: ...
    def head_norm(
        self, columns: int, head_dim: int, input: _Place, out: _Place, weight: NDArray[np.float32], eps: float
    ) -> None: ...
    def rope(self, columns: int, head_dim: int, input: _Place, out: _Place, table: _Rope) -> None: ...
    def linear(
        self,
        domain: int,
        tiles: int,
        input: _Place,
        segments: list[tuple[PackedMatrix, NDArray[np.float32] | None, _Place, _Place, float]],
    ) -> None:
        """segments: (matrix, bias, residual, out, soft cap or 0)."""

    def linear_gated(
        self, domain: int, tiles: int, gate: PackedMatrix, up: PackedMatrix, kind: str, out: _Place, out_tiles: int
    ) -> None: ...
    def gate(self, columns: int, kind: str, gate_in: _Place, up_in: _Place, out: _Place, tiles: int) -> None: ...
    def soft_cap(self, domain: int, columns: int, cap: float, input: _Place, out: _Place) -> None: ...
    def attention(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int,
        cap: float,
        q: _Place,
        k: _Place,
        v: _Place,
        out: _Place,
        tiles: int,
        q_prologue: _Prologue,
        k_prologue: _Prologue,
        kv_dtype: str,
        block_size: int,
        num_blocks: int,
        cache: NDArray[Any],
    ) -> None: ...
    def route(self, num_experts: int, top_k: int, normalise: bool, input: _Place, out: _Place) -> None:
        """Softmax of `num_experts` logits, the `top_k` largest -> out [T, 2 top_k]: weights, then expert numbers."""

    def experts(
        self,
        top_k: int,
        kind: str,
        input: _Place,
        routing: _Place,
        out: _Place,
        experts: list[tuple[PackedMatrix, PackedMatrix, PackedMatrix]],
    ) -> None:
        """The gated MLPs (gate, up, down) that `routing` chooses, summed by rank with its weights."""

    def run(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        slots: NDArray[np.int32],
        query_start: NDArray[np.int32],
        kv_len: NDArray[np.int32],
        block_table: NDArray[np.int32],
        logits_rows: NDArray[np.int32],
        output: NDArray[np.float32],
        input: NDArray[np.float32] | None = None,
    ) -> None:
        """One step, without the GIL. Every index is checked first: ValueError for one out of range."""

    def copy_rows(self, buffer: int, out: NDArray[np.float32]) -> None:
        """The first rows of a buffer as the last run left them."""

    def set_profiling(self, on: bool) -> None: ...
    def profile(self) -> list[tuple[str, float]]:
        """(op, seconds since profiling was turned on), in program order; barriers included."""

    @property
    def num_ops(self) -> int: ...

_Draw = tuple[float, int, float, float, int, int]  # temperature, top_k, top_p, min_p, seed, position

class Sampler:
    """Draws tokens from rows of logits: what slipstream.sampling defines, bit for bit. The team's threads share rows.

    Raises ValueError for parameters without a meaning and IndexError for a row or token out of range.
    """

    def __init__(self, pool: ThreadPool, kernels: str) -> None: ...
    def draw(
        self, logits: NDArray[np.float32], draws: Sequence[tuple[int, _Draw]]
    ) -> tuple[list[int], list[tuple[int, Literal["nan", "+inf", "-inf"]]]]:
        """draws: (row of `logits`, draw). A token for each, -1 for those that the second list names with a fault."""

    def draw_reduced(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], draws: Sequence[tuple[int, _Draw]]
    ) -> tuple[list[int], list[tuple[int, Literal["nan", "+inf", "-inf"]]]]:
        """As `draw`, of logits [L, n] of the tokens `ids` [n]; see `SamplingOps.draw_reduced`."""

    def draw_processed(
        self, scores: NDArray[np.float64], draw: _Draw
    ) -> tuple[int, Literal["nan", "+inf", "-inf", ""]]:
        """The token, and "" or what is wrong with the scores [V]."""

    def logprobs(
        self, logits: NDArray[np.float32], asked: Sequence[tuple[int, int, int]]
    ) -> list[tuple[float, int, list[tuple[int, float]], Literal["nan", "+inf", "-inf", ""]]]:
        """asked: (row of `logits`, token, number of best tokens wanted). (log-probability, rank, best ones, fault)."""
