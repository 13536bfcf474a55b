"""Finished responses that later requests go on from. They live in memory, in bounds, and end with the server."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_RESPONSES = 1024
MAX_CHARACTERS = 64 << 20  # of all that is kept, as JSON


@dataclass(frozen=True, slots=True)
class Stored:
    """As the text of its JSON: the objects that it stands for may take ten times the memory."""

    tenant: str | None
    text: str  # ASCII

    @property
    def size(self) -> int:
        """Characters, which are bytes."""
        return len(self.text)

    @property
    def response(self) -> dict[str, Any]:
        return dict(json.loads(self.text)[0])

    @property
    def input_items(self) -> list[dict[str, Any]]:
        return list(json.loads(self.text)[1])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation up to and with this response, instructions left out."""
        return list(json.loads(self.text)[2])


class ResponseStore:
    """A tenant sees its own only. When there are too many, the least recently used of the tenant that has the most go
    first, so that nobody's are driven out by another's."""

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
        stored = Stored(tenant, json.dumps([response, input_items, messages]))
        self._stored[response["id"]] = stored
        self._size += stored.size
        while (too_many := len(self._stored) > self._max_responses) or self._size > self._max_characters:
            self._drop_one(by_count=too_many)

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

    def _drop_one(self, *, by_count: bool) -> None:
        held: Counter[str | None] = Counter()
        for each in self._stored.values():
            held[each.tenant] += 1 if by_count else each.size
        [(most, _)] = held.most_common(1)
        oldest = next(name for name, each in self._stored.items() if each.tenant == most)
        self._size -= self._stored.pop(oldest).size

    def __len__(self) -> int:
        return len(self._stored)
