from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.hw.cgroup import CgroupLimits, read_cgroup_limits

from .fake_tree import write_tree

pytestmark = pytest.mark.fast

CG = "sys/fs/cgroup"


def test_no_cgroups(tmp_path: Path) -> None:
    assert read_cgroup_limits(tmp_path) == CgroupLimits(None, None, None)


def test_version_2_takes_the_tightest_ancestor(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            f"{CG}/outer/inner/cpu.max": "max 100000\n",
            f"{CG}/outer/inner/memory.max": "5000\n",
            f"{CG}/outer/inner/memory.current": "4000\n",
            f"{CG}/outer/inner/memory.stat": "anon 1000\ninactive_file 3000\n",
            f"{CG}/outer/cpu.max": "150000 100000\n",
            f"{CG}/outer/memory.max": "6000\n",
            f"{CG}/outer/memory.current": "5500\n",
            f"{CG}/outer/memory.stat": "inactive_file 500\n",
        },
    )
    assert read_cgroup_limits(tmp_path) == CgroupLimits(1.5, 5000, 1000)


def test_version_2_without_limits(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "max 100000\n", f"{CG}/memory.max": "max\n"},
    )
    assert read_cgroup_limits(tmp_path) == CgroupLimits(None, None, None)


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_version_1(tmp_path: Path, mount: str) -> None:
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\nnonsense\n",
            f"{CG}/{mount}/job/cpu.cfs_quota_us": "200000\n",
            f"{CG}/{mount}/job/cpu.cfs_period_us": "100000\n",
            f"{CG}/memory/job/memory.limit_in_bytes": "9000\n",
            f"{CG}/memory/job/memory.usage_in_bytes": "8000\n",
            f"{CG}/memory/job/memory.stat": "total_inactive_file 2000\n",
            f"{CG}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert read_cgroup_limits(tmp_path) == CgroupLimits(2.0, 9000, 3000)


def test_version_1_without_limits(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/\n",
            f"{CG}/cpu/cpu.cfs_quota_us": "-1\n",
            f"{CG}/cpu/cpu.cfs_period_us": "100000\n",
            f"{CG}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert read_cgroup_limits(tmp_path) == CgroupLimits(None, None, None)


def test_a_host_path_inside_a_container_finds_the_visible_root(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {"proc/self/cgroup": "0::/system/pod/abc\n", f"{CG}/cpu.max": "50000 100000\n", f"{CG}/memory.max": "700\n"},
    )
    assert read_cgroup_limits(tmp_path) == CgroupLimits(0.5, 700, 700)


def test_a_path_outside_the_namespace_is_not_followed(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {"proc/self/cgroup": "0::/../../other\n", f"{CG}/memory.max": "700\n", "sys/other/memory.max": "1\n"},
    )
    assert read_cgroup_limits(tmp_path).memory == 700


def test_use_above_the_limit_leaves_nothing(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {"proc/self/cgroup": "0::/\n", f"{CG}/memory.max": "700\n", f"{CG}/memory.current": "900\n"},
    )
    assert read_cgroup_limits(tmp_path).memory_left == 0
