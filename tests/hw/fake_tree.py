"""Fake /proc and /sys trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def topology(cores: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """Processor -> (package, core)."""
    files: dict[str, str] = {}
    for cpu, (package, core) in cores.items():
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{folder}/physical_package_id"] = f"{package}\n"
        files[f"{folder}/core_id"] = f"{core}\n"
    return files
