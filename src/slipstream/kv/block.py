"""Free KV blocks, in the order in which they are handed out again."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.errors import EngineError


class KVInvariantError(EngineError):
    """The block bookkeeping contradicts itself. Always a defect in Slipstream, never a user's mistake."""


class FreeList:
    """A doubly linked list over block ids 0 .. num_blocks - 1, kept in two arrays.

    Every operation is O(1), removal from the middle included: that is what a prefix-cache hit on a free
    block needs. The index `num_blocks` is the sentinel that closes the ring.
    """

    __slots__ = ("_linked", "_next", "_prev", "_size")

    def __init__(self, num_blocks: int) -> None:
        """All blocks free, in ascending order."""
        ring = num_blocks + 1
        self._next = [(i + 1) % ring for i in range(ring)]
        self._prev = [(i - 1) % ring for i in range(ring)]
        self._linked = bytearray([1]) * num_blocks
        self._size = num_blocks

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return bool(self._linked[block])

    def __iter__(self) -> Iterator[int]:
        """From the block that is handed out next to the one that is kept longest."""
        sentinel = len(self._linked)
        block = self._next[sentinel]
        while block != sentinel:
            yield block
            block = self._next[block]

    def push_front(self, block: int) -> None:
        self._insert(block, after=len(self._linked))

    def push_back(self, block: int) -> None:
        self._insert(block, after=self._prev[len(self._linked)])

    def pop_front(self) -> int:
        block = self._next[len(self._linked)]
        if block == len(self._linked):
            raise KVInvariantError("a block was taken from an empty free list")
        self.remove(block)
        return block

    def remove(self, block: int) -> None:
        if not self._linked[block]:
            raise KVInvariantError(f"block {block} is not in the free list")
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._linked[block] = 0
        self._size -= 1

    def _insert(self, block: int, *, after: int) -> None:
        if self._linked[block]:
            raise KVInvariantError(f"block {block} was freed twice")
        following = self._next[after]
        self._next[after] = self._prev[following] = block
        self._prev[block], self._next[block] = after, following
        self._linked[block] = 1
        self._size += 1
