"""Plain command lines are read without typer, to the same values; all others are left to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from slipstream.cli.chat import chat
from slipstream.cli.features import features
from slipstream.cli.generate import generate
from slipstream.cli.inspect import inspect
from slipstream.cli.parameters import Argument, Option, for_typer, read_plainly
from slipstream.cli.pull import pull

pytestmark = pytest.mark.fast

Seen = dict[str, Any]


def recorder(seen: Seen) -> Callable[..., None]:
    def act(
        name: Annotated[str, Argument(metavar="NAME")],
        *,
        times: Annotated[int | None, Option("-n", "--times", help="How often.")] = None,
        share: Annotated[float, Option()] = 0.5,
        file_name: Annotated[Path | None, Option(metavar="FILE")] = None,
        stop: Annotated[list[str] | None, Option()] = None,
        quiet: Annotated[bool, Option("--quiet", "-q")] = False,
        keep: Annotated[bool | None, Option("--keep/--no-keep", show_default=False)] = None,
        own: Annotated[bool, Option()] = False,
    ) -> None:
        seen.update(locals())
        seen.pop("seen")

    return act


PLAIN = (
    ["a"],
    ["a", "--times", "3", "--share=0.25", "--file-name", "x/y"],
    ["-n", "7", "a", "--share", "1e-3"],
    ["--times=-4", "a", "--stop", "b", "--stop=c d"],
    ["a", "-q", "--keep", "--own"],
    ["--no-keep", "a", "--no-own"],
    ["a b", "--stop="],
)
NOT_PLAIN = (
    [],
    ["a", "b"],
    ["--help"],
    ["a", "--time", "3"],
    ["a", "--times"],
    ["a", "--times", "x"],
    ["a", "--times", "1_0"],
    ["a", "--share", "nan"],
    ["a", "--times", "1", "--times", "2"],
    ["a", "--quiet=1"],
    ["-qn3", "a"],
    ["a", "--times", "-4"],
    ["--", "a"],
    ["a", "--file-name="],
)


@pytest.mark.parametrize("args", PLAIN, ids=" ".join)
def test_plain_lines_give_what_typer_gives(args: list[str]) -> None:
    expected: Seen = {}
    app = typer.Typer(add_completion=False)
    app.command()(for_typer(recorder(expected)))
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    expected = {name: value if value != [] else None for name, value in expected.items()}
    assert read_plainly(recorder({}), args) == expected


@pytest.mark.parametrize("args", NOT_PLAIN, ids=" ".join)
def test_all_others_are_left_to_typer(args: list[str]) -> None:
    assert read_plainly(recorder({}), args) is None


def test_other_declarations_are_left_to_typer() -> None:
    def bare(name: str) -> None: ...

    def foreign(name: Annotated[str, typer.Option()]) -> None: ...

    assert read_plainly(bare, ["a"]) is None
    assert read_plainly(foreign, ["--name", "a"]) is None


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        (
            generate,
            ["m", "--prompt", "Hello", "--max-tokens", "1", "--backend", "cpu", "--temperature=0.5", "--ignore-eos"],
        ),
        (chat, ["m"]),
        (inspect, ["m", "--json"]),
        (inspect, ["--hardware"]),
        (pull, ["--list"]),
        (features, ["--json"]),
    ],
)
def test_every_verb_reads_its_own(verb: Callable[..., None], args: list[str]) -> None:
    assert read_plainly(verb, args) is not None
