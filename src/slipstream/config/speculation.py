"""Settings of speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slipstream.config.suggest import did_you_mean
from slipstream.config.typed import check_range, normalise_fields
from slipstream.errors import ConfigError

SpeculationMode = Literal["off", "auto", "ngram"]
SpeculationPolicy = Literal["cost", "threshold", "fixed"]

_MODES = ("off", "auto", "ngram")
_NOT_BUILT = {
    "draft_model": "drafting with a smaller model is not part of this build",
    "draft_head": "trained draft heads are not part of this build",
    "eagle": "trained draft heads are not part of this build",
    "eagle3": "trained draft heads are not part of this build",
    "medusa": "trained draft heads are not part of this build",
    "mtp": "trained draft heads are not part of this build",
    "mlp_speculator": "trained draft heads are not part of this build",
    "suffix": "drafts from other requests' answers are not part of this build",
}
_CONFIG_NAMES = {  # of vLLM's speculative_config
    "method": "speculative",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
    "policy": "speculative_policy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """`speculative`: "ngram" drafts what followed the same tokens before, "auto" with the best that there is.

    Policies: "cost" verifies what promises more tokens per second, by measured step times and acceptance; "threshold"
    switches a request off below 40 % acceptance and on again above 55 %; "fixed" verifies every draft.
    """

    speculative: SpeculationMode = "off"
    num_speculative_tokens: int = 5  # the longest draft
    speculative_policy: SpeculationPolicy = "cost"
    prompt_lookup_min: int = 2  # tokens that must have occurred before
    prompt_lookup_max: int = 32  # a longer match is no better evidence

    def __post_init__(self) -> None:
        check_method(self.speculative, "[speculation] speculative")
        normalise_fields(self, "speculation")
        check_range(self, "speculation", "num_speculative_tokens", "from 1 to 64", lambda x: 1 <= x <= 64)
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            check_range(self, "speculation", name, "at least 1", lambda x: x >= 1)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"is {self.prompt_lookup_min}, but prompt_lookup_max is {self.prompt_lookup_max}.",
                where="[speculation] prompt_lookup_min",
            )


def check_method(value: object, where: str) -> None:
    """Raises ConfigError for a method of drafting that there is not, with the reason if it is a known one."""
    if isinstance(value, str) and value not in _MODES:
        why = _NOT_BUILT.get(value, "no such method is known")
        raise ConfigError(f"cannot be {value!r}: {why}.", where=where, fix="Choose off, auto or ngram.")


def flat_speculation(config: object) -> dict[str, Any]:
    """vLLM's `speculative_config`, {"method": "ngram", "num_speculative_tokens": 4, ...}, as settings of ours.

    Without a method it means "auto". Raises ConfigError for what is not understood.
    """
    where = "speculative_config"
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ConfigError(f"must map names to values, not {type(config).__name__}.", where=where)
    if "model" in config:
        raise ConfigError(f"names a model, but {_NOT_BUILT['draft_model']}.", where=where, fix='Use method "ngram".')
    for name in config:
        if name not in _CONFIG_NAMES:
            raise ConfigError("is not a setting.", where=f"{where}: {name}", fix=did_you_mean(name, _CONFIG_NAMES))
    check_method(config.get("method"), f"{where}: method")
    return {"speculative": "auto"} | {_CONFIG_NAMES[name]: value for name, value in config.items()}
