"""What one KV block holds, in numbers."""

from __future__ import annotations

import hashlib

from slipstream.lean import dataclass

KV_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Shape and type of the paged KV cache.

    A block stores `block_size` tokens of K and V for every layer and KV head.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16  # tokens
    dtype: str = "float32"

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V together, over all layers, for one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * KV_DTYPE_BYTES[self.dtype]

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def fingerprint(self) -> str:
        """Equal exactly when two caches can exchange blocks (layout and dtype)."""
        text = f"{self.num_layers},{self.num_kv_heads},{self.head_dim},{self.block_size},{self.dtype}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
