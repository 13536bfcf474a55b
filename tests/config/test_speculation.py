from __future__ import annotations

import pytest

from slipstream.config.speculation import SpeculationOptions
from slipstream.config.types import EngineOptions
from slipstream.errors import ConfigError

pytestmark = pytest.mark.fast


def options(**values: object) -> SpeculationOptions:
    return EngineOptions.from_flat(model="m", **values).speculation


def test_it_is_off_by_default() -> None:
    assert options() == SpeculationOptions()
    assert SpeculationOptions().speculative == "off"


def test_the_dictionary_of_vllm_means_the_same_settings() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 5}
    expected = {"speculative": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 5}
    assert options(speculative_config=config) == options(**expected) == SpeculationOptions(**expected)  # type: ignore[arg-type]
    assert options(speculative_config={"num_speculative_tokens": 2}).speculative == "auto"
    assert options(speculative_config={"policy": "fixed"}).speculative_policy == "fixed"
    assert options(speculative_config={"verification": "rejection"}).speculative_verification == "rejection"
    assert options(speculative_config={"store_tokens": 9}) == options(speculative="auto", speculative_store_tokens=9)
    assert options(speculative_config=None) == SpeculationOptions()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "draft_model"}, r"\[speculation\] speculative: is draft_model, but no model is named"),
        ({"method": "ngram", "mode": "auto"}, "speculative_config: method and mode: is given twice"),
        ({"method": "ngram", "model": "small"}, "speculative: is ngram, which has no use for draft_model = 'small'"),
        ({"method": "draft_head"}, r"\[speculation\] speculative: is draft_head, but no folder is named"),
        ({"method": "eagle3"}, r"method: cannot be 'eagle3': such heads are not part of this build \(draft_head names"),
        (
            {"method": "suffix"},
            "cannot be 'suffix': answers of other requests are drafted from by ngram with speculative",
        ),
        ({"method": "wizard"}, "method: cannot be 'wizard': no such method is known"),
        (
            {"num_speculative_token": 4},
            "speculative_config: num_speculative_token: is not a setting. Did you mean num",
        ),
        ({"num_speculative_tokens": "4"}, r"\[speculation\] num_speculative_tokens: must be an integer"),
        ("ngram", "speculative_config: must map names to values, not str"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(speculative_config=config)


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="speculative_config and num_speculative_tokens: is given twice"):
        options(speculative_config={"num_speculative_tokens": 4}, num_speculative_tokens=4)


@pytest.mark.parametrize("method", ["eagle", "mtp", ""])
def test_the_mode_is_refused_with_its_reason(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[speculation\] speculative: cannot be .{method}.: .* Choose off"):
        options(speculative=method)


def test_another_value_names_a_draft_model() -> None:
    expected = SpeculationOptions(speculative="auto", draft_model="SmolLM2-135M")
    assert options(speculative="SmolLM2-135M") == options(speculative_config={"model": "SmolLM2-135M"}) == expected
    alone = options(speculative_config={"mode": "draft_model", "model": "small"})
    assert (alone.speculative, alone.draft_model) == ("draft_model", "small")
    assert options(draft_model="small").speculative == "off"
    with pytest.raises(ConfigError, match="speculative: names the model 'a', but draft_model is 'b'"):
        options(speculative="a", draft_model="b")


def test_a_head_is_named_by_its_folder() -> None:
    expected = SpeculationOptions(speculative="draft_head", draft_head="head")
    assert options(speculative_config={"method": "draft_head", "model": "head"}) == expected
    assert options(speculative="draft_head", draft_head="head") == expected
    assert options(speculative="auto", draft_head="head").draft_head == "head"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative": "small", "draft_head": "h"}, "draft_head: cannot be used together with draft_model = 'small'"),
        ({"speculative": "ngram", "draft_head": "h"}, "speculative: is ngram, which has no use for draft_head = 'h'"),
        (
            {"speculative": "draft_head", "draft_head": "h", "draft_model": "m"},
            "draft_head: cannot be used together with draft_model = 'm'",
        ),
        (
            {"speculative": "draft_head", "draft_model": "m"},
            r"is draft_head, but no folder is named\. Set draft_head \(--draft-head\)",
        ),
        ({"speculative": "draft_model", "draft_head": "h"}, r"no model is named\. .* \(--speculative MODEL on the"),
    ],
)
def test_a_head_and_what_does_not_go_with_it(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**settings)


def test_answers_are_kept_for_ngrams_only() -> None:
    for alone in ("draft_model", "draft_head"):
        with pytest.raises(ConfigError, match="speculative_store_tokens: keeps answers for n-grams, but"):
            options(speculative=alone, **{alone: "small"}, speculative_store_tokens=9)
    assert options(speculative="small", speculative_store_tokens=9).speculative == "auto"


def test_lookup_bounds_in_the_wrong_order() -> None:
    with pytest.raises(ConfigError, match=r"prompt_lookup_min: is 5, but prompt_lookup_max is 4\. Lower the one"):
        options(prompt_lookup_min=5, prompt_lookup_max=4)


def test_a_file_has_a_section_for_it() -> None:
    made = EngineOptions.from_sections({"model": {"model": "m"}, "speculation": {"speculative": "auto"}})
    assert made.speculation.speculative == "auto"
