from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from slipstream.errors import ResourceError
from slipstream.hw.cgroup import CgroupLimits
from slipstream.hw.memory import ProcessMemory, SystemMemory, format_memory, process_memory, read_system_memory

from .fake_tree import MEMINFO, write_tree

pytestmark = pytest.mark.fast

KIB = 1024


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (CgroupLimits(), SystemMemory(16_000_000 * KIB, 8_000_000 * KIB)),
        (CgroupLimits(memory=2**40, memory_left=2**39), SystemMemory(16_000_000 * KIB, 8_000_000 * KIB)),
        (CgroupLimits(memory=2**31, memory_left=2**30), SystemMemory(2**31, 2**30)),
        (CgroupLimits(memory=2**31), SystemMemory(2**31, 2**31)),
    ],
)
def test_system_memory(tmp_path: Path, limits: CgroupLimits, expected: SystemMemory) -> None:
    assert read_system_memory(limits, write_tree(tmp_path, {"proc/meminfo": MEMINFO})) == expected


LIMITS = "Limit               Soft Limit   Hard Limit   Units\nMax address space   {}   {}   bytes\n"


@pytest.mark.parametrize(
    ("soft", "size", "expected"),
    [
        ("unlimited", "1000 kB", SystemMemory(16_000_000 * KIB, 8_000_000 * KIB)),
        (str(2**40), "1000 kB", SystemMemory(16_000_000 * KIB, 8_000_000 * KIB)),
        (str(10_000_000 * KIB), "4000000 kB", SystemMemory(10_000_000 * KIB, 6_000_000 * KIB)),
        (str(3000 * KIB), "4000 kB", SystemMemory(3000 * KIB, 0)),
    ],
)
def test_a_limit_of_address_space_counts(tmp_path: Path, soft: str, size: str, expected: SystemMemory) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/limits": LIMITS.format(soft, "unlimited")}
    root = write_tree(tmp_path, files | {"proc/self/status": f"VmSize:\t {size}\n"})
    assert read_system_memory(CgroupLimits(), root) == expected


@pytest.mark.parametrize("text", [None, "MemTotal: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: many kB\n"])
def test_system_memory_unknown(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        write_tree(tmp_path, {"proc/meminfo": text})
    with pytest.raises(ResourceError, match=r"meminfo: MemTotal or MemAvailable is missing"):
        read_system_memory(CgroupLimits(), tmp_path)


def test_process_memory_of_a_status_file(tmp_path: Path) -> None:
    write_tree(tmp_path, {"proc/self/status": "Name:\tx\nVmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\n"})
    assert process_memory(tmp_path) == ProcessMemory(2000 * KIB, 3000 * KIB)


def test_process_memory_without_a_peak_in_the_file(tmp_path: Path) -> None:
    write_tree(tmp_path, {"proc/self/status": "VmRSS:\t    2000 kB\n"})
    memory = process_memory(tmp_path)
    assert memory.current == 2000 * KIB
    assert memory.peak > memory.current


def test_process_memory_unknown(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="VmRSS is missing"):
        process_memory(tmp_path)


def test_own_memory_grows_with_what_is_touched() -> None:
    pages = mmap.mmap(-1, 2**26)  # an allocator may hand out pages that the process has touched before
    before = process_memory()
    np.frombuffer(pages, np.uint8)[:] = 1
    after = process_memory()
    assert after.current - before.current > 2**25
    assert after.peak >= after.current


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (98362432, "93.8 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_memory_in_binary_units(num_bytes: int, text: str) -> None:
    assert format_memory(num_bytes) == text
