"""Limits that a container or service manager puts on this process (cgroup versions 1, 2 and both at once).

A limit holds for a group and all groups below it, so the tightest from the process's own group up to the visible
root counts. In a container the path in /proc/self/cgroup may be the host's; parts that are not visible are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slipstream.hw.procfs import read_text
from slipstream.lean import dataclass

_UNLIMITED = 2**60  # version 1 writes "no limit" as nearly 2**63


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """None: no limit."""

    cpus: float | None = None  # processors' worth of time
    memory: int | None = None  # bytes
    memory_left: int | None = None  # bytes until the first limit is hit, cache that can be dropped counted as free


def read_cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Limits on the calling process; `root` is where /proc and /sys are looked for."""
    cpus: list[float] = []
    memory: list[int] = []
    left: list[int] = []
    for controllers, folder in _groups(root):
        if "cpu" in controllers:
            cpus += _cpus(folder)
        if "memory" in controllers:
            for limit, free in _memory(folder):
                memory.append(limit)
                left.append(free)
    return CgroupLimits(min(cpus, default=None), min(memory, default=None), min(left, default=None))


def _groups(root: Path) -> Iterator[tuple[frozenset[str], Path]]:
    """The visible folders of this process's groups, with the controllers that each may hold."""
    mount = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, names, path = parts
        if names:
            controllers = frozenset(names.split(","))
            mounts = [mount / names, *(mount / name for name in sorted(controllers))]
        else:
            controllers = frozenset({"cpu", "memory"})
            mounts = [mount, mount / "unified"]
        relative = PurePosixPath(path.lstrip("/"))
        if ".." in relative.parts:
            relative = PurePosixPath()
        for base in mounts:
            for part in (relative, *relative.parents):
                if (base / part).is_dir():
                    yield controllers, base / part


def _cpus(folder: Path) -> list[float]:
    words = (read_text(folder / "cpu.max") or "").split()
    if not words:
        words = [
            (read_text(folder / "cpu.cfs_quota_us") or "").strip(),
            (read_text(folder / "cpu.cfs_period_us") or "").strip(),
        ]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
        return [int(words[0]) / int(words[1])]
    return []


def _memory(folder: Path) -> Iterator[tuple[int, int]]:
    """(limit, left) where this group has a limit."""
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _number(read_text(folder / limit_name))
        if limit is None or limit >= _UNLIMITED:
            continue
        usage = _number(read_text(folder / usage_name)) or 0
        stat = dict(line.split() for line in (read_text(folder / "memory.stat") or "").splitlines() if " " in line)
        in_use = max(0, usage - (_number(stat.get(cache_name)) or 0))
        yield limit, max(0, limit - in_use)


def _number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isdigit() else None
