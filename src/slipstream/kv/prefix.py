"""Automatic prefix caching: full blocks of KV found again by what they contain.

A block's digest is hash(digest of the block before it, its token ids), so equal digests stand for equal whole
prefixes (the scheme of vLLM's automatic prefix caching; PagedAttention, Kwon et al., arXiv 2309.06180). The
salt of a tenant enters the first digest only and thereby all. A digest only *finds* a candidate: token ids,
salt and parent are compared before it is served, so a hash collision costs a miss and never serves wrong KV.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import xxhash

HashFunction = Callable[[bytes], bytes]


class PrefixNode:
    """One cached block: where it is, and all that decides whether it may be served."""

    __slots__ = ("block", "digest", "parent", "salt", "tokens")

    def __init__(
        self, block: int, digest: bytes, parent: PrefixNode | None, tokens: tuple[int, ...], salt: str | None
    ) -> None:
        self.block = block
        self.digest = digest
        self.parent = parent
        self.tokens = tokens
        self.salt = salt


class PrefixCache:
    """Digest -> node, and block -> node. Knows nothing of references; the manager calls `forget` on reuse."""

    def __init__(self, num_blocks: int, block_size: int, hash_function: HashFunction = xxhash.xxh3_128_digest) -> None:
        self._block_size = block_size
        self._hash = hash_function
        self._by_digest: dict[bytes, PrefixNode] = {}
        self._by_block: list[PrefixNode | None] = [None] * num_blocks

    def __len__(self) -> int:
        return len(self._by_digest)

    def holds(self, block: int) -> bool:
        return self._by_block[block] is not None

    def extend_digests(self, digests: list[bytes], tokens: Sequence[int], salt: str | None, num_blocks: int) -> None:
        """Append to `digests` those of blocks len(digests) .. num_blocks - 1 of a sequence. Token ids >= 0."""
        size = self._block_size
        for i in range(len(digests), num_blocks):
            parent = digests[i - 1] if i else b"" if salt is None else b"\x01" + salt.encode()
            digests.append(self._hash(parent + array("q", tokens[i * size : (i + 1) * size]).tobytes()))

    def match(
        self, digests: Sequence[bytes], tokens: Sequence[int], salt: str | None, num_blocks: int
    ) -> list[PrefixNode]:
        """The longest cached chain for the first `num_blocks` blocks of a sequence."""
        size = self._block_size
        nodes: list[PrefixNode] = []
        parent: PrefixNode | None = None
        for i in range(num_blocks):
            node = self._by_digest.get(digests[i])
            if node is None or not _serves(node, parent, tuple(tokens[i * size : (i + 1) * size]), salt):
                break
            nodes.append(node)
            parent = node
        return nodes

    def insert(
        self, block: int, digest: bytes, parent: PrefixNode | None, tokens: tuple[int, ...], salt: str | None
    ) -> PrefixNode | None:
        """Register a computed block.

        Returns its node; the node of an earlier block if that one has the same content (then `block` stays
        private to its request); or None when another prefix has this digest, which ends the caller's chain.
        """
        known = self._by_digest.get(digest)
        if known is not None:
            return known if _serves(known, parent, tokens, salt) else None
        node = PrefixNode(block, digest, parent, tokens, salt)
        self._by_digest[digest] = node
        self._by_block[block] = node
        return node

    def forget(self, block: int) -> bool:
        """The block is about to be overwritten. True if it held cached content."""
        node = self._by_block[block]
        if node is None:
            return False
        del self._by_digest[node.digest]
        self._by_block[block] = None
        return True

    def inconsistencies(self) -> list[str]:
        """What contradicts what; empty when all is well."""
        found = [
            f"block {node.block} is indexed under a digest but holds another node"
            for digest, node in self._by_digest.items()
            if self._by_block[node.block] is not node or node.digest != digest
        ]
        held = sum(node is not None for node in self._by_block)
        if held != len(self._by_digest):
            found.append(f"{held} blocks hold nodes but {len(self._by_digest)} digests are indexed")
        return found


def _serves(node: PrefixNode, parent: PrefixNode | None, tokens: tuple[int, ...], salt: str | None) -> bool:
    if node.tokens != tokens or node.salt != salt or not _same_prefix(node.parent, parent):
        return False
    node.parent = parent  # the block before may have been evicted and computed anew: compare shortly next time
    return True


def _same_prefix(a: PrefixNode | None, b: PrefixNode | None) -> bool:
    while a is not b:
        if a is None or b is None or a.tokens != b.tokens or a.salt != b.salt:
            return False
        a, b = a.parent, b.parent
    return True
