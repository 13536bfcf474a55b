"""POST /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

from slipstream.server.schema.base import Items, RequestModel, given_fields
from slipstream.server.schema.common import SamplingFields, SharedFields, as_shared

IGNORED = (
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "max_tool_calls",
)


class ResponsesStreamOptions(RequestModel):
    include_obfuscation: bool | None = None  # accepted; events are never padded


class ResponsesRequest(SamplingFields):
    input: str | Items[dict[str, Any]]
    instructions: str | None = None  # not carried on to the responses that follow this one
    previous_response_id: str | None = None
    store: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: Items[str] | None = None
    text: dict[str, Any] | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] | None = None
    max_tool_calls: int | None = None

    @property
    def ignored(self) -> list[str]:
        return given_fields(self, IGNORED)

    def shared(self) -> SharedFields:
        return as_shared(self)
