"""Native code (C++): the processor probe and helpers that repack weights. Sources under cpp/."""

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
