"""Which backend runs the ops."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable

from slipstream.errors import ConfigError
from slipstream.kernels.table import Kernels
from slipstream.lean import dataclass

BACKENDS = ("auto", "cpu", "reference")
_NOT_BUILT = ("triton",)


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a model asks of a backend beyond the ops that every one has."""

    head_dim: int


def backend_refusals(needs: ModelNeeds) -> dict[str, str | None]:
    """The backends of this build, best first: None if it runs such a model, else why not.

    `select_kernels` may still miss something that a backend needs.
    """
    return {"cpu": _cpu_refusal(needs), "reference": None}


def _cpu_refusal(needs: ModelNeeds) -> str | None:
    if needs.head_dim % 8 or not 8 <= needs.head_dim <= 256:
        return f"its attention takes head sizes that are multiples of 8 up to 256, not {needs.head_dim}"
    return None


def weight_bytes(backend: str, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> int:
    """Memory that the backend holds tensors of these GGUF types and shapes in, the row padding of experts aside."""
    if backend == "cpu":
        from slipstream.kernels.cpu.weights import held_bytes

        return sum(held_bytes(dtype, shape) for dtype, shape in tensors)
    return sum(4 * math.prod(shape) for _, shape in tensors)


def select_kernels(name: str, *, num_threads: int | None = None) -> Kernels:
    """The backend called `name`; "auto" is the best one, whatever the model.

    num_threads: processor threads of the ops; None leaves the backend's own choice. PyTorch has one such number for
    the whole process, so with `reference` the last call decides.

    Raises ConfigError for an unknown name, for a backend that is not part of this build, and when PyTorch is missing.
    """
    if name in _NOT_BUILT:
        raise ConfigError(
            f"the {name} backend is not part of this build.", where="backend", fix="Use backend=reference."
        )
    if name not in BACKENDS:
        raise ConfigError(f"unknown backend {name!r}.", where="backend", fix=f"Choose one of: {', '.join(BACKENDS)}.")
    if name in ("auto", "cpu"):
        from slipstream.kernels.cpu import cpu_kernels

        return cpu_kernels(num_threads)
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "the reference backend needs PyTorch, which is not installed.",
            where="backend",
            fix="Install it with: pip install 'slipstream-llm[torch]'",
        )
    from slipstream.kernels.reference import REFERENCE
    from slipstream.kernels.reference.threads import set_num_threads

    if num_threads is not None:
        set_num_threads(num_threads)
    return REFERENCE
