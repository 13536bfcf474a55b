"""Where pulled models live, and what a MODEL argument means."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_dir

from slipstream.errors import ModelNotFoundError
from slipstream.hub.catalog import KNOWN_MODELS, KnownModel, known_model, nearest_names
from slipstream.hub.paths import PARTIAL, is_repository, known_model_path, repository_dir
from slipstream.lean import dataclass

State = Literal["pulled", "interrupted", "not pulled"]


@dataclass(frozen=True)
class StoredModel:
    """One line of `slipstream pull --list`; `num_bytes` is the size on disk, of an unpulled model that to come."""

    name: str
    description: str
    licence: str | None
    state: State
    num_bytes: int
    path: Path | None


def models_dir(cache_dir: Path | None = None) -> Path:
    """Folder of the pulled models: below `cache_dir`, or else below the user's cache folder."""
    return _root(cache_dir) / "models"


def packed_dir(cache_dir: Path | None = None) -> Path:
    """Folder of what is derived from models and can be derived again: packed weights."""
    return _root(cache_dir) / "packed"


def profiles_dir(cache_dir: Path | None = None) -> Path:
    """Folder of what was measured of models on this machine and can be measured again."""
    return _root(cache_dir) / "profiles"


def _root(cache_dir: Path | None) -> Path:
    return cache_dir if cache_dir is not None else Path(user_cache_dir("slipstream"))


def resolve_model(name: str, cache_dir: Path | None = None) -> Path:
    """The file or folder that a MODEL argument names.

    In this order: a known name (which must have been pulled), an existing file or folder, a pulled Hub repository
    (its GGUF file if that is all it has, else its folder). Nothing is downloaded.
    Raises ModelNotFoundError, which says what to pull or which known name is near.
    """
    directory = models_dir(cache_dir)
    known = known_model(name)
    if known is not None:
        path = known_model_path(known, directory)
        if path is None:
            raise _not_pulled(known.name)
        return path
    try:
        local = Path(name).expanduser()
        if name and local.exists():
            return local
        if is_repository(name) and not _looks_like_file(name):
            pulled = repository_dir(name, directory)
            if not pulled.is_dir():
                raise _not_pulled(name)
            return _gguf_only(pulled) or pulled
    except (OSError, RuntimeError) as error:  # a name too long for a path, a folder that is closed, ~nobody
        raise ModelNotFoundError(f"cannot be looked up: {error}.", where=reprlib.repr(name)) from error
    raise _unknown(name)


def list_models(cache_dir: Path | None = None) -> list[StoredModel]:
    """All known models, then the pulled Hub repositories, by name."""
    directory = models_dir(cache_dir)
    models = [_known_state(model, directory) for model in KNOWN_MODELS]
    if directory.is_dir():
        for folder in sorted(directory.glob("*--*")):
            num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            name = folder.name.replace("--", "/", 1)
            models.append(StoredModel(name, "Hugging Face Hub", None, "pulled", num_bytes, folder))
    return models


def _known_state(model: KnownModel, directory: Path) -> StoredModel:
    path = known_model_path(model, directory)
    state: State = "pulled" if path else "not pulled"
    partial = directory / PARTIAL / model.name
    if path is None and partial.is_dir() and any(partial.iterdir()):
        state = "interrupted"
    return StoredModel(model.name, model.description, model.licence, state, model.num_bytes, path)


def _gguf_only(folder: Path) -> Path | None:
    """The GGUF file of a folder without safetensors; the first part of a split one."""
    if any(folder.rglob("*.safetensors")):
        return None
    files = sorted(folder.rglob("*.gguf"))
    parts = [file for file in files if "-00001-of-" in file.name]
    candidates = parts or files
    return candidates[0] if len(candidates) == 1 else None


def _looks_like_file(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith((".gguf", ".safetensors", "/")) or name.count("/") > 1


def _not_pulled(name: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"the model {name} is not here yet.", fix=f"Run `slipstream pull {name}`.")


def _unknown(name: str) -> ModelNotFoundError:
    if _looks_like_file(name):
        return ModelNotFoundError("no such file or folder.", where=name)
    near = nearest_names(name)
    if near:
        fix = f"Did you mean {near[0]}? Run `slipstream pull {near[0]}`, or `slipstream pull --list` for all names."
    else:
        fix = "Give a known name (`slipstream pull --list`), a file, a folder, or a repository as org/name."
    return ModelNotFoundError(f"there is no model {name!r}.", fix=fix)
