"""llguidance's messages in plain words: without its own names, without the source that it shows, without its advice."""

from __future__ import annotations

import re

_MAX_REASON = 300  # characters

_PLACE = re.compile(r"(?:at )?(\d+)\(\d+\): ")
_SHOWN = re.compile(r"\n *\d+ \| .*\Z", re.DOTALL)  # the source around the place
_CUT = (  # what comes before the reason proper
    re.compile(r"\Afailed to compile JSON schema: "),
    re.compile(r"\Ainvalid regex .*\(in regex\): ", re.DOTALL),
    re.compile(r"\AFailed to convert the grammar from GBNF to Lark: "),
)

_TOO_LARGE = "it is too large or too intricate; simplify it"
_NO_ANSWER = "it allows no answer"
_REWORDED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), text)
    for pattern, text in (
        (r"NoExtension", _NO_ANSWER),
        (r"initial lexer configuration|lexer precomputation|too many expressions|LexerTooComplex", _TOO_LARGE),
        (r"grammar .*too (?:big|large)|too many states|(?:step|lexer) .*limit", _TOO_LARGE),
        (r"row has (\d+) items; max is (\d+)", r"\1 alternatives at one place, and at most \2 are possible"),
        (r"ParserTooComplex|[Tt]oo many items", "too many alternatives at one place; simplify it"),
        (r"regex parse error:.*\nerror: ([^\n]*)", r"the regular expression is not valid: \1"),
        (r"lookarounds not supported", "look-around and anchors within a regular expression are not supported"),
        (r"\AUnimplemented keys: \[(.*)\]", r"not supported: \1"),
        (
            r"Unable to determine if regex is empty",
            "whether any text fits all of its patterns cannot be told; simplify them",
        ),
        (r"Regex is empty", "no text fits all of its patterns and lengths"),
        (r"oneOf constraints are not supported", "oneOf is not supported where its schemas overlap; use anyOf"),
        (r"\AUnsatisfiable schema: (.*)", r"nothing fits it: \1"),
        (r"\APointer '([^']*)' does not exist", r'the $ref "#\1" leads nowhere'),
        (r"\AResource '([^']*)' is not present", r'the $ref "\1" leads out of the schema, where nothing is looked up'),
        (r"unknown special token: (\"[^\"]*\")", r"the model's vocabulary has no special token \1"),
        (r"maximum recursion depth|recursion limit", "it is nested too deeply"),
        (r"\AExpected f64 for (.*)", r"expected a number for \1"),
        (r"\Aunknown name: (.*)", r"there is no rule \1"),
    )
)


def plain_reason(message: str) -> tuple[int | None, str]:
    """The line of the source that is meant, if it says one, and what is wrong there."""
    place = _PLACE.match(message)
    reason = _SHOWN.sub("", message[place.end() :] if place else message).removesuffix("\n<non-verbose/>")
    for pattern in _CUT:
        reason = pattern.sub("", reason)
    for pattern, text in _REWORDED:
        found = pattern.search(reason)
        if found is not None:
            reason = found.expand(text)
            break
    reason = " ".join(reason.split())
    if len(reason) > _MAX_REASON:
        reason = reason[:_MAX_REASON] + "..."
    return (int(place[1]) if place else None), reason or _NO_ANSWER
