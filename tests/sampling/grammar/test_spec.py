from __future__ import annotations

import json

import pytest

from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def test_equal_grammars_are_equal_and_hash_alike() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}
    assert GrammarSpec.json_schema(schema) == GrammarSpec.json_schema(json.dumps(schema))
    assert len({GrammarSpec.regex("a"), GrammarSpec.regex("a"), GrammarSpec.regex("b"), GrammarSpec.grammar("a")}) == 3


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    assert list(json.loads(GrammarSpec.json_schema({"z": 1, "a": 2}).source)) == ["z", "a"]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: GrammarSpec("xml", "a"), "grammar.kind"),  # type: ignore[arg-type]
        (lambda: GrammarSpec("regex"), "grammar.source"),
        (lambda: GrammarSpec("json_object", "{}"), "grammar.source"),
        (lambda: GrammarSpec("regex", "a" * (1 << 18) + "b"), "grammar.source"),
        (lambda: GrammarSpec("regex", 3), "grammar.source"),  # type: ignore[arg-type]
        (lambda: GrammarSpec("regex", "a", bounded=1), "grammar.bounded"),  # type: ignore[arg-type]
        (lambda: GrammarSpec.json_schema([1]), "json_schema"),  # type: ignore[arg-type]
        (lambda: GrammarSpec.json_schema({"const": float("nan")}), "json_schema"),
        (lambda: GrammarSpec.choice([]), "choice"),
        (lambda: GrammarSpec.choice("ab"), "choice"),
        (lambda: GrammarSpec.choice(["a", ""]), "choice"),
        (lambda: GrammarSpec.choice(["a", "a"]), "choice"),
        (lambda: GrammarSpec.from_value("regex"), "grammar"),
        (lambda: GrammarSpec.from_value({"source": "a"}), "grammar.kind"),
        (lambda: GrammarSpec.from_value({"kind": "regex", "sauce": "a"}), "grammar.sauce"),
    ],
)
def test_what_is_no_grammar_is_refused_by_name(make: object, field: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.where == field


def test_sampling_params_take_a_spec_or_its_fields() -> None:
    spec = GrammarSpec.regex("a+")
    assert SamplingParams(grammar=spec).grammar is spec
    assert SamplingParams.from_mapping({"grammar": {"kind": "regex", "source": "a+"}}).grammar == spec
    with pytest.raises(InvalidParamsError, match="Did you mean source"):
        SamplingParams.from_mapping({"grammar": {"kind": "regex", "sourc": "a+"}})


def test_names_change_what_errors_say_and_nothing_else() -> None:
    spec = GrammarSpec.grammar("start: a\na: b\nb: c")
    assert spec.name_of() == spec.name_of(2) == "grammar"
    named = spec.named("tools", "tools[0]")
    assert named == spec
    assert hash(named) == hash(spec)
    assert [named.name_of(line) for line in (None, 1, 2, 3)] == ["tools", "tools", "tools[0]", "tools[0]"]
    assert GrammarSpec("grammar", spec.source, closing=False) != spec
