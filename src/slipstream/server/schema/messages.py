"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them."""

from __future__ import annotations

from typing import Any, Literal

from slipstream.server.schema.base import Items, RequestModel, given_fields
from slipstream.server.schema.common import CommonFields, SharedFields, as_shared

IGNORED = ("metadata", "service_tier", "cache_control", "inference_geo")


class AnthropicMessage(RequestModel):
    role: Literal["user", "assistant", "system"]
    content: str | Items[dict[str, Any]]


class CountTokensRequest(RequestModel):
    model: str
    messages: Items[AnthropicMessage]
    system: str | Items[dict[str, Any]] | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, CommonFields):
    max_tokens: int
    stop_sequences: Items[str] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None

    @property
    def ignored(self) -> list[str]:
        return given_fields(self, IGNORED)

    def shared(self) -> SharedFields:
        return as_shared(self, stop=self.stop_sequences)
