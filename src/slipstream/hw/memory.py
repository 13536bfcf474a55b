"""Memory of the machine and of this process, in bytes."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ResourceError
from slipstream.hw.cgroup import CgroupLimits
from slipstream.hw.procfs import kilobytes, read_fields, read_text


@dataclass(frozen=True, slots=True)
class SystemMemory:
    total: int
    available: int  # without swapping


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident set, mapped files included."""

    current: int
    peak: int


def read_system_memory(limits: CgroupLimits, root: Path = Path("/")) -> SystemMemory:
    """The machine's memory, or the share that `limits` leave. Raises ResourceError without /proc/meminfo."""
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
    return SystemMemory(total, min(available, total))


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
