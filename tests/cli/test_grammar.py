from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.grammar import with_grammar
from slipstream.cli.options import sampling_options
from slipstream.cli.parameters import read_plainly
from slipstream.errors import InvalidParamsError, UsageError
from slipstream.sampling.grammar.spec import GrammarSpec

pytestmark = pytest.mark.fast


def parse(*args: str) -> Any:
    seen: list[Any] = []

    @sampling_options
    def verb(*, sampling: Any) -> None:
        seen.append(sampling)

    arguments = read_plainly(verb, args)
    assert arguments is not None
    verb(**arguments)
    return seen[0]


def test_each_option_becomes_a_grammar(tmp_path: Path) -> None:
    schema, lark = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type": "string"}')
    lark.write_text('start: "é"', encoding="utf-8")
    assert parse("--json-schema", str(schema)) == {"grammar": GrammarSpec.json_schema({"type": "string"})}
    assert parse("--grammar", str(lark)) == {"grammar": GrammarSpec.grammar('start: "é"')}
    assert parse("--regex", "a+", "--seed", "3") == {"grammar": GrammarSpec.regex("a+"), "seed": 3}
    assert parse("--choice", "yes", "--choice", "no") == {"grammar": GrammarSpec.choice(["yes", "no"])}
    assert parse("--top-k", "4") == {"top_k": 4}


def test_errors_name_the_option() -> None:
    assert parse("--regex", "a+")["grammar"].name_of() == "--regex"
    assert parse("--choice", "yes")["grammar"].name_of() == "--choice"


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--regex and --choice do not go together"):
        with_grammar({"choice": ["a"], "regex": "b"})
    with pytest.raises(UsageError, match=r"missing\.json: cannot be read"):
        with_grammar({"json_schema": tmp_path / "missing.json"})
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(UsageError, match="UTF-8"):
        with_grammar({"grammar": tmp_path / "latin"})
    with pytest.raises(InvalidParamsError, match="choice"):
        with_grammar({"choice": ["a", "a"]})
