"""The native CPU backend: a model's forward is recorded once and then runs as one native call per step."""

from __future__ import annotations

from slipstream.kernels.cpu.table import cpu_kernels

__all__ = ["cpu_kernels"]
