"""Memory of the machine and of this process, in bytes."""

from __future__ import annotations

import resource
from pathlib import Path

from slipstream.errors import ResourceError
from slipstream.hw.cgroup import CgroupLimits
from slipstream.hw.procfs import kilobytes, read_fields, read_text
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class SystemMemory:
    total: int
    available: int  # without swapping


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident set, mapped files included."""

    current: int
    peak: int


def format_memory(num_bytes: int) -> str:
    """Binary units, as memory is counted: 98362432 -> "93.8 MiB"."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    value = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def read_system_memory(limits: CgroupLimits, root: Path = Path("/")) -> SystemMemory:
    """The machine's memory, or the share that `limits` and the process's own limit of address space leave.

    Raises ResourceError without /proc/meminfo.
    """
    path = root / "proc/meminfo"
    fields = read_fields(read_text(path) or "")
    total, available = kilobytes(fields.get("MemTotal")), kilobytes(fields.get("MemAvailable"))
    if total is None or available is None:
        raise ResourceError(
            "MemTotal or MemAvailable is missing; cannot tell how much memory there is.", where=str(path)
        )
    if limits.memory is not None:
        total = min(total, limits.memory)
    if limits.memory_left is not None:
        available = min(available, limits.memory_left)
    space = _address_space(root)
    if space is not None:
        total, available = min(total, space[0]), min(available, space[1])
    return SystemMemory(total, min(available, total))


def _address_space(root: Path) -> tuple[int, int] | None:
    """What `ulimit -v` lets this process map, and what is left of it; None without such a limit."""
    for line in (read_text(root / "proc/self/limits") or "").splitlines():
        name, _, values = line.partition("Max address space")
        soft = values.split()[:1]
        if not name and soft and soft[0].isdigit():
            mapped = kilobytes(read_fields(read_text(root / "proc/self/status") or "").get("VmSize"))
            return int(soft[0]), max(0, int(soft[0]) - (mapped or 0))
    return None


def process_memory(root: Path = Path("/")) -> ProcessMemory:
    """Of the calling process. Where the kernel shows no VmHWM, the peak is getrusage's, the same quantity."""
    path = root / "proc/self/status"
    fields = read_fields(read_text(path) or "")
    current = kilobytes(fields.get("VmRSS"))
    if current is None:
        raise ResourceError("VmRSS is missing; cannot tell how much memory the process uses.", where=str(path))
    peak = kilobytes(fields.get("VmHWM"))
    if peak is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return ProcessMemory(current, max(current, peak))
