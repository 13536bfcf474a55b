"""What this server is: version, features, settings. And what it is not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from slipstream.features import FEATURES, pairs
from slipstream.server.context import Context
from slipstream.server.errors import NotOfferedError
from slipstream.version import installed_version

router = APIRouter()


@router.get("/version")
async def version() -> dict[str, Any]:
    """The version of Slipstream."""
    return {"version": installed_version()}


@router.get("/features")
async def features() -> dict[str, Any]:
    """The feature matrix: every feature, and for every pair whether it works."""
    return {
        "features": [
            {"name": each.feature, "changes_tokens": not each.transparent, "switch": each.switch} for each in FEATURES
        ],
        "pairs": [
            {"first": pair.first, "second": pair.second, "works": pair.works, "note": pair.note} for pair in pairs()
        ],
    }


@router.get("/config")
async def config(context: Context) -> dict[str, Any]:
    """Settings of the engine (asked for, in force, and why) and of the server; no secrets."""
    info = context.engine.info
    later = context.engine.stats().speculation_warning
    return {
        "model": {
            "names": context.model.names,
            "asked": info.model,
            "path": info.path,
            "family": info.family,
            "max_model_len": info.max_model_len,
            "load_seconds": info.load_time,
            "warm_up_seconds": info.warm_up_time,
        },
        "engine": [asdict(decision) for decision in info.decisions],
        "warnings": [*info.warnings, *([later] if later else [])],
        "server": context.options.shown(),
    }


@router.post("/v1/embeddings", include_in_schema=False)
async def embeddings() -> None:
    raise NotOfferedError(
        "embeddings are not offered: the models served here are trained to continue text, and vectors taken out of "
        "them would not be what an embedding model gives.",
        where="/v1/embeddings",
    )
