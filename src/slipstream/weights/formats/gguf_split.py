"""Models split over several GGUF files: `NAME-00001-of-00003.gguf` with the keys split.no, split.count and
split.tensors.count in every part (llama.cpp's gguf-split)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.errors import ModelFormatError
from slipstream.weights.naming import name_list

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


def split_of(path: Path) -> tuple[int, int] | None:
    """(part number from 1, number of parts) if the file is named as one part of several."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) < 2:
        return None
    return int(match["number"]), int(match["count"])


def split_paths(path: Path) -> list[Path]:
    """All parts of the model that `path` belongs to, first part first; just `path` if it is not split.

    Raises:
        ModelFormatError: parts are missing.
    """
    match = _PART_NAME.fullmatch(path.name)
    if match is None or split_of(path) is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    if path not in parts:
        raise ModelFormatError(f"is named part {int(match['number'])} of {count}.", where=str(path))
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelFormatError(
            f"the model is split over {count} files and {len(missing)} are missing: {name_list(missing)}.",
            where=str(path),
            fix="Fetch the missing parts into the same folder.",
        )
    return parts


def check_split(path: Path, number: int, count: int, metadata: Mapping[str, Any]) -> None:
    """Raise ModelFormatError unless part `number` (from 1) of `count` says so itself."""
    found_count = metadata.get("split.count", 0)
    found_number = metadata.get("split.no", 0)
    if count == 1:
        if found_count not in (0, 1):
            raise ModelFormatError(
                f"is part {found_number} (from 0) of a model split over {found_count} files, "
                "but is not named like one, so the other parts cannot be found.",
                where=str(path),
                fix="Give the parts their original names, NAME-00001-of-0000N.gguf.",
            )
        return
    if (found_number, found_count) != (number - 1, count):
        raise ModelFormatError(
            f"is named part {number} of {count}, but its metadata say split.no = {found_number!r} (from 0), "
            f"split.count = {found_count!r}.",
            where=str(path),
        )
