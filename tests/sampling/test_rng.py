from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slipstream.sampling.rng import GUMBEL_DOMAIN, child_seed, draw_seed, gumbel, philox4x32

pytestmark = pytest.mark.fast

ONES = 0xFFFFFFFF
WORD = st.integers(0, ONES)
SEED = st.integers(0, 2**64 - 1)


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for i in range(10):
        if i:
            k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
        high0, low0 = divmod(0xD2511F53 * x0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * x2, 2**32)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
    return [x0, x1, x2, x3]


def plain_gumbel(seed: int, position: int, token: int) -> float:
    counter = [token // 4, position % 2**32, position // 2**32, GUMBEL_DOMAIN]
    word = plain_philox(counter, [seed % 2**32, seed // 2**32])[token % 4]
    return -math.log(-math.log((word + 0.5) / 2**32))


# The published test vectors of the Random123 library for philox4x32 with 10 rounds.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (np.array([word], dtype=np.uint64) for word in counter)
    assert philox4x32((c0, c1, c2, c3), key).tolist() == [list(expected)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=5), st.tuples(WORD, WORD))
def test_vectorised_philox_is_the_plain_one(counters: list[tuple[int, int, int, int]], key: tuple[int, int]) -> None:
    columns = np.array(counters, dtype=np.uint64).T
    words = philox4x32((columns[0], columns[1], columns[2], columns[3]), key)
    assert words.tolist() == [plain_philox(list(counter), list(key)) for counter in counters]


@settings(max_examples=40, deadline=None)
@given(SEED, st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**33), min_size=1, max_size=8))
def test_gumbel_of_any_ids_is_the_plain_one(seed: int, position: int, ids: list[int]) -> None:
    noise = gumbel(seed, position, np.array(ids, dtype=np.int64))
    assert noise.dtype == np.float64
    np.testing.assert_allclose(noise, [plain_gumbel(seed, position, i) for i in ids], rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(SEED, st.integers(0, 2**40), st.integers(1, 70))
def test_noise_does_not_depend_on_the_vocabulary_or_the_subset(seed: int, position: int, size: int) -> None:
    whole = gumbel(seed, position, 70)
    assert np.array_equal(gumbel(seed, position, size), whole[:size])
    subset = np.random.default_rng(size).permutation(70)[:size]
    assert np.array_equal(gumbel(seed, position, subset), whole[subset])


def test_seed_position_and_token_each_matter() -> None:
    base = gumbel(1, 5, 64)
    others = [gumbel(2, 5, 64), gumbel(1 + 2**32, 5, 64), gumbel(1, 6, 64), gumbel(1, 5 + 2**32, 64)]
    for i, first in enumerate([base, *others]):
        assert len(np.unique(first)) == 64
        for second in [base, *others][i + 1 :]:
            assert not np.any(first == second)


def test_noise_has_the_gumbel_distribution() -> None:
    noise = np.concatenate([gumbel(99, position, 1000) for position in range(20)])
    assert stats.kstest(noise, "gumbel_r").pvalue > 0.01
    one_token = np.array([gumbel(99, position, np.array([17]))[0] for position in range(2000)])
    assert stats.kstest(one_token, "gumbel_r").pvalue > 0.01


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
def test_out_of_range_is_refused(seed: int, position: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        gumbel(seed, position, 4)


def test_drawn_seeds_have_64_bits_and_differ() -> None:
    seeds = {draw_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds) >= 2**56


def test_children_are_the_splitmix64_sequence() -> None:
    # SplitMix64 started with state 1234567: its published first five outputs.
    outputs = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [child_seed(outputs[0], i) for i in range(5)] == outputs


@settings(max_examples=50, deadline=None)
@given(SEED, st.integers(1, 2**64 - 1))
def test_child_zero_is_the_seed_and_the_others_are_not(seed: int, index: int) -> None:
    assert child_seed(seed, 0) == seed
    assert child_seed(seed, index) != seed
    assert 0 <= child_seed(seed, index) < 2**64


@pytest.mark.parametrize(("seed", "index"), [(-1, 0), (2**64, 0), (0, -1)])
def test_child_seed_refuses(seed: int, index: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        child_seed(seed, index)
