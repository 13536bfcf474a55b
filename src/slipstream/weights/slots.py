"""Which tensors a model needs, under which name and shape each file format keeps them."""

from __future__ import annotations

from typing import Literal

from slipstream.lean import dataclass

TensorKind = Literal["linear", "embedding", "vector"]


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor of the model, in Hugging Face terms, and how to find it in a file.

    Attributes:
        name: Hugging Face name, e.g. "model.layers.0.self_attn.q_proj.weight"; unique within the model.
        shape: as the model uses it, output rows first, e.g. (out_features, in_features).
        kind: what the backend does with it.
        hf_name: name in a safetensors file when it is not `name` (a merged or renamed tensor).
        hf_rows: the rows [start, stop) of the safetensors tensor that this slot takes, when it is part of one.
        gguf_name: name in a GGUF file.
        gguf_rows: the same for the GGUF tensor.
        gguf_expert: index into the leading dimension of a stacked [experts, rows, columns] GGUF tensor.
        gguf_rope_heads: number of heads whose rows llama.cpp stores interleaved for its RoPE; undone on reading.
        hf_offset: added to the values of a safetensors tensor (Gemma stores its norm weights minus one;
            GGUF files already hold the sum).
    """

    name: str
    shape: tuple[int, ...]
    kind: TensorKind
    gguf_name: str
    hf_name: str | None = None
    hf_rows: tuple[int, int] | None = None
    gguf_rows: tuple[int, int] | None = None
    gguf_expert: int | None = None
    gguf_rope_heads: int | None = None
    hf_offset: float = 0.0
