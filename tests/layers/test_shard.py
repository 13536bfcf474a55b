"""Splitting work between ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.layers.shard import Shard

pytestmark = pytest.mark.fast


@given(size=st.integers(1, 8), groups=st.integers(1, 5), unit=st.integers(1, 64))
def test_parts_cover_everything_once_and_respect_units(size: int, groups: int, unit: int) -> None:
    n = size * groups * unit
    parts = [Shard(rank, size).part(n, unit) for rank in range(size)]
    assert [start for start, _ in parts] == [0, *[stop for _, stop in parts[:-1]]]
    assert parts[-1][1] == n
    assert all(start % unit == 0 and stop > start for start, stop in parts)


def test_uneven_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="192 rows in units of 64 do not divide between 2 ranks"):
        Shard(0, 2).part(192, 64)


@pytest.mark.parametrize(("rank", "size"), [(1, 1), (-1, 2), (0, 0)])
def test_a_rank_outside_its_group(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match=f"rank {rank} of {size} does not exist"):
        Shard(rank, size)


def test_only_one_rank_can_run_without_a_communicator() -> None:
    Shard().require_single()
    with pytest.raises(ConfigError, match="over 2 ranks needs a communicator"):
        Shard(1, 2).require_single()
