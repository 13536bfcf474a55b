"""Rotary position tables and the ways of stretching them.

All arithmetic is float64; only the finished cos and sin are rounded to float32.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.specs import RopeTable
from slipstream.lean import dataclass

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
Float64Array = NDArray[np.float64]

_POSITIONS_AT_ONCE = 1024  # in float64, which all together would take four times the table


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One rotation: its base frequencies and how they are stretched.

    Attributes:
        theta: base; pair i turns by theta^(-2 i / rotary_dim) per position.
        rotary_dim: leading dimensions of a head that are rotated.
        interleaved: pairs are (2 i, 2 i + 1) instead of (i, i + rotary_dim / 2).
        kind: "linear" divides every frequency by `factor`. "dynamic" (NTK) leaves the frequencies alone up to
            the context that the model was made for and changes all of them with the length beyond it, cached keys
            included, so it is served up to that context only. "llama3" divides the low frequencies. "yarn" blends by
            wavelength and scales cos and sin by `attention_factor` (Peng et al., arXiv 2309.00071).
        original_max_position: context before stretching, for llama3 and yarn.
        low_freq_factor, high_freq_factor: llama3's band, in turns over the original context.
        beta_fast, beta_slow: yarn's band, in turns over the original context.
        truncate: yarn rounds the band outwards to whole pairs.
        attention_factor: multiplies cos and sin.
        frequency_factors: one divisor per pair, given by the file itself; on top of `kind`.
    """

    theta: float
    rotary_dim: int
    interleaved: bool = False
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    frequency_factors: tuple[float, ...] | None = None


def rope_table(config: RopeConfig, max_position: int) -> RopeTable:
    """cos and sin of the positions 0 ... max_position - 1."""
    each, factor = frequencies(config), config.attention_factor
    cos, sin = (np.empty((max_position, len(each)), np.float32) for _ in range(2))
    for start in range(0, max_position, _POSITIONS_AT_ONCE):
        stop = min(start + _POSITIONS_AT_ONCE, max_position)
        angles = np.arange(start, stop, dtype=np.float64)[:, None] * each[None, :]
        cos[start:stop] = np.cos(angles) * factor
        sin[start:stop] = np.sin(angles) * factor
    return RopeTable(cos=cos, sin=sin, interleaved=config.interleaved)


def frequencies(config: RopeConfig) -> Float64Array:
    """Radians per position of every pair, [rotary_dim / 2]."""
    exponents: Float64Array = -np.arange(0, config.rotary_dim, 2, dtype=np.float64) / config.rotary_dim
    base: Float64Array = np.power(config.theta, exponents)
    if config.kind == "linear":
        base = base / config.factor
    elif config.kind == "llama3":
        base = _llama3(base, config)
    elif config.kind == "yarn":
        base = _yarn(base, config)
    if config.frequency_factors is not None:
        base = base / np.asarray(config.frequency_factors, dtype=np.float64)
    return base


def is_usable(config: RopeConfig, max_position: int) -> bool:
    """Whether every angle up to `max_position` is a number, as it is not with a base or a factor of zero, say."""
    if config.kind == "llama3" and not config.low_freq_factor < config.high_freq_factor:
        return False
    try:
        with np.errstate(all="ignore"):
            angles = frequencies(config) * max_position
    except (ArithmeticError, ValueError):
        return False
    return math.isfinite(config.attention_factor) and bool(np.all((angles > 0) & (angles < np.inf)))


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """How much yarn enlarges cos and sin: 0.1 ln(factor) + 1, or the ratio of two such terms when both are given."""

    def term(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    return term(mscale) / term(mscale_all_dim) if mscale and mscale_all_dim else term(1.0)


def _llama3(base: Float64Array, config: RopeConfig) -> Float64Array:
    """Fast pairs keep their frequency, slow ones are divided by the factor, a linear blend lies between."""
    turns = config.original_max_position * base / (2 * math.pi)
    keep = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return keep * base + (1.0 - keep) * base / config.factor


def _yarn(base: Float64Array, config: RopeConfig) -> Float64Array:
    """The same idea with a blend that is linear in the pair's index."""
    dim = config.rotary_dim

    def index_at(turns: float) -> float:
        wavelength = config.original_max_position / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(config.theta))

    low, high = index_at(config.beta_fast), index_at(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    stretch: Float64Array = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / width, 0.0, 1.0)
    return stretch * base / config.factor + (1.0 - stretch) * base
