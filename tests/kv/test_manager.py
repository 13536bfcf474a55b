from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from slipstream.kv.block import KVInvariantError
from slipstream.kv.manager import BlockTable, KVManager

pytestmark = pytest.mark.fast


@dataclass(eq=False)
class Sequence:
    tokens: list[int]
    computed: int = 0
    cache_salt: str | None = None
    table: BlockTable = field(default_factory=BlockTable)


def compute(kv: KVManager, seq: Sequence, upto: int | None = None) -> None:
    upto = len(seq.tokens) if upto is None else upto
    assert kv.reserve(seq, upto)
    seq.computed = upto
    kv.commit(seq)


def used_and_released(kv: KVManager, tokens: range, salt: str | None = None) -> list[int]:
    seq = Sequence(list(tokens), cache_salt=salt)
    compute(kv, seq)
    blocks = list(seq.table.blocks)
    kv.release(seq)
    return blocks


def test_reserve_gives_blocks_as_the_sequence_grows() -> None:
    kv, seq = KVManager(6, 4), Sequence(list(range(9)))
    assert kv.reserve(seq, 4)
    assert seq.table.blocks == [0]
    assert kv.reserve(seq, 4)
    assert seq.table.blocks == [0]
    assert kv.reserve(seq, 9)
    assert seq.table.blocks == [0, 1, 2]
    kv.check([seq])


def test_reserve_is_all_or_nothing() -> None:
    kv, seq = KVManager(3, 4), Sequence(list(range(20)))
    assert kv.reserve(seq, 5)
    before = (list(seq.table.blocks), kv.free_order(), kv.usage())
    assert not kv.reserve(seq, 13)
    assert not kv.reserve(seq, 12, keep_free=1)
    assert (list(seq.table.blocks), kv.free_order(), kv.usage()) == before
    assert kv.reserve(seq, 12)


def test_tails_are_evicted_first_and_only_after_empty_blocks() -> None:
    kv = KVManager(6, 4)
    assert used_and_released(kv, range(10)) == [0, 1, 2]
    assert kv.free_order() == [2, 3, 4, 5, 1, 0]
    other = Sequence(list(range(100, 117)))
    assert kv.reserve(other, 17)
    assert other.table.blocks == [2, 3, 4, 5, 1]
    assert kv.usage().evictions == 1
    assert [n.block for n in kv.match(Sequence(list(range(10)))).nodes] == [0]


def test_eviction_is_least_recently_used() -> None:
    kv = KVManager(3, 4)
    for start in (0, 100, 200):
        used_and_released(kv, range(start, start + 4))
    touched = Sequence([*range(4), 9])
    assert kv.reserve(touched, 4, kv.match(touched))
    kv.release(touched)
    assert kv.free_order() == [1, 2, 0]


def test_a_hit_shares_blocks_and_counts() -> None:
    kv = KVManager(8, 4)
    first = Sequence(list(range(9)))
    compute(kv, first)
    second = Sequence(list(range(9)))
    hit = kv.match(second)
    assert ([n.block for n in hit.nodes], hit.num_tokens) == ([0, 1], 8)
    assert kv.reserve(second, 9, hit)
    assert second.table.blocks == [0, 1, 3]
    assert [kv.refs(b) for b in range(4)] == [2, 2, 1, 1]
    kv.release(first)
    assert [kv.refs(b) for b in range(4)] == [1, 1, 0, 1]
    kv.check([second])
    usage = kv.usage()
    assert (usage.used, usage.cached, usage.free) == (3, 0, 5)
    assert (usage.queried_tokens, usage.hit_tokens, usage.hit_rate) == (9, 8, 8 / 9)


def test_hit_rate_without_queries_is_zero() -> None:
    assert KVManager(1, 4).usage().hit_rate == 0.0


def test_the_last_token_is_never_served() -> None:
    kv = KVManager(8, 4)
    used_and_released(kv, range(8))
    assert [kv.match(Sequence(list(range(n)))).num_tokens for n in (4, 5, 8, 9)] == [0, 4, 4, 8]


def test_a_revived_block_counts_as_taken() -> None:
    kv = KVManager(3, 4)
    used_and_released(kv, range(8))
    seq = Sequence(list(range(12)))
    assert not kv.reserve(seq, 12, kv.match(seq), keep_free=1)
    assert kv.reserve(seq, 12, kv.match(seq))
    assert (seq.table.blocks, kv.num_free, kv.usage().cached) == ([0, 1, 2], 0, 0)


def test_only_computed_full_blocks_are_shared() -> None:
    kv, seq = KVManager(8, 4), Sequence(list(range(12)))
    assert kv.reserve(seq, 12)
    seq.computed = 7
    kv.commit(seq)
    assert kv.match(Sequence(list(range(12)))).num_tokens == 4
    seq.computed = 12
    kv.commit(seq)
    assert kv.match(Sequence(list(range(13)))).num_tokens == 12


def test_positions_beyond_the_known_tokens_are_not_committed() -> None:
    kv, seq = KVManager(8, 4), Sequence(list(range(6)))
    assert kv.reserve(seq, 8)
    seq.computed = 8
    kv.commit(seq)
    assert len(seq.table.nodes) == 1


