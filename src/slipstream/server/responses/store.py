"""Finished responses that later requests go on from. They live in memory, in bounds, and end with the server."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_RESPONSES = 1024
MAX_CHARACTERS = 64 << 20  # of all that is kept, as JSON


@dataclass(frozen=True, slots=True)
class Stored:
    """`messages`: the whole conversation up to and with this response, instructions left out."""

    tenant: str | None
    response: Mapping[str, Any]
    input_items: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]
    size: int  # characters


class ResponseStore:
    """The least recently used go first. A tenant sees its own only."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_responses = max_responses
        self._max_characters = max_characters
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._size = 0

    def put(
        self,
        tenant: str | None,
        response: Mapping[str, Any],
        input_items: Sequence[Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]],
    ) -> None:
        size = len(json.dumps([response, input_items, messages]))
        self._stored[response["id"]] = Stored(tenant, response, input_items, messages, size)
        self._size += size
        while len(self._stored) > self._max_responses or self._size > self._max_characters:
            self._size -= self._stored.popitem(last=False)[1].size

    def get(self, tenant: str | None, response_id: str) -> Stored | None:
        found = self._stored.get(response_id)
        if found is None or found.tenant != tenant:
            return None
        self._stored.move_to_end(response_id)
        return found

    def delete(self, tenant: str | None, response_id: str) -> bool:
        found = self.get(tenant, response_id)
        if found is not None:
            del self._stored[response_id]
            self._size -= found.size
        return found is not None

    def __len__(self) -> int:
        return len(self._stored)
