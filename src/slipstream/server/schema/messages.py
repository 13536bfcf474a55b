"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them."""

from __future__ import annotations

from typing import Any, Literal

from slipstream.server.schema.base import RequestModel, given_fields

IGNORED = ("metadata", "service_tier", "cache_control", "inference_geo")


class AnthropicMessage(RequestModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class CountTokensRequest(RequestModel):
    model: str
    messages: list[AnthropicMessage]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    # Beyond Anthropic's:
    seed: int | None = None
    ignore_eos: bool | None = None
    timeout: float | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def ignored(self) -> list[str]:
        return given_fields(self, IGNORED)
