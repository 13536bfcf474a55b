"""The longest suffix of a growing token sequence that occurred in it before."""

from __future__ import annotations

from slipstream._native import SuffixAutomaton

__all__ = ["BYTES_PER_TOKEN", "SuffixAutomaton"]

BYTES_PER_TOKEN = 100  # about, what is reserved for growth included
