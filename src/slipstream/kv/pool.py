"""Reference counts of KV blocks, and which free block is taken next."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.kv.block import FreeList, KVInvariantError


class BlockPool:
    """`num_blocks` blocks, each free (no reference) or owned (one reference per request that lists it).

    Free blocks without cached content are taken first, the last one freed at once (it is still in the
    processor's caches); after them the cached ones, least recently used first.
    """

    __slots__ = ("_free", "_refs")

    def __init__(self, num_blocks: int) -> None:
        self._refs = [0] * num_blocks
        self._free = FreeList(num_blocks)

    @property
    def num_blocks(self) -> int:
        return len(self._refs)

    @property
    def num_free(self) -> int:
        """Blocks without a reference, cached ones included."""
        return len(self._free)

    def refs(self, block: int) -> int:
        return self._refs[block]

    def free_blocks(self) -> Iterator[int]:
        """In the order in which they would be taken."""
        return iter(self._free)

    def take(self) -> int:
        """The next free block, now with one reference; its former content is the caller's to forget."""
        block = self._free.pop_front()
        self._refs[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One reference more; a free block becomes owned again with its content intact."""
        if self._refs[block] == 0:
            self._free.remove(block)
        self._refs[block] += 1

    def release(self, block: int, *, cached: bool) -> None:
        """One reference less. `cached`: the content may be hit again, so keep the block as long as possible."""
        if self._refs[block] == 0:
            raise KVInvariantError(f"block {block} was released without a reference")
        self._refs[block] -= 1
        if self._refs[block] == 0:
            if cached:
                self._free.push_back(block)
            else:
                self._free.push_front(block)

    def check(self, expected_refs: list[int]) -> None:
        """Raise KVInvariantError unless the reference counts are exactly these and the free list agrees."""
        if expected_refs != self._refs:
            wrong = [b for b, (want, have) in enumerate(zip(expected_refs, self._refs, strict=True)) if want != have]
            detail = ", ".join(f"{b}: {self._refs[b]} instead of {expected_refs[b]}" for b in wrong[:8])
            raise KVInvariantError(f"reference counts of {len(wrong)} blocks are wrong ({detail})")
        walked = list(self._free)
        if len(walked) != len(self._free) or set(walked) != {b for b, refs in enumerate(self._refs) if refs == 0}:
            raise KVInvariantError("the free list does not hold exactly the blocks without a reference")
