"""What this process may use of the machine it runs on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from slipstream.hw.cgroup import read_cgroup_limits
from slipstream.hw.memory import read_system_memory
from slipstream.hw.procfs import read_fields, read_text
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareInfo:
    """Counts honour the scheduler's affinity mask and cgroup limits where they say `usable` or `available`."""

    cpu_model: str
    architecture: str  # "x86_64", "aarch64"
    physical_cores: int  # of the machine
    usable_cores: int  # distinct physical cores among the processors of the affinity mask
    usable_cpus: int  # processors in the affinity mask, at most the cgroup's quota rounded down, at least 1
    cpu_quota: float | None  # processors' worth of time that the cgroup grants; None: all
    cpu_features: tuple[str, ...]  # sorted
    total_memory: int  # bytes; the cgroup's limit if that is lower
    available_memory: int  # bytes, without swapping
    numa_nodes: int

    @property
    def recommended_threads(self) -> int:
        """One per usable physical core, within the quota: a second thread on a core slows memory-bound work down."""
        return max(1, min(self.usable_cores, self.usable_cpus))


def read_hardware(
    root: Path = Path("/"),
    *,
    affinity: Iterable[int] | None = None,
    architecture: str | None = None,
    cpu_features: Iterable[str] | None = None,
) -> HardwareInfo:
    """Read /proc and /sys below `root`.

    affinity: processor numbers, by default those of the calling process. cpu_features: the result of a native
    probe; by default the kernel's names from /proc/cpuinfo. Raises ResourceError if memory cannot be told.
    """
    usable = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    limits = read_cgroup_limits(root)
    memory = read_system_memory(limits, root)
    cpuinfo = read_text(root / "proc/cpuinfo") or ""
    fields = read_fields(cpuinfo)
    features = (fields.get("flags") or fields.get("Features") or "").split() if cpu_features is None else cpu_features
    cores = _physical_cores(root)
    usable_cpus = len(usable) if limits.cpus is None else min(len(usable), int(limits.cpus))
    return HardwareInfo(
        cpu_model=_model_name(fields),
        architecture=platform.machine() if architecture is None else architecture,
        physical_cores=len(set(cores.values())) or max(1, len(usable)),
        usable_cores=max(1, len({cores.get(cpu, ("cpu", str(cpu))) for cpu in usable})),
        usable_cpus=max(1, usable_cpus),
        cpu_quota=limits.cpus,
        cpu_features=tuple(sorted(set(features))),
        total_memory=memory.total,
        available_memory=memory.available,
        numa_nodes=max(1, len(_numbered(root / "sys/devices/system/node", "node"))),
    )


def _model_name(fields: dict[str, str]) -> str:
    if name := fields.get("model name"):
        return name
    if part := fields.get("CPU part"):  # Arm kernels give numbers only
        return f"implementer {fields.get('CPU implementer', 'unknown')} part {part}"
    return "unknown"


def _physical_cores(root: Path) -> dict[int, tuple[str, str]]:
    """Processor number -> (package, core)."""
    cores: dict[int, tuple[str, str]] = {}
    for number, folder in _numbered(root / "sys/devices/system/cpu", "cpu").items():
        package = read_text(folder / "topology/physical_package_id")
        core = read_text(folder / "topology/core_id")
        if package is not None and core is not None:
            cores[number] = (package.strip(), core.strip())
    return cores


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    return {int(m[1]): path for path in folder.iterdir() if (m := re.fullmatch(rf"{prefix}(\d+)", path.name))}