def test_salts_separate() -> None:
    kv = KVManager(8, 4)
    used_and_released(kv, range(5), "one")
    found = [kv.match(Sequence(list(range(5)), cache_salt=s)).num_tokens for s in ("one", "two", None)]
    assert found == [4, 0, 0]


def test_switched_off_nothing_is_cached() -> None:
    kv = KVManager(8, 4, enable_prefix_caching=False)
    used_and_released(kv, range(9))
    assert kv.match(Sequence(list(range(9)))).nodes == ()
    assert (kv.usage().cached, kv.usage().free) == (0, 8)


def test_duplicate_content_computed_at_the_same_time_is_cached_once() -> None:
    kv = KVManager(8, 4)
    one, two = Sequence(list(range(8))), Sequence(list(range(8)))
    compute(kv, one)
    compute(kv, two)
    assert (one.table.blocks, two.table.blocks) == ([0, 1], [2, 3])
    kv.release(one)
    kv.release(two)
    assert (kv.usage().cached, kv.free_order()[-2:]) == (2, [1, 0])
    kv.check([])


def test_a_collision_ends_caching_of_that_sequence_only() -> None:
    kv = KVManager(8, 4, hash_function=lambda data: b"same")
    one, two = Sequence(list(range(8))), Sequence(list(range(50, 58)))
    compute(kv, one)
    compute(kv, two)
    assert (len(one.table.nodes), len(two.table.nodes)) == (1, 0)
    assert kv.match(Sequence(list(range(50, 59)))).num_tokens == 0
    assert kv.match(Sequence(list(range(9)))).num_tokens == 4
    kv.check([one, two])


@pytest.mark.parametrize("caching", [True, False])
def test_fork_shares_full_blocks_by_reference(caching: bool) -> None:
    kv = KVManager(8, 4, caching)
    parent, child = Sequence(list(range(10))), Sequence(list(range(10)))
    compute(kv, parent)
    parent.tokens.append(77)
    assert kv.fork(parent, child) == 8
    assert child.table.blocks == [0, 1]
    assert [kv.refs(b) for b in range(3)] == [2, 2, 1]
    child.computed = 8
    assert kv.reserve(child, 10)
    assert child.table.blocks == [0, 1, 3]
    kv.release(parent)
    kv.check([child])
    assert (kv.usage().used, kv.usage().shared_tokens, kv.usage().hit_tokens) == (3, 8, 0)


def test_fork_leaves_the_childs_last_token_and_uncomputed_blocks() -> None:
    kv = KVManager(8, 4)
    parent = Sequence(list(range(8)))
    compute(kv, parent, 3)
    assert kv.fork(parent, Sequence(list(range(8)))) == 0
    compute(kv, parent, 7)
    assert kv.fork(parent, Sequence(list(range(8)))) == 4
    compute(kv, parent)
    assert kv.fork(parent, Sequence(list(range(8)))) == 4


def test_fork_refuses_what_is_not_a_child() -> None:
    kv = KVManager(8, 4)
    parent = Sequence(list(range(8)))
    compute(kv, parent)
    with pytest.raises(KVInvariantError, match="parent's tokens"):
        kv.fork(parent, Sequence([9, 1, 2, 3, 4]))
    with pytest.raises(KVInvariantError, match="cache salt"):
        kv.fork(parent, Sequence(list(range(8)), cache_salt="x"))
    with pytest.raises(KVInvariantError, match="already owns"):
        kv.fork(parent, parent)


def test_reset_forgets_and_what_runs_is_not_cached_any_more() -> None:
    kv = KVManager(8, 4)
    used_and_released(kv, range(100, 108))
    running = Sequence(list(range(12)))
    compute(kv, running, 4)
    kv.reset_prefix_cache()
    assert kv.match(Sequence(list(range(100, 109)))).num_tokens == 0
    compute(kv, running)
    kv.check([running])
    kv.release(running)
    assert (kv.usage().cached, kv.usage().free) == (0, 8)
    assert used_and_released(kv, range(8))
    assert kv.match(Sequence(list(range(9)))).num_tokens == 8


def test_a_stale_hit_is_refused() -> None:
    kv = KVManager(4, 4)
    used_and_released(kv, range(4))
    seq = Sequence(list(range(5)))
    hit = kv.match(seq)
    assert kv.reserve(Sequence(list(range(16))), 16)
    with pytest.raises(KVInvariantError, match="stale"):
        kv.reserve(seq, 5, hit)


def test_a_hit_for_a_sequence_with_blocks_is_refused() -> None:
    kv, seq = KVManager(4, 4), Sequence(list(range(5)))
    assert kv.reserve(seq, 4)
    with pytest.raises(KVInvariantError, match="already owns"):
        kv.reserve(seq, 5, kv.match(seq))


def test_check_finds_leaks_and_theft() -> None:
    kv, seq = KVManager(4, 4), Sequence(list(range(8)))
    compute(kv, seq)
    kv.check([seq])
    with pytest.raises(KVInvariantError, match="reference counts of 2 blocks"):
        kv.check([])
    seq.table.blocks[1] = 3
    with pytest.raises(KVInvariantError, match="reference counts of 2 blocks"):
        kv.check([seq])
