"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from slipstream.server.context import Context
from slipstream.server.model import ServedModel

router = APIRouter()


def _model_json(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "slipstream",
        "root": model.name,
        "max_model_len": model.max_model_len,
    }


@router.get("/v1/models")
async def models(context: Context) -> dict[str, Any]:
    """The names that this server answers to."""
    return {"object": "list", "data": [_model_json(context.model, name) for name in context.model.names]}


@router.get("/v1/models/{name:path}")
async def model(name: str, context: Context) -> dict[str, Any]:
    """One of these names; 404 for any other."""
    return _model_json(context.model, context.model.require(name))
