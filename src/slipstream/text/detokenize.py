"""Text out of a stream of token ids."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from slipstream.text.tokenizer import Tokenizer

# UTF-8 finds its footing again within one character, four bytes; a token carries at least one.
_PROMPT_TAIL = 8


class IncrementalDetokenizer:
    """Turns ids into text as they come, never half a character, in constant time per token.

    Everything that `push` and `flush` return, joined, equals `tokenizer.decode` of all ids pushed. With `prompt_ids` it
    equals what those ids add to the prompt's text: a character whose first bytes end the prompt is completed, and a
    leading space is text unless the prompt has none before it.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._held = b""  # the beginning of a character
        self._drop_space = tokenizer.strips_leading_space
        for token_id in self._tail(prompt_ids):
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """Text that is now certain; often empty in the middle of a character. Ill-formed bytes become U+FFFD as soon as
        no continuation can save them."""
        if token_id in self._skip:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        if self._held:
            data = self._held + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def flush(self) -> str:
        """What an unfinished character at the end amounts to: U+FFFD, or nothing."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")

    def _tail(self, prompt_ids: Sequence[int]) -> list[int]:
        """The last tokens of the prompt that carry bytes, in order."""
        tail: list[int] = []
        for token_id in reversed(prompt_ids):
            if token_id not in self._skip and self._tokenizer.token_bytes(token_id):
                tail.append(token_id)
                if len(tail) == _PROMPT_TAIL:
                    break
        return tail[::-1]
