import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kv.block import FreeList, KVInvariantError

pytestmark = pytest.mark.fast


def test_starts_with_every_block_in_ascending_order() -> None:
    free = FreeList(4)
    assert list(free) == [0, 1, 2, 3]
    assert len(free) == 4


def test_removal_from_the_middle_and_insertion_at_both_ends() -> None:
    free = FreeList(5)
    free.remove(2)
    assert (list(free), 2 in free, 3 in free) == ([0, 1, 3, 4], False, True)
    assert free.pop_front() == 0
    free.push_back(2)
    free.push_front(0)
    assert list(free) == [0, 1, 3, 4, 2]


@pytest.mark.parametrize("push", ["push_front", "push_back"])
def test_freeing_twice(push: str) -> None:
    with pytest.raises(KVInvariantError, match="block 1 was freed twice"):
        getattr(FreeList(2), push)(1)


def test_taking_what_is_not_there() -> None:
    free = FreeList(1)
    free.remove(0)
    with pytest.raises(KVInvariantError, match="empty"):
        free.pop_front()
    with pytest.raises(KVInvariantError, match="block 0 is not in the free list"):
        free.remove(0)


@given(st.lists(st.tuples(st.sampled_from(["front", "back", "pop", "remove"]), st.integers(0, 6)), max_size=60))
@settings(deadline=None, max_examples=100)
def test_equals_a_plain_list(actions: list[tuple[str, int]]) -> None:
    free, plain = FreeList(7), list(range(7))
    for action, block in actions:
        if action == "pop" and plain:
            assert free.pop_front() == plain.pop(0)
        elif action == "remove" and block in plain:
            free.remove(block)
            plain.remove(block)
        elif action == "front" and block not in plain:
            free.push_front(block)
            plain.insert(0, block)
        elif action == "back" and block not in plain:
            free.push_back(block)
            plain.append(block)
        assert (list(free), len(free)) == (plain, len(plain))
        assert [b for b in range(7) if b in free] == sorted(plain)
