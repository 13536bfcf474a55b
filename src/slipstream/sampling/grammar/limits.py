"""What llguidance would take of a JSON schema and then fail on in the middle of an answer, or be too slow for."""

from __future__ import annotations

from typing import Any

from slipstream.sampling.grammar.merging import MAX_ALTERNATIVES, Merger, StepTooLarge, TooManyAlternatives, step_of
from slipstream.sampling.grammar.schema_parts import parts

MAX_OPTIONAL = 400  # properties that may be left out, at one place; a mask takes longer the more of them are open
MAX_STEP_STATES = 1000  # of the multiples at one place; before every digit, all ways to the next multiple are looked at


def schema_fault(schema: Any) -> str | None:
    """The first that is found, with the place; None if there is none.

    What comes together at a place through `allOf`, `anyOf`, `oneOf` and `$ref` counts together, but alternatives that
    begin with a required property, as the kind of an object, count one by one.
    """
    try:
        return _fault(schema)
    except RecursionError:
        return "it is nested too deeply"


def _fault(schema: Any) -> str | None:
    merger = Merger(schema)
    for place, part in reversed(list(parts(schema))):  # the innermost first, which say best what is meant
        multiple = part.get("multipleOf")
        if type(multiple) in (int, float) and not multiple > 0:
            return f"multipleOf at {place} must be above 0, not {multiple}"
        if step_of(multiple) is None and type(multiple) in (int, float):
            return f"multipleOf at {place} is too large, or has more decimal places than can be counted with"
        try:
            alternatives = merger.alternatives(part)
        except TooManyAlternatives:
            return (
                f"what anyOf and oneOf allow at {place} comes to more than {MAX_ALTERNATIVES} alternatives, put "
                "together; use fewer of them"
            )
        except StepTooLarge:
            return f"the multipleOf that come together at {place} have no common multiple that is small enough"
        optional = sum(each.num_optional for each in alternatives if not each.led)
        optional = max([optional, *(each.num_optional for each in alternatives)])
        if optional > MAX_OPTIONAL:
            return (
                f"the object at {place} has {optional} optional properties{_through(part)}, and at most {MAX_OPTIONAL} "
                "are possible; make them required, or split the object"
            )
        states = sum(each.step.states for each in alternatives if each.step is not None)
        if states > MAX_STEP_STATES:
            return (
                f"multipleOf at {place}{_through(part)} is too large or has too many digits: times one more than its "
                f"decimal places it comes to {states}, and at most {MAX_STEP_STATES} is possible"
            )
    return None


def _through(part: dict[str, Any]) -> str:
    found = [name for name in ("allOf", "anyOf", "oneOf", "$ref") if name in part]
    return f" (those behind {' and '.join(found)} included)" if found else ""
