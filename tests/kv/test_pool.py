import pytest

from slipstream.kv.block import KVInvariantError
from slipstream.kv.pool import BlockPool

pytestmark = pytest.mark.fast


def test_take_retain_release() -> None:
    pool = BlockPool(3)
    assert [pool.take(), pool.take()] == [0, 1]
    pool.retain(0)
    assert ([pool.refs(b) for b in range(3)], pool.num_free) == ([2, 1, 0], 1)
    pool.release(0, cached=False)
    assert list(pool.free_blocks()) == [2]
    pool.release(0, cached=False)
    assert list(pool.free_blocks()) == [0, 2]


def test_empty_blocks_are_taken_before_cached_ones_and_those_in_lru_order() -> None:
    pool = BlockPool(5)
    for _ in range(5):
        pool.take()
    for block, cached in ((3, True), (1, False), (0, True), (4, False), (2, True)):
        pool.release(block, cached=cached)
    assert list(pool.free_blocks()) == [4, 1, 3, 0, 2]


def test_a_free_block_can_be_owned_again_out_of_order() -> None:
    pool = BlockPool(3)
    pool.retain(1)
    assert (list(pool.free_blocks()), pool.refs(1)) == ([0, 2], 1)


def test_releasing_without_a_reference() -> None:
    with pytest.raises(KVInvariantError, match="block 2 was released without a reference"):
        BlockPool(3).release(2, cached=False)


def test_check_names_the_wrong_count() -> None:
    pool = BlockPool(3)
    pool.take()
    pool.check([1, 0, 0])
    with pytest.raises(KVInvariantError, match=r"1 blocks are wrong \(0: 1 instead of 2\)"):
        pool.check([2, 0, 0])
