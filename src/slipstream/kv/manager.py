"""Which KV blocks belong to which request. Numbers only; the arrays are in kv/storage.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Protocol

import xxhash

from slipstream.kv.block import KVInvariantError
from slipstream.kv.pool import BlockPool
from slipstream.kv.prefix import HashFunction, PrefixCache, PrefixNode
from slipstream.lean import dataclass


@dataclass(slots=True, eq=False)
class BlockTable:
    """The manager's part of a request; others read `blocks` and leave the rest alone."""

    blocks: list[int] = field(default_factory=list)  # block ids in sequence order
    digests: list[bytes] = field(default_factory=list)  # of full blocks of known tokens; never change
    nodes: list[PrefixNode] = field(default_factory=list)  # of the committed blocks
    cacheable: bool = True  # False after a digest collision
    era: int = 0  # how often the cache had been reset when the first block was given
    _snapshot: tuple[int, ...] = ()

    def snapshot(self) -> tuple[int, ...]:
        """`blocks` as they are; the same object until they change."""
        if len(self._snapshot) != len(self.blocks):  # blocks are only appended, or all released
            self._snapshot = tuple(self.blocks)
        return self._snapshot


class KVSequence(Protocol):
    """What the manager reads of a request."""

    @property
    def tokens(self) -> list[int]: ...  # prompt and output; only ever appended to
    @property
    def computed(self) -> int: ...  # leading tokens whose KV is written and verified
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def table(self) -> BlockTable: ...


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Blocks that a request may take over; valid until the manager changes next."""

    nodes: tuple[PrefixNode, ...]
    num_tokens: int
    version: int


@dataclass(frozen=True, slots=True)
class KVUsage:
    """Blocks: total = used + cached + free. Tokens: since start."""

    total: int
    used: int  # referenced by a request
    cached: int  # free to be taken, content can still be hit
    free: int  # without content
    queried_tokens: int  # of requests that looked for a prefix when admitted (again after a preemption)
    hit_tokens: int  # of those, served from the cache
    shared_tokens: int  # taken over from a parent request (n > 1)
    evictions: int

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


class KVManager:
    """All-or-nothing block allocation with reference counts and an optional prefix cache.

    Who owns a block, over the life of a request of 3 1/2 blocks (A B C full, D partial):

        reserve        commit            release                    take by another
        |----- owned (refs >= 1) --------|---- cached (refs = 0) ---|-- owned by it
     A  |              |== can be hit ===========================   |
     B  |              |== can be hit ======================    | (evicted before A: freed tail first)
     D  |                                | free, taken before any cached block

    A hit or a fork adds a reference; the block is owned until the last of them is released.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        *,
        hash_function: HashFunction = xxhash.xxh3_128_digest,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._pool = BlockPool(num_blocks)
        self._prefix = PrefixCache(num_blocks, block_size, hash_function)
        self._cached = 0  # free blocks with content
        self._version = 0
        self._era = 0
        self._queried_tokens = self._hit_tokens = self._shared_tokens = self._evictions = 0

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `reserve` can take, cached ones included."""
        return self._pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def refs(self, block: int) -> int:
        return self._pool.refs(block)

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return list(self._pool.free_blocks())

    def match(self, seq: KVSequence) -> PrefixHit:
        """The cached prefix of the sequence; never its last token, whose logits are needed and not cached."""
        nodes: list[PrefixNode] = []
        if self.enable_prefix_caching and seq.table.cacheable:
            full = (len(seq.tokens) - 1) // self.block_size
            self._prefix.extend_digests(seq.table.digests, seq.tokens, seq.cache_salt, full)
            nodes = self._prefix.match(seq.table.digests, seq.tokens, seq.cache_salt, full)
        return PrefixHit(tuple(nodes), len(nodes) * self.block_size, self._version)

    def reserve(self, seq: KVSequence, upto: int, hit: PrefixHit | None = None, *, keep_free: int = 0) -> bool:
        """Give the sequence blocks for its first `upto` tokens, `hit` in front; all of them or none.

        False, and nothing changed, if fewer than `keep_free` blocks would stay free. The caller then sets
        `computed` to `hit.num_tokens`.
        """
        if hit is None and keep_free == 0 and 0 < upto <= len(seq.table.blocks) * self.block_size:
            return True
        nodes = self._valid(seq, hit)
        needed = max(0, self.blocks_for(upto) - len(seq.table.blocks) - len(nodes))
        revived = sum(self._pool.refs(node.block) == 0 for node in nodes)
        if needed + revived + keep_free > self._pool.num_free:
            return False
        table = seq.table
        if not table.blocks:
            table.era = self._era
        if hit is not None:
            self._queried_tokens += len(seq.tokens)
            self._hit_tokens += hit.num_tokens
        for node in nodes:
            self._pool.retain(node.block)
            table.blocks.append(node.block)
        self._cached -= revived
        table.nodes.extend(nodes)
        for _ in range(needed):
            block = self._pool.take()
            if self._prefix.forget(block):
                self._cached -= 1
                self._evictions += 1
            table.blocks.append(block)
        self._version += 1
        return True

    def commit(self, seq: KVSequence) -> None:
        """Make the full blocks of verified tokens shareable; to be called after `computed` advanced."""
        table = seq.table
        if not (self.enable_prefix_caching and table.cacheable and table.era == self._era):
            return
        size, first = self.block_size, len(table.nodes)
        full = min(seq.computed, len(seq.tokens)) // size
        if full <= first:
            return
        self._prefix.extend_digests(table.digests, seq.tokens, seq.cache_salt, full)
        parent = table.nodes[-1] if table.nodes else None
        for i in range(first, full):
            tokens = tuple(seq.tokens[i * size : (i + 1) * size])
            node = self._prefix.insert(table.blocks[i], table.digests[i], parent, tokens, seq.cache_salt)
            if node is None:
                table.cacheable = False
                break
            table.nodes.append(node)
            parent = node

    def fork(self, parent: KVSequence, child: KVSequence) -> int:
        """Let `child`, which owns nothing yet, share the full computed blocks of `parent` that begin its own tokens.

        Returns the number of tokens shared (never the child's last); no block is taken. Needs no prefix cache.
        """
        if child.table.blocks:
            raise KVInvariantError("a sequence that already owns blocks cannot be forked into")
        full = min(parent.computed, len(child.tokens) - 1) // self.block_size
        num_tokens = full * self.block_size
        if child.cache_salt != parent.cache_salt or child.tokens[:num_tokens] != parent.tokens[:num_tokens]:
            raise KVInvariantError("a child must begin with its parent's tokens and have its cache salt")
        for block in parent.table.blocks[:full]:
            self._pool.retain(block)
        child.table.era = parent.table.era
        child.table.blocks.extend(parent.table.blocks[:full])
        child.table.nodes.extend(parent.table.nodes[:full])
        self._shared_tokens += num_tokens
        self._version += 1
        return num_tokens

    def release(self, seq: KVSequence) -> None:
        """Drop every reference of the sequence, tail first, so that tails are evicted first."""
        table = seq.table
        for block in reversed(table.blocks):
            cached = self._prefix.holds(block)
            self._pool.release(block, cached=cached)
            self._cached += cached and self._pool.refs(block) == 0
        table.blocks.clear()
        table.nodes.clear()
        table._snapshot = ()
        self._version += 1

    def reset_prefix_cache(self) -> None:
        """Forget all cached content (after weights changed, or to measure cold).

        Requests that own blocks keep them, but nothing that they compute is cached any more.
        """
        for block in range(self.num_blocks):
            self._prefix.forget(block)
        self._cached = 0
        self._era += 1
        self._version += 1

    def usage(self) -> KVUsage:
        free = self._pool.num_free
        return KVUsage(
            total=self.num_blocks,
            used=self.num_blocks - free,
            cached=self._cached,
            free=free - self._cached,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            shared_tokens=self._shared_tokens,
            evictions=self._evictions,
        )

    def check(self, sequences: Iterable[KVSequence]) -> None:
        """Raise KVInvariantError unless free + cached + owned = total and every reference count is exact.

        `sequences`: all that may own blocks. O(blocks); for tests and idle moments.
        """
        refs = [0] * self.num_blocks
        for seq in sequences:
            for block in seq.table.blocks:
                refs[block] += 1
        self._pool.check(refs)
        problems = self._prefix.inconsistencies()
        content = [self._prefix.holds(block) for block in self._pool.free_blocks()]
        if sum(content) != self._cached:
            problems.append(f"{sum(content)} free blocks hold content but {self._cached} are counted")
        if content != sorted(content):
            problems.append("a cached block would be evicted while an empty one is free")
        if problems:
            raise KVInvariantError("; ".join(problems))

    def _valid(self, seq: KVSequence, hit: PrefixHit | None) -> tuple[PrefixNode, ...]:
        if hit is None:
            return ()
        if hit.version != self._version:
            raise KVInvariantError("the prefix hit is stale: blocks changed hands since `match`")
        if seq.table.blocks:
            raise KVInvariantError("a prefix hit was given to a sequence that already owns blocks")
        return hit.nodes
