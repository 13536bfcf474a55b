"""--json-schema, --regex, --grammar and --choice: what the answer must look like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.errors import UsageError
from slipstream.sampling.grammar.spec import GrammarSpec

_NAMES = ("json_schema", "regex", "grammar", "choice")


def with_grammar(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """`sampling` with the one of the four options that was given as a GrammarSpec under "grammar".

    Raises UsageError for more than one of them or a file that cannot be read, InvalidParamsError for a bad value.
    """
    given = {name: sampling[name] for name in _NAMES if name in sampling}
    rest = {name: value for name, value in sampling.items() if name not in _NAMES}
    if not given:
        return rest
    if len(given) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{flags} do not go together.", fix="Give one of them.")
    [(name, value)] = given.items()
    if name == "json_schema":
        spec = GrammarSpec.json_schema(_read(value))
    elif name == "regex":
        spec = GrammarSpec.regex(value)
    elif name == "grammar":
        spec = GrammarSpec.grammar(_read(value))
    else:
        spec = GrammarSpec.choice(value)
    return {**rest, "grammar": spec.named(f"--{name.replace('_', '-')}")}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"is not valid UTF-8 (byte {error.start}).", where=str(path)) from error
