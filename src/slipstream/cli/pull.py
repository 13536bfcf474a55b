"""`slipstream pull`: obtain a model, or list the known and the pulled ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from slipstream.cli.parameters import Argument, Option
from slipstream.cli.pull_progress import transfer_progress
from slipstream.config.env import read_environment
from slipstream.errors import UsageError
from slipstream.hub.catalog import known_model
from slipstream.hub.disk import format_bytes
from slipstream.hub.download import Pulled, pull_known
from slipstream.hub.huggingface import pull_repository
from slipstream.hub.paths import is_repository, known_model_path
from slipstream.hub.store import StoredModel, list_models, models_dir, resolve_model


def pull(
    model: Annotated[
        str | None, Argument(metavar="MODEL", help="A known name, or a Hugging Face repository as org/name.")
    ] = None,
    list_: Annotated[bool, Option("--list", help="List known and pulled models.")] = False,
    json_: Annotated[bool, Option("--json", help="Print JSON on stdout.")] = False,
    include: Annotated[
        str | None, Option(metavar="PATTERN", help="Repository only: weight files to take, e.g. '*Q4_K_M.gguf'.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Download again what is already here.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress.")] = False,
    cache_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Keep models in DIR/models (also: SLIPSTREAM_CACHE_DIR).")
    ] = None,
) -> None:
    """Download a model once; later calls find it at once.

    An interrupted pull keeps the files that have arrived, of repositories also parts of files. Prints the model's path.
    """
    cache_dir = cache_dir or read_environment().cache_dir
    if list_:
        if model is not None:
            raise UsageError("--list takes no MODEL.")
        _print_list(list_models(cache_dir), json_)
        return
    if model is None:
        raise UsageError("which model?", fix="Give a MODEL, or --list to see the known ones.")
    known = known_model(model)
    directory = models_dir(cache_dir)
    with transfer_progress(quiet) as progress:
        if known is not None:
            if include is not None:
                raise UsageError(f"--include is for repositories; {known.name} is one file.")
            if known.notice is not None and (force or known_model_path(known, directory) is None):
                progress.note(f"Licence: {known.licence}. {known.notice}")
            pulled = pull_known(known, directory, force=force, progress=progress)
        elif is_repository(model) and not Path(model).exists():
            pulled = pull_repository(model, directory, include=include, force=force, progress=progress)
        else:
            path = resolve_model(model, cache_dir)
            progress.note(f"{path} is a local path: nothing to download.")
            pulled = Pulled(model, path, path.stat().st_size if path.is_file() else 0, downloaded=False)
    _print_pulled(pulled, json_)


def _print_pulled(pulled: Pulled, as_json: bool) -> None:
    if as_json:
        fields = {
            "name": pulled.name,
            "path": str(pulled.path),
            "num_bytes": pulled.num_bytes,
            "downloaded": pulled.downloaded,
        }
        print(json.dumps(fields))
    else:
        print(pulled.path)


def _print_list(models: list[StoredModel], as_json: bool) -> None:
    if as_json:
        fields = [
            {
                "name": model.name,
                "description": model.description,
                "licence": model.licence,
                "state": model.state,
                "num_bytes": model.num_bytes,
                "path": str(model.path) if model.path else None,
            }
            for model in models
        ]
        json.dump(fields, sys.stdout, indent=2)
        print()
        return
    rows = [("NAME", "SIZE", "STATE", "LICENCE", "DESCRIPTION")]
    rows += [(m.name, format_bytes(m.num_bytes), m.state, m.licence or "-", m.description) for m in models]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
