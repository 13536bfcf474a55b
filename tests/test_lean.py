from __future__ import annotations

import subprocess
import sys
from dataclasses import field, fields, replace
from pathlib import Path

import pytest

from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Solid(Point):
    z: int = field(default=0, compare=False, repr=False)


@dataclass(slots=True)
class Open:
    x: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Itself:
    x: int


@dataclass(frozen=True)
class Named:
    """Has a text of its own."""

    x: int

    def __repr__(self) -> str:
        return f"<{self.x}>"


@pytest.mark.fast
def test_it_is_a_dataclass_with_slots_equality_hash_and_text() -> None:
    assert [each.name for each in fields(Point)] == ["x", "y"]
    assert Point(1) == Point(1, ()) != Point(2)
    assert Point(1) != (1, ())
    assert hash(Point(1)) == hash(Point(1))
    assert replace(Point(1), y=(2,)) == Point(1, (2,))
    assert not hasattr(Point(1), "__dict__")
    assert repr(Point(1)) == "Point(x=1, y=())"
    assert Point.__doc__ == "Point(x, y)"


@pytest.mark.fast
def test_what_is_not_compared_or_shown() -> None:
    assert Solid(1, (), 2) == Solid(1, (), 3)
    assert hash(Solid(1, (), 2)) == hash(Solid(1, (), 3))
    assert Solid(1) != Point(1)
    assert repr(Solid(1, (), 2)) == "Solid(x=1, y=())"


@pytest.mark.fast
def test_options_mean_what_they_mean_in_the_standard_one() -> None:
    assert Open() == Open([])
    assert Open().x is not Open().x
    with pytest.raises(TypeError, match="unhashable"):
        hash(Open())
    assert Itself(1) != Itself(1)
    assert len({Itself(1), Itself(1)}) == 2
    assert (repr(Named(3)), Named.__doc__) == ("<3>", "Has a text of its own.")


def test_the_type_checker_takes_it_for_frozen(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from slipstream.engine.plan import StepPlan\nplan = StepPlan(1, ())\nplan.step = 2\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 'Property "step" defined in "StepPlan" is read-only' in done.stdout
