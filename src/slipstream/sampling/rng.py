"""Counter-based noise: every number is a pure function of (seed, position, token id).

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011). No state is kept, so a draw does not depend on the batch, on chunking or on what was drawn before.

Layout of one 128-bit counter: word 0 = token id // 4, words 1 and 2 = low and high half of the position,
word 3 = the domain. The 64-bit seed is the key, low half first. Token id % 4 selects the output word.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling import functions

UInt64Array = NDArray[np.uint64]

GUMBEL_DOMAIN = 0x47554D42  # separates this use of the generator from the others
ACCEPT_DOMAIN = 0x41434350

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: tuple[UInt64Array, UInt64Array, UInt64Array, UInt64Array], key: tuple[int, int]) -> UInt64Array:
    """Philox4x32-10 of N counters under one key.

    counter: four words, each uint64 [N] (or broadcastable to it) with values below 2**32; key: two such words.
    Returns uint64 [N, 4] with values below 2**32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    mask, shift = np.uint64(_MASK_32), np.uint64(32)
    m0, m1 = (np.uint64(m) for m in _MULTIPLIERS)
    for _ in range(_ROUNDS):
        product0, product1 = c0 * m0, c2 * m1
        c0 = (product1 >> shift) ^ c1 ^ np.uint64(k0)
        c2 = (product0 >> shift) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & mask, product0 & mask
        k0, k1 = (k0 + _WEYL[0]) & _MASK_32, (k1 + _WEYL[1]) & _MASK_32
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1)


def gumbel(seed: int, position: int, tokens: int | NDArray[np.integer]) -> NDArray[np.float64]:
    """Standard Gumbel noise for the draw of the token at absolute index `position` of its sequence.

    tokens: the vocabulary size V (noise for ids 0 .. V - 1) or an array of ids [N]; the value for an id is the
    same either way. With x the 32-bit word of that id, u = (x + 0.5) / 2**32 and the noise is -log(-log(u)),
    in float64, the logarithm being that of `functions`; it lies between -3.2 and 22.9. Raises ValueError for a seed
    or position outside 0 .. 2**64 - 1.
    """
    if not 0 <= seed <= _MASK_64 or not 0 <= position <= _MASK_64:
        raise ValueError(f"seed {seed} and position {position} must be in 0 .. 2**64 - 1.")
    if isinstance(tokens, (int, np.integer)):
        block = np.arange((int(tokens) + 3) // 4, dtype=np.uint64)
        words = _words(seed, position, block).reshape(-1)[: int(tokens)]
    else:
        ids = tokens.astype(np.uint64)
        words = _words(seed, position, ids >> np.uint64(2))[np.arange(len(ids)), ids & np.uint64(3)]
    uniform = (words.astype(np.float64) + 0.5) / 2.0**32
    return -functions.log(-functions.log(uniform))


def acceptance(seed: int, position: int) -> float:
    """Uniform in (0, 1), for the verdict on a draft of the token at absolute index `position`; independent of `gumbel`.

    Raises ValueError for a seed or position outside 0 .. 2**64 - 1.
    """
    if not 0 <= seed <= _MASK_64 or not 0 <= position <= _MASK_64:
        raise ValueError(f"seed {seed} and position {position} must be in 0 .. 2**64 - 1.")
    word = _words(seed, position, np.zeros(1, np.uint64), ACCEPT_DOMAIN)[0, 0]
    return (float(word) + 0.5) / 2.0**32


def _words(seed: int, position: int, block: UInt64Array, domain_of_use: int = GUMBEL_DOMAIN) -> UInt64Array:
    low, high, domain = (
        np.array([word], dtype=np.uint64) for word in (position & _MASK_32, position >> 32, domain_of_use)
    )
    return philox4x32((block, low, high, domain), (seed & _MASK_32, seed >> 32))


def draw_seed() -> int:
    """A fresh 64-bit seed from the operating system, for a request that names none."""
    return secrets.randbits(64)


def child_seed(seed: int, index: int) -> int:
    """Seed of the `index`-th of n samples of one request: the index-th successor of `seed` in SplitMix64.

    SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) adds a constant to a 64-bit state and mixes it one to one; `seed`
    is read as one of its outputs. So child 0 is the seed itself (the first of n samples is the sample of n = 1),
    and all 2**64 children of a seed are distinct. Also fit to derive one seed per request from an engine's seed.
    """
    if not 0 <= seed <= _MASK_64 or index < 0:
        raise ValueError(f"seed {seed} must be in 0 .. 2**64 - 1 and index {index} at least 0.")
    return _mix((_unmix(seed) + index * 0x9E3779B97F4A7C15) & _MASK_64)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return z ^ (z >> 31)


def _unmix(z: int) -> int:
    z = _undo_xorshift(z, 31)
    z = _undo_xorshift((z * pow(0x94D049BB133111EB, -1, 2**64)) & _MASK_64, 27)
    return _undo_xorshift((z * pow(0xBF58476D1CE4E5B9, -1, 2**64)) & _MASK_64, 30)


def _undo_xorshift(z: int, shift: int) -> int:
    return z ^ (z >> shift) ^ (z >> (2 * shift))
