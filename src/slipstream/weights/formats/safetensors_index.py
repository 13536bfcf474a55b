"""`model.safetensors.index.json`: which shard holds which tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.errors import ModelFormatError
from slipstream.weights.formats.json_file import read_json_object
from slipstream.weights.naming import name_list, show

INDEX_NAME = "model.safetensors.index.json"


def read_index(path: Path) -> dict[str, str]:
    """{tensor name: shard file name} of an index file whose shards are all there.

    Raises:
        ModelFormatError: the index is malformed, names files outside its folder, or shards are missing.
    """
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFormatError("has no weight_map of tensor names to files.", where=str(path))
    files = list(weight_map.values())
    odd = sorted({str(name) for name in files if not _is_plain(name)})
    if odd:
        raise ModelFormatError(
            f"names files that are not safetensors files of its own folder: {name_list(odd)}.", where=str(path)
        )
    missing = sorted({name for name in files if not path.with_name(name).exists()})
    if missing:
        raise ModelFormatError(
            f"{len(missing)} of {len(set(files))} shards are missing: {name_list(missing)}.",
            where=str(path),
            fix="Fetch the missing files into the same folder.",
        )
    return weight_map


def check_index(path: Path, index: Mapping[str, str], shards: Mapping[str, Sequence[str]]) -> None:
    """Raise ModelFormatError unless every shard holds exactly the tensors that the index gives it."""
    problems: list[str] = []
    for shard, names in shards.items():
        expected = {name for name, file in index.items() if file == shard}
        if absent := sorted(expected - set(names)):
            problems.append(f"{shard} lacks {len(absent)} tensors: {name_list(absent)}.")
        if extra := sorted(set(names) - expected):
            problems.append(f"{shard} holds {len(extra)} tensors that the index does not give it: {name_list(extra)}.")
    if problems:
        raise ModelFormatError("the index and the shards disagree. " + " ".join(problems[:20]), where=str(path))


def _is_plain(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and not any(mark in name for mark in "/\\\0")
        and show(name) == name
    )
