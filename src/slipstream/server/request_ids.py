"""Names of requests: the client's, and the one that the engine goes by.

Two API keys may use the same X-Request-Id. In the engine the id has the key's name before it, so that neither can take
the place of the other's timeline. Neither names of keys in requests nor ids hold a space.
"""

from __future__ import annotations


def engine_id(tenant: str | None, request_id: str) -> str:
    """`tenant`: name of the API key; None where there are none."""
    return request_id if tenant is None else f"{tenant} {request_id}"


def client_id(tenant: str | None, engine_id: str) -> str:
    """The id that `engine_id` was made of."""
    return engine_id if tenant is None else engine_id.removeprefix(f"{tenant} ")
