import pytest

from slipstream.kv.prefix import PrefixCache, PrefixNode

pytestmark = pytest.mark.fast

A, B, C = (1, 2), (3, 4), (5, 6)


def digests(cache: PrefixCache, tokens: tuple[int, ...], salt: str | None = None) -> list[bytes]:
    found: list[bytes] = []
    cache.extend_digests(found, tokens, salt, len(tokens) // 2)
    return found


def insert_chain(
    cache: PrefixCache, blocks: list[int], tokens: tuple[int, ...], salt: str | None = None
) -> list[PrefixNode | None]:
    nodes: list[PrefixNode | None] = []
    for i, (block, digest) in enumerate(zip(blocks, digests(cache, tokens, salt), strict=True)):
        nodes.append(cache.insert(block, digest, nodes[-1] if nodes else None, tokens[2 * i : 2 * i + 2], salt))
    return nodes


def matched(cache: PrefixCache, tokens: tuple[int, ...], salt: str | None = None) -> list[int]:
    return [node.block for node in cache.match(digests(cache, tokens, salt), tokens, salt, len(tokens) // 2)]


def test_the_longest_common_prefix_is_found() -> None:
    cache = PrefixCache(8, 2)
    insert_chain(cache, [4, 2], A + B)
    assert matched(cache, A + B) == [4, 2]
    assert matched(cache, A + B + C) == [4, 2]
    assert matched(cache, A + C) == [4]
    assert matched(cache, B + A) == matched(cache, B) == []


def test_digests_depend_on_everything_before_and_on_the_salt() -> None:
    cache = PrefixCache(1, 2)
    all_of = [*digests(cache, A + B), *digests(cache, C + B), *digests(cache, A + B, "x"), *digests(cache, A + B, "")]
    assert len(set(all_of)) == 8
    assert digests(cache, A + B) == [*digests(cache, A), digests(cache, A + B)[1]]


def test_digests_are_extended_not_recomputed() -> None:
    cache = PrefixCache(1, 2)
    found = [b"given"]
    cache.extend_digests(found, A + B, None, 2)
    assert found[0] == b"given"
    assert found[1] != digests(cache, A + B)[1]


def test_tenants_with_different_salt_never_share() -> None:
    cache = PrefixCache(8, 2)
    insert_chain(cache, [0], A, "one")
    assert [matched(cache, A, salt) for salt in ("one", "two", None)] == [[0], [], []]


def test_a_second_copy_of_the_same_content_stays_private() -> None:
    cache = PrefixCache(8, 2)
    first = insert_chain(cache, [0, 1], A + B)
    assert insert_chain(cache, [2, 3], A + B) == first
    assert [cache.holds(b) for b in range(4)] == [True, True, False, False]


def test_forget() -> None:
    cache = PrefixCache(8, 2)
    insert_chain(cache, [0, 1], A + B)
    assert cache.forget(1)
    assert not cache.forget(1)
    assert (matched(cache, A + B), len(cache), cache.holds(1)) == ([0], 1, False)


@pytest.mark.parametrize("width", [0, 1])
def test_a_hash_collision_never_serves_other_tokens_salts_or_parents(width: int) -> None:
    def weak(data: bytes) -> bytes:
        return data[-2 * 8 :: 8][:width]  # width 1: the first token of the block only, whatever stands before

    cache = PrefixCache(8, 2, weak)
    assert insert_chain(cache, [0], A)[0] is not None
    assert matched(cache, (1, 9)) == []
    assert matched(cache, A, "salt") == []
    assert insert_chain(cache, [1], (1, 9)) == [None]
    if width:
        parent = insert_chain(cache, [0, 2], A + B)[0]
        assert parent is not None
        assert matched(cache, A + B) == [0, 2]
        stranger = PrefixNode(7, b"", None, C, None)
        assert cache.insert(3, digests(cache, C + B)[1], stranger, B, None) is None


def test_a_child_is_found_again_after_its_parent_was_evicted_and_computed_anew() -> None:
    cache = PrefixCache(8, 2)
    insert_chain(cache, [0, 1, 2], A + B + C)
    cache.forget(0)
    cache.forget(1)
    assert matched(cache, A + B + C) == []
    insert_chain(cache, [5, 6], A + B)
    assert matched(cache, A + B + C) == [5, 6, 2]


def test_inconsistencies() -> None:
    cache = PrefixCache(8, 2)
    nodes = insert_chain(cache, [0, 1], A + B)
    assert cache.inconsistencies() == []
    assert nodes[0] is not None
    nodes[0].block = 1
    assert len(cache.inconsistencies()) == 1
