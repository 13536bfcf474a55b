"""The only reader of the environment. Read once, at the edge, and passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.config.suggest import did_you_mean
from slipstream.errors import ConfigError

PREFIX = "SLIPSTREAM_"
OWN_NAMES = ("SLIPSTREAM_CACHE_DIR", "SLIPSTREAM_API_KEYS")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """None: not set. An empty variable counts as not set."""

    cache_dir: Path | None = None  # SLIPSTREAM_CACHE_DIR: where models are kept
    api_keys: str | None = field(default=None, repr=False)  # SLIPSTREAM_API_KEYS: of the server, separated by commas
    hf_token: str | None = field(default=None, repr=False)  # HF_TOKEN
    hf_hub_offline: bool = False  # HF_HUB_OFFLINE
    no_color: bool = False  # NO_COLOR (no-color.org): any value that is not empty


def read_environment(mapping: Mapping[str, str] = os.environ) -> Environment:
    """Raises ConfigError for an unknown SLIPSTREAM_ variable (with the nearest known one) or a value not understood."""
    for name in mapping:
        if name.startswith(PREFIX) and name not in OWN_NAMES:
            raise ConfigError("is not a variable of Slipstream.", where=name, fix=did_you_mean(name, OWN_NAMES))
    cache_dir = mapping.get("SLIPSTREAM_CACHE_DIR")
    return Environment(
        cache_dir=Path(cache_dir).expanduser().absolute() if cache_dir else None,
        api_keys=mapping.get("SLIPSTREAM_API_KEYS") or None,
        hf_token=mapping.get("HF_TOKEN") or None,
        hf_hub_offline=_flag(mapping, "HF_HUB_OFFLINE"),
        no_color=bool(mapping.get("NO_COLOR")),
    )


def _flag(mapping: Mapping[str, str], name: str) -> bool:
    value = mapping.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value not in _FALSE:
        raise ConfigError(f"must be 1 or 0, got {mapping[name]!r}.", where=name)
    return False
