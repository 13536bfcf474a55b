"""Pull a repository of the Hugging Face Hub: weights as safetensors or GGUF and the text files a model needs.

Pickled weights are never fetched. huggingface_hub is imported by the first call that needs it; it brings its own
progress bar, its own retry of broken transfers, and resumes partial files in the staging folder.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from slipstream.errors import DownloadError, ModelFormatError, UsageError
from slipstream.hub.disk import FreeBytes, file_errors, format_bytes, free_bytes, fsync_directory, require_space
from slipstream.hub.download import Pulled
from slipstream.hub.lock import exclusive
from slipstream.hub.paths import PARTIAL, repository_dir
from slipstream.hub.progress import NoProgress, Progress

ALLOWED = ("*.safetensors", "*.gguf", "*.json", "*.txt", "*.model", "*.jinja", "LICENSE*", "NOTICE*")
_DUPLICATES = ("original/*", "consolidated*", "*/.*", ".*", "onnx/*", "openvino/*")
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_MARGIN_BYTES = 32_000_000


@dataclass(frozen=True)
class RemoteFile:
    name: str
    num_bytes: int


class Hub(Protocol):
    def files(self, repository: str) -> tuple[str, list[RemoteFile]]:
        """Commit hash of the main branch and its files. Raises DownloadError."""

    def download(self, repository: str, commit: str, names: Sequence[str], directory: Path) -> None:
        """Fetch these files into `directory`, going on with what is there. Raises DownloadError."""


def select_files(repository: str, files: Sequence[RemoteFile], include: str | None) -> list[RemoteFile]:
    """The files worth fetching; `include` is a glob pattern that weight files must match.

    Raises ModelFormatError if there are no safetensors or GGUF weights (left), UsageError if several GGUF files
    (quantisations of one model, usually) are left and no pattern chooses between them.
    """
    allowed = [f for f in files if _matches(f.name, ALLOWED) and not _matches(f.name, _DUPLICATES)]
    weights = [f for f in allowed if f.name.endswith((".safetensors", ".gguf"))]
    if not weights:
        raise ModelFormatError(
            "the repository has no safetensors or GGUF weights; pickled weights are never loaded.", where=repository
        )
    chosen = [f for f in weights if include is None or fnmatch(f.name, include)]
    if not chosen:
        raise ModelFormatError(f"no weight file matches {include!r}. There are: {_listing(weights)}.", where=repository)
    models = {_SPLIT_GGUF.sub("", f.name) for f in chosen if f.name.endswith(".gguf")}
    if len(models) > 1:
        raise UsageError(
            f"the repository holds {len(models)} GGUF models: {_listing(chosen)}.",
            where=repository,
            fix="Choose one with --include, for example --include '*Q4_K_M.gguf'.",
        )
    return [f for f in allowed if f in chosen or f not in weights]


def pull_repository(
    repository: str,
    models_dir: Path,
    *,
    include: str | None = None,
    force: bool = False,
    hub: Hub | None = None,
    free: FreeBytes = free_bytes,
    progress: Progress | None = None,
) -> Pulled:
    """Make the repository present under `models_dir/<org>--<name>/`; nothing to do if it is, unless `force`.

    An interrupted pull goes on where it broke off. Raises DownloadError, DiskSpaceError, ResourceError and the errors
    of `select_files`.
    """
    progress = progress or NoProgress()
    target = repository_dir(repository, models_dir)
    staging = models_dir / PARTIAL / target.name
    with file_errors(models_dir, f"pulling {repository}"):
        staging.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(
            staging.parent / f"{target.name}.lock",
            lambda: progress.note(f"Another process is pulling {repository}; waiting for it."),
        ):
            if _present(target, include) and not force:
                return Pulled(repository, target, _tree_bytes(target), downloaded=False)
            hub = hub or HuggingFaceHub()
            commit, listed = hub.files(repository)
            files = select_files(repository, listed, include)
            missing = sum(f.num_bytes for f in files if not _complete(staging, f))
            require_space(models_dir, missing + _MARGIN_BYTES, free(models_dir), f"pulling {repository}")
            total = sum(f.num_bytes for f in files)
            progress.note(f"{repository}: {len(files)} files, {format_bytes(total)}.")
            hub.download(repository, commit, [f.name for f in files], staging)
            _require_complete(repository, staging, files)
            _publish(staging, target, files)
    return Pulled(repository, target, _tree_bytes(target), downloaded=True)


class HuggingFaceHub:
    """The real Hub, through huggingface_hub (its settings and login apply)."""

    def files(self, repository: str) -> tuple[str, list[RemoteFile]]:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

        try:
            info = HfApi().model_info(repository, files_metadata=True)
        except HfHubHTTPError as error:
            raise _refused(repository, error) from error
        except (HTTPError, OfflineModeIsEnabled) as error:
            raise _unreachable(repository, error) from error
        files = [RemoteFile(sibling.rfilename, sibling.size or 0) for sibling in info.siblings or ()]
        return info.sha or "main", files

    def download(self, repository: str, commit: str, names: Sequence[str], directory: Path) -> None:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (  # type: ignore[attr-defined]
            HfHubHTTPError,
            HTTPError,
            LocalEntryNotFoundError,
            OfflineModeIsEnabled,
        )

        try:
            snapshot_download(repository, revision=commit, local_dir=directory, allow_patterns=list(names))
        except HfHubHTTPError as error:
            raise _refused(repository, error) from error
        except (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
            raise _unreachable(repository, error) from error


def _refused(repository: str, error: Exception) -> DownloadError:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DownloadError(
        f"the Hugging Face Hub refused: {first_line}",
        where=repository,
        fix="Check the name; for a private or gated repository accept its terms there and run `hf auth login`.",
    )


def _unreachable(repository: str, error: Exception) -> DownloadError:
    return DownloadError(
        f"the Hugging Face Hub cannot be reached ({type(error).__name__}: {error}).",
        where=repository,
        fix="Check the network connection and run the same command again, or pass the path of a model that you have.",
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _listing(files: Sequence[RemoteFile]) -> str:
    return ", ".join(f"{f.name} ({format_bytes(f.num_bytes)})" for f in files)


def _complete(directory: Path, file: RemoteFile) -> bool:
    path = directory / file.name
    return path.is_file() and path.stat().st_size == file.num_bytes


def _require_complete(repository: str, directory: Path, files: Sequence[RemoteFile]) -> None:
    # snapshot_download returns without an error when the connection is gone but the folder exists.
    missing = [f.name for f in files if not _complete(directory, f)]
    if missing:
        raise DownloadError(
            f"the download is incomplete: {', '.join(missing)}.",
            where=repository,
            fix="Run the same command again: it goes on with what has arrived.",
        )


def _present(target: Path, include: str | None) -> bool:
    if not target.is_dir():
        return False
    return include is None or any(fnmatch(p.relative_to(target).as_posix(), include) for p in target.rglob("*"))


def _tree_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _publish(staging: Path, target: Path, files: Sequence[RemoteFile]) -> None:
    shutil.rmtree(staging / ".cache", ignore_errors=True)
    if target.exists():
        for file in files:
            (target / file.name).parent.mkdir(parents=True, exist_ok=True)
            (staging / file.name).replace(target / file.name)
        shutil.rmtree(staging)
    else:
        staging.replace(target)
    fsync_directory(target.parent)
