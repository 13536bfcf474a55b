from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.hw.info import HardwareInfo, read_hardware

from .fake_tree import MEMINFO, topology, write_tree

pytestmark = pytest.mark.fast

X86 = "processor\t: 0\nmodel name\t: Fast CPU 9\nflags\t\t: sse2 avx2 fma\n\nprocessor\t: 1\nmodel name\t: Other\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
TWO_WAY = topology({0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1), 4: (1, 0), 5: (1, 1), 6: (1, 0), 7: (1, 1)})


def machine(tmp_path: Path, **files: str) -> Path:
    return write_tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/cpuinfo": X86, **TWO_WAY, **files})


def test_a_whole_machine(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/node/node0/x": "",
        "sys/devices/system/node/node1/x": "",
        "sys/devices/system/node/has_cpu": "",
    }
    info = read_hardware(machine(tmp_path, **files), affinity=range(8), architecture="x86_64")
    assert info == HardwareInfo(
        cpu_model="Fast CPU 9",
        architecture="x86_64",
        physical_cores=4,
        usable_cores=4,
        usable_cpus=8,
        cpu_quota=None,
        cpu_features=("avx2", "fma", "sse2"),
        total_memory=16_000_000 * 1024,
        available_memory=8_000_000 * 1024,
        numa_nodes=2,
    )
    assert info.recommended_threads == 4


@pytest.mark.parametrize(
    ("affinity", "quota", "usable_cores", "usable_cpus", "threads"),
    [
        ({0, 2}, None, 1, 2, 1),
        ({0, 1, 4}, None, 3, 3, 3),
        (range(8), "250000 100000", 4, 2, 2),
        (range(8), "50000 100000", 4, 1, 1),
        ({5}, "400000 100000", 1, 1, 1),
    ],
)
def test_affinity_and_quota(
    tmp_path: Path, affinity: set[int], quota: str | None, usable_cores: int, usable_cpus: int, threads: int
) -> None:
    files = {} if quota is None else {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota}
    info = read_hardware(machine(tmp_path, **files), affinity=affinity)
    assert (info.usable_cores, info.usable_cpus, info.recommended_threads) == (usable_cores, usable_cpus, threads)
    assert info.physical_cores == 4


def test_memory_limit(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": str(2**30), "sys/fs/cgroup/memory.current": "0"}
    info = read_hardware(machine(tmp_path, **files), affinity={0})
    assert (info.total_memory, info.available_memory) == (2**30, 2**30)


def test_arm_names(tmp_path: Path) -> None:
    info = read_hardware(machine(tmp_path, **{"proc/cpuinfo": ARM}), affinity={0}, architecture="aarch64")
    assert info.cpu_model == "implementer 0x41 part 0xd0c"
    assert info.cpu_features == ("asimd", "asimddp", "fp")


def test_probed_features_replace_the_kernels(tmp_path: Path) -> None:
    info = read_hardware(machine(tmp_path), affinity={0}, cpu_features=["fma", "avx2"])
    assert info.cpu_features == ("avx2", "fma")


def test_a_bare_machine_without_sys_and_cpuinfo(tmp_path: Path) -> None:
    info = read_hardware(write_tree(tmp_path, {"proc/meminfo": MEMINFO}), affinity={3, 4})
    assert (info.cpu_model, info.cpu_features) == ("unknown", ())
    assert (info.physical_cores, info.usable_cores, info.usable_cpus, info.numa_nodes) == (2, 2, 2, 1)


def test_this_machine() -> None:
    info = read_hardware()
    assert 1 <= info.recommended_threads <= info.usable_cpus <= len(os.sched_getaffinity(0))
    assert 0 < info.available_memory <= info.total_memory
    assert info.architecture
