"""Where a pulled model lies; apart from how it gets there, which needs far more of the standard library."""

from __future__ import annotations

import re
from pathlib import Path

from slipstream.hub.catalog import KnownModel

PARTIAL = ".partial"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def known_model_path(model: KnownModel, models_dir: Path) -> Path | None:
    """The file of a pulled model, or None. Its size is compared; its digest was checked when it was pulled."""
    path = models_dir / model.name / model.file_name
    return path if path.is_file() and path.stat().st_size == model.num_bytes else None


def is_repository(name: str) -> bool:
    """Whether `name` has the form org/name of a Hub repository."""
    return _REPOSITORY.fullmatch(name) is not None


def repository_dir(repository: str, models_dir: Path) -> Path:
    return models_dir / repository.replace("/", "--")
