"""Log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.sampling.logprobs import TokenLogprob
from slipstream.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write; OpenAI uses the same number."""


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; of one that is not whole characters, its bytes as OpenAI writes them: bytes:\\xe2\\x82."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def finite(value: float) -> float:
    return max(value, LOWEST)


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        return {
            "token": data.decode("utf-8", errors="replace"),
            "logprob": finite(logprob),
            "bytes": list(data),
        }

    content = [
        {**one(entry.token_id, entry.logprob), "top_logprobs": [one(*each) for each in entry.top]} for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The legacy form: four lists side by side. Keeps the text offset of a choice from chunk to chunk."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def chunk(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None], shown: Sequence[bool] | None = None
    ) -> dict[str, Any]:
        """For the next tokens; None where nothing precedes a token (the prompt's first). `shown`: whether a token is
        in the choice's text, which the offsets count in; None: all are."""
        result: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, entry, visible in zip(token_ids, entries, shown or [True] * len(token_ids), strict=True):
            text = token_text(self._tokenizer, token_id)
            result["tokens"].append(text)
            result["text_offset"].append(self._offset)
            self._offset += len(text) if visible else 0
            result["token_logprobs"].append(None if entry is None else finite(entry.logprob))
            result["top_logprobs"].append(None if entry is None else self._top(entry, text))
        if not self._num_top:
            result["top_logprobs"] = None
        return result

    def _top(self, entry: TokenLogprob, text: str) -> dict[str, float]:
        """Up to one more than asked for: the chosen token is always among them."""
        top: dict[str, float] = {}
        for token, value in entry.top:  # of two tokens that read alike the likelier counts
            top.setdefault(token_text(self._tokenizer, token), finite(value))
        return {**top, text: finite(entry.logprob)}
