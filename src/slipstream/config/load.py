"""Configuration files (TOML, JSON) and command-line overrides -> EngineOptions. Command line > file > default.

A file has the sections [model], [cache], [scheduler], [speculation] and [engine], each with the fields of its class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.config.suggest import did_you_mean
from slipstream.config.types import FIELD_NAMES, SECTION_OF, EngineOptions, split_flat
from slipstream.errors import ConfigError

Sections = dict[str, dict[str, Any]]


def load_options(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> EngineOptions:
    """Options from a file, if any, with `overrides` (flat names, as for `EngineOptions.from_flat`) on top.

    An override of None was not given. Raises ConfigError for a file that cannot be read or parsed, for unknown
    names (with the nearest known one) and for wrong values, naming the file and the setting, `[cache] block_size`.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    changes = split_flat(given)
    if path is None:
        return EngineOptions.from_sections(changes)
    sections = read_sections(path)
    if "model" not in sections.get("model", {}) and "model" in changes.get("model", {}):
        sections.setdefault("model", {})["model"] = changes["model"]["model"]
    try:
        # On its own first, so that an override does not hide or take the blame for what is wrong in the file.
        EngineOptions.from_sections(sections)
    except ConfigError as error:
        raise _in_file(path, error) from error
    merged = {name: {**sections.get(name, {}), **changes.get(name, {})} for name in FIELD_NAMES}
    return EngineOptions.from_sections(merged)


def read_sections(path: Path) -> Sections:
    """Sections of a .toml or .json file. Names and values inside them are not checked yet."""
    if path.suffix not in (".toml", ".json"):
        raise ConfigError("is neither .toml nor .json.", where=str(path))
    import tomllib

    text = _read(path)
    try:
        data: object = (
            tomllib.loads(text) if path.suffix == ".toml" else json.loads(text, object_pairs_hook=_refuse_duplicates)
        )
    except ConfigError as error:
        raise _in_file(path, error) from error
    except (ValueError, RecursionError) as error:  # both parsers' own errors are ValueErrors
        raise ConfigError(f"cannot be parsed: {error}.", where=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError("must hold sections, not a single value.", where=str(path))
    for name, section in data.items():
        if not isinstance(section, dict):
            fix = f"Put it under [{SECTION_OF[name]}]." if name in SECTION_OF else did_you_mean(name, FIELD_NAMES)
            raise ConfigError("stands outside every section.", where=f"{path}: {name}", fix=fix)
    return data


def _in_file(path: Path, error: ConfigError) -> ConfigError:
    return ConfigError(error.what, where=f"{path}: {error.where}", fix=error.fix)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start}).", where=str(path)) from error


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ConfigError("is given twice.", where=key, fix="Keep one of the two.")
        result[key] = value
    return result
