"""The compiled module's part for this backend; its only importer here."""

from __future__ import annotations

from slipstream._native import PackedMatrix, Program, Sampler, ThreadPool, ceilings, kernel_sets

__all__ = ["PackedMatrix", "Program", "Sampler", "ThreadPool", "ceilings", "kernel_sets"]
