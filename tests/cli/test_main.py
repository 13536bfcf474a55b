from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer

from slipstream import errors
from slipstream.cli import dispatch
from slipstream.cli.exit_codes import MEANINGS, ExitCode, summary
from slipstream.cli.main import main
from slipstream.cli.verbs import VERBS, Verb

pytestmark = pytest.mark.fast

Install = Callable[[Callable[..., None]], None]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a function the one verb there is: `slipstream act`."""

    def install(function: Callable[..., None]) -> None:
        module = ModuleType("a_verb")
        module.act = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_verb", module)
        monkeypatch.setattr(dispatch, "VERBS", (Verb("act", "a_verb", "act", "Do it."),))

    return install


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_help_lists_verbs_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(f"  {verb.name} " in out and verb.help in out for verb in VERBS)
    assert all(f"{code.value:>3}  {meaning}" in out for code, meaning in MEANINGS.items())
    assert main([]) == 0
    assert capsys.readouterr().out == out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); from slipstream.cli.main import main; main(['--help']);"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stderr))
    assert "slipstream" in loaded
    assert loaded.isdisjoint({"typer", "click", "rich", "numpy", "torch", "jinja2", "tokenizers", "huggingface_hub"})


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "slipstream"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pul"], "there is no verb 'pul'. Did you mean `slipstream pull`?"),
        (["zzz"], "there is no verb 'zzz'. See `slipstream --help` for the verbs."),
        (["--wat"], "there is no option --wat. See `slipstream --help`."),
        (["pull", "--lis"], "there is no option --lis. Did you mean --list? See `slipstream pull --help`."),
        (["pull", "a", "b"], "See `slipstream pull --help`."),
    ],
)
def test_wrong_usage(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def all_errors(base: type[errors.SlipstreamError] = errors.SlipstreamError) -> list[type[errors.SlipstreamError]]:
    """Those of errors.py; subclasses elsewhere inherit their code."""
    own = [base] if base.__module__ == errors.__name__ else []
    return [*own, *(error for child in base.__subclasses__() for error in all_errors(child))]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_ends_with_its_documented_code(
    kind: type[errors.SlipstreamError], verb: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers: dict[type[errors.SlipstreamError], tuple[int, ...]] = {
        errors.ContextLengthError: (5, 4),
        errors.TextTooLongError: (9, 4, 2),
    }
    own = numbers.get(kind)
    error = kind("went wrong.", where="here", fix="Mend it.") if own is None else kind(*own)  # type: ignore[arg-type]
    verb(raising(error))
    assert main(["act"]) == kind.exit_code
    assert ExitCode(kind.exit_code) in MEANINGS
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_ctrl_c(verb: Install, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (KeyboardInterrupt(), typer.Abort()):
        verb(raising(error))
        assert main(["act"]) == 130
        assert capsys.readouterr() == ("", "interrupted\n")


def test_a_defect_is_one_line_and_debug_shows_where(verb: Install, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(KeyError("x")))
    assert main(["act"]) == 1
    assert capsys.readouterr().err == (
        "error: unexpected KeyError: 'x'\nThis is a defect; `slipstream --debug act` shows where.\n"
    )
    assert main(["--debug", "act"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_running_out_of_memory_is_no_defect(verb: Install, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(MemoryError()))
    assert main(["act"]) == ExitCode.RESOURCES
    assert capsys.readouterr().err == "error: there is not enough memory.\n"


def test_options_arguments_and_exit(verb: Install, capsys: pytest.CaptureFixture[str]) -> None:
    def act(name: str, times: Annotated[int, typer.Option(help="How often.")] = 1) -> None:
        """Does it."""
        print(name * times)
        raise typer.Exit(4)

    verb(act)
    assert main(["act", "ab", "--times", "2"]) == 4
    assert capsys.readouterr().out == "abab\n"
    assert main(["act", "ab", "--times", "x"]) == 2
    assert "--times" in capsys.readouterr().err
    assert main(["act", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Usage: slipstream act" in out
    assert "How often." in out
    assert " ".join(out.split()).endswith(summary())
    assert "\x1b" not in out


def test_a_reader_that_goes_away_is_no_noise(tmp_path: Path) -> None:
    program = "from slipstream.cli.main import run; import sys; sys.argv = ['slipstream', '--help']; run()"
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_streams_that_the_caller_closed_are_done_without() -> None:
    program = (
        "import os; os.closerange(0, 3); import sys; sys.stdin = sys.stdout = sys.stderr = None; sys.argv[1:] = {};"
    )
    program += " from slipstream.cli.main import run; run()"
    for arguments, code in ((["--version"], 0), (["--nothing"], 2)):
        done = subprocess.run([sys.executable, "-c", program.format(arguments)], check=False)
        assert done.returncode == code


def test_every_verb_of_the_table_is_there() -> None:
    from importlib import import_module

    entries = list(VERBS)
    for entry in entries:
        target = getattr(import_module(entry.module), entry.attribute)
        if isinstance(target, tuple):
            entries += target
        else:
            assert callable(target)


WATCHED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell begin with it ignored
at, sys.argv = sys.argv[1], ["slipstream", *sys.argv[2:]]
from slipstream.cli.main import run

def strike(event, arguments):
    if event == "import" and arguments[0] == at:
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(strike)
run()
"""


@pytest.mark.parametrize(
    "at", ["slipstream.cli.dispatch", "slipstream.cli.verbs", "slipstream.errors", "slipstream.cli.load", "numpy"]
)
def test_an_interrupt_during_any_import_is_no_traceback(at: str) -> None:
    args = [sys.executable, "-c", WATCHED, at, "generate", "no-such-model", "--prompt", "x"]
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_the_entry_point_imports_next_to_nothing_before_it_watches() -> None:
    code = (
        "import sys; before = set(sys.modules); import slipstream.cli.main; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())  # an editable install has a finder that needs some more
    assert {name for name in loaded if name.startswith("slipstream")} == {
        "slipstream",
        "slipstream.cli",
        "slipstream.cli.main",
    }
    assert not loaded & {"typing", "re", "enum", "dataclasses", "inspect", "signal", "numpy"}


def test_an_interrupt_that_python_has_wrapped_is_one(verb: Install, capsys: pytest.CaptureFixture[str]) -> None:
    class Struck:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def act() -> None:
        type("Made", (), {"field": Struck()})

    verb(act)
    assert main(["act"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr() == ("", "interrupted\n")
