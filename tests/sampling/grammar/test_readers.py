from __future__ import annotations

import gc
import os
from pathlib import Path
from threading import Thread

import pytest

from slipstream.errors import EngineError, InvalidParamsError
from slipstream.sampling.grammar import readers
from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.readers import GrammarReaders, GrammarTooCostly
from slipstream.sampling.grammar.spec import GrammarSpec
from tests.sampling.grammar.tiny_vocabulary import EOS, TOKENIZER, VOCAB_SIZE

NAMES = {i: TOKENIZER.token_bytes(i) for i in EOS}
# Each takes llguidance from many seconds to hours; none passes a limit that it checks.
STARS = GrammarSpec.regex(".*" * 50_000)
PATTERNS = GrammarSpec.json_schema({"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(1, 40)]})
TOGETHER = GrammarSpec.grammar("start: A\nA: " + " & ".join(f"/.*a.{{{i}}}/" for i in range(1, 30)))
BEHIND_A_TOKEN = GrammarSpec.grammar(TOGETHER.source.replace("start: A", "start: <end> A"))


@pytest.mark.parametrize("spec", [STARS, PATTERNS, TOGETHER, BEHIND_A_TOKEN], ids=["stars", "patterns", "and", "token"])
def test_a_grammar_that_would_take_hours_is_stopped(spec: GrammarSpec) -> None:
    short = GrammarReaders(VOCAB_SIZE, NAMES, seconds=0.2)
    compiler = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=short)
    with pytest.raises(InvalidParamsError, match=r"it takes more than 0.2 s of processor time to read; simplify it"):
        compiler.compile(spec)
    assert compiler.compile(GrammarSpec.regex("a")).shortest == 1


def test_another_grammar_does_not_wait_for_one_that_is_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = "\n".join([
        "import os, sys, time",
        "input(); print(flush=True)",
        "for line in sys.stdin:",
        "    while 'slow' in line and not os.path.exists(sys.argv[1]): time.sleep(0.01)",
        "    print('\"\"', flush=True)",
    ])  # fmt: skip
    monkeypatch.setattr(readers, "COMMAND", (readers.COMMAND[0], "-c", reads, str(tmp_path / "go on")))
    compiler = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=GrammarReaders(VOCAB_SIZE, NAMES))
    slow = Thread(target=lambda: compiler.compile(GrammarSpec.regex("slow")))
    slow.start()
    assert compiler.compile(GrammarSpec.regex("a+")).shortest == 1
    assert slow.is_alive()
    (tmp_path / "go on").touch()
    slow.join()
    assert compiler.compile(GrammarSpec.regex("slow")).shortest == 4


def test_what_is_wrong_with_a_grammar_is_told() -> None:
    pool = GrammarReaders(VOCAB_SIZE, NAMES)
    assert pool.read("start: <end> /a+/") == ""
    assert "unknown special token" in pool.read("start: <nobody>")
    assert pool.read(f"start: <[{VOCAB_SIZE - 1}]>") == ""


def test_one_process_serves_many_grammars_and_ends_with_its_owner() -> None:
    before = _processes()
    pool = GrammarReaders(VOCAB_SIZE, NAMES)
    for i in range(3):
        assert pool.read(f"start: /a{i}/") == ""
    [process] = _processes() - before
    del pool
    gc.collect()
    assert process not in _processes()


def test_a_process_that_has_ended_by_itself_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = "import sys; input(); print(flush=True); print('\"first\"' if input() else '', flush=True)"
    monkeypatch.setattr(readers, "COMMAND", (readers.COMMAND[0], "-c", ends))
    pool = GrammarReaders(VOCAB_SIZE, NAMES)
    assert [pool.read("start: /a/") for _ in range(3)] == ["first"] * 3


@pytest.mark.parametrize("command", [("/no/such/file",), (readers.COMMAND[0], "-c", "exit(3)")])
def test_no_process_is_no_fault_of_the_grammar(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "COMMAND", command)
    with pytest.raises(EngineError, match="the process that reads grammars"):
        GrammarReaders(VOCAB_SIZE, NAMES).read("start: /a/")


def test_too_much_memory_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    aborts = "import os; input(); print(flush=True); input(); os.abort()"
    monkeypatch.setattr(readers, "COMMAND", (readers.COMMAND[0], "-c", aborts))
    with pytest.raises(GrammarTooCostly, match="too much memory"):
        GrammarReaders(VOCAB_SIZE, NAMES).read("start: /a/")


def _processes() -> set[int]:
    """This process's children that read grammars."""
    found = set()
    for child in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        found |= {int(pid) for pid in child.read_text().split() if _reads(int(pid))}
    return found


def _reads(pid: int) -> bool:
    return b"sampling.grammar.reader" in Path(f"/proc/{pid}/cmdline").read_bytes()
