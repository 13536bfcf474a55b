from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from slipstream.lean import lean_dataclass


@lean_dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


@pytest.mark.fast
def test_it_is_a_dataclass_with_slots_equality_and_hash() -> None:
    assert [each.name for each in fields(Point)] == ["x", "y"]
    assert Point(1) == Point(1, ()) != Point(2)
    assert hash(Point(1)) == hash(Point(1))
    assert replace(Point(1), y=(2,)) == Point(1, (2,))
    assert not hasattr(Point(1), "__dict__")


def test_the_type_checker_takes_it_for_frozen(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from slipstream.engine.plan import StepPlan\nplan = StepPlan(1, ())\nplan.step = 2\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 'Property "step" defined in "StepPlan" is read-only' in done.stdout
