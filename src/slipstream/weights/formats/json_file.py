"""Small JSON files beside a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipstream.errors import ModelFormatError
from slipstream.weights.formats.mapped import map_file

_MAX_BYTES = 64 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse `path` as a JSON object.

    Raises:
        ModelNotFoundError: the file is absent or may not be read.
        ModelFormatError: it is not a JSON object, or is larger than any real one (64 MiB).
    """
    with map_file(path) as data:
        if len(data) > _MAX_BYTES:
            raise ModelFormatError(f"is larger than {_MAX_BYTES} bytes.", where=str(path))
        text = data[:]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"is not valid JSON: {error}.", where=str(path)) from error
    if not isinstance(value, dict):
        raise ModelFormatError("is not a JSON object.", where=str(path))
    return value
