"""Settings of speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slipstream.config.suggest import did_you_mean
from slipstream.config.typed import check_range, normalise_fields
from slipstream.errors import ConfigError

SpeculationMode = Literal["off", "auto", "ngram", "draft_model", "draft_head"]
SpeculationPolicy = Literal["cost", "threshold", "fixed"]
Verification = Literal["gumbel", "rejection"]

_MODES = ("off", "auto", "ngram", "draft_model", "draft_head")
_NOT_BUILT = {
    "eagle": "such heads are not part of this build (draft_head names one that Slipstream trained)",
    "eagle3": "such heads are not part of this build (draft_head names one that Slipstream trained)",
    "medusa": "such heads are not part of this build",
    "mtp": "such heads are not part of this build",
    "mlp_speculator": "such heads are not part of this build",
    "suffix": "answers of other requests are drafted from by ngram with speculative_store_tokens",
}
_CHOICE = "Choose off, auto, ngram, draft_head or a smaller model."
_MOST = 1 << 30
_CONFIG_NAMES = {  # of vLLM's speculative_config
    "method": "speculative",
    "mode": "speculative",
    "model": "draft_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
    "store_tokens": "speculative_store_tokens",
    "policy": "speculative_policy",
    "verification": "speculative_verification",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """`speculative`: "ngram" drafts what followed the same tokens before, "draft_model" with the smaller model that
    `draft_model` names, "draft_head" with the trained head in the folder `draft_head`, "auto" with the best that there
    is: n-grams where they match, else the head or the model if one is named. Any other value is taken for the name of
    such a model, and means "auto" with it.

    Policies: "cost" verifies what promises more tokens per second, by measured step times and acceptance; "threshold"
    switches a request off below 40 % acceptance and on again above 55 %; "fixed" verifies every draft.

    Verification: "gumbel" compares drafts with the tokens that would come without; "rejection" judges those of a draft
    model by rejection sampling where a request has no seed and a temperature, which accepts more of them.

    `speculative_store_tokens`: so many tokens of answers that ended lately are kept to draft from, for requests of the
    same tenant and cache salt.
    """

    speculative: SpeculationMode = "off"
    draft_model: str | None = None  # a pulled name, a file or a folder; its tokenizer must be the model's
    draft_head: str | None = None  # the folder of a head that was trained for the model
    num_speculative_tokens: int = 5  # the longest draft
    speculative_policy: SpeculationPolicy = "cost"
    speculative_verification: Verification = "gumbel"
    prompt_lookup_min: int = 2  # tokens that must have occurred before
    prompt_lookup_max: int = 32  # a longer match is no better evidence
    speculative_store_tokens: int = 0  # 0: nothing is kept

    def __post_init__(self) -> None:
        self._take_model()
        normalise_fields(self, "speculation")
        check_range(self, "speculation", "num_speculative_tokens", "from 1 to 64", lambda x: 1 <= x <= 64)
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            check_range(self, "speculation", name, "at least 1", lambda x: x >= 1)
        check_range(self, "speculation", "speculative_store_tokens", f"from 0 to {_MOST}", lambda x: 0 <= x <= _MOST)
        if self.speculative_store_tokens and self.speculative in ("draft_model", "draft_head"):
            raise ConfigError(
                f"keeps answers for n-grams, but speculative is {self.speculative}, which drafts with that alone.",
                where="[speculation] speculative_store_tokens",
                fix="Choose auto (n-grams, and what is named beside them), or leave it out.",
            )
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"is {self.prompt_lookup_min}, but prompt_lookup_max is {self.prompt_lookup_max}.",
                where="[speculation] prompt_lookup_min",
                fix="Lower the one or raise the other.",
            )

    def _take_model(self) -> None:
        where, mode = "[speculation] speculative", self.speculative
        if isinstance(mode, str) and mode not in _MODES:
            refuse_not_built(mode, where)
            if self.draft_model is not None and self.draft_model != mode:
                raise ConfigError(
                    f"names the model {mode!r}, but draft_model is {self.draft_model!r}.",
                    where=where,
                    fix="Give one of the two.",
                )
            object.__setattr__(self, "draft_model", mode)
            object.__setattr__(self, "speculative", "auto")
        elif mode == "draft_model" and self.draft_model is None:
            raise ConfigError(
                "is draft_model, but no model is named.",
                where=where,
                fix="Name the smaller model in draft_model (--speculative MODEL on the command line).",
            )
        elif mode == "draft_head" and self.draft_head is None:
            raise ConfigError(
                "is draft_head, but no folder is named.",
                where=where,
                fix="Set draft_head (--draft-head) to the folder of a trained one (slipstream draft train).",
            )
        self._one_of_both()

    def _one_of_both(self) -> None:
        where = "[speculation] speculative"
        if self.draft_head is not None and self.draft_model is not None:
            raise ConfigError(
                f"cannot be used together with draft_model = {self.draft_model!r}.",
                where="[speculation] draft_head",
                fix="Give one of the two.",
            )
        if self.draft_head is not None and self.speculative in ("ngram", "draft_model"):
            raise ConfigError(
                f"is {self.speculative}, which has no use for draft_head = {self.draft_head!r}.",
                where=where,
                fix="Choose auto (n-grams and the head) or draft_head (the head alone).",
            )
        if self.draft_model is not None and self.speculative in ("ngram", "draft_head"):
            raise ConfigError(
                f"is {self.speculative}, which has no use for draft_model = {self.draft_model!r}.",
                where=where,
                fix="Choose auto (n-grams and the model) or draft_model (the model alone).",
            )


def refuse_not_built(value: object, where: str) -> None:
    """Raises ConfigError for a known method of drafting that is not part of this build, and for an empty name."""
    if isinstance(value, str) and (value in _NOT_BUILT or not value):
        why = _NOT_BUILT.get(value, "no such method is known")
        raise ConfigError(f"cannot be {value!r}: {why}.", where=where, fix=_CHOICE)


def flat_speculation(config: object) -> dict[str, Any]:
    """vLLM's `speculative_config`, {"method": "ngram", "num_speculative_tokens": 4, ...}, as settings of ours.

    Without a method it means "auto"; "mode" is another word for it. Raises ConfigError for what is not understood.
    """
    where = "speculative_config"
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ConfigError(f"must map names to values, not {type(config).__name__}.", where=where)
    for name in config:
        if name not in _CONFIG_NAMES:
            raise ConfigError("is not a setting.", where=f"{where}: {name}", fix=did_you_mean(name, _CONFIG_NAMES))
    if "method" in config and "mode" in config:
        raise ConfigError("is given twice.", where=f"{where}: method and mode", fix="Give one of the two.")
    method = config.get("method", config.get("mode"))
    refuse_not_built(method, f"{where}: method")
    if isinstance(method, str) and method not in _MODES:
        raise ConfigError(f"cannot be {method!r}: no such method is known.", where=f"{where}: method", fix=_CHOICE)
    names = dict(_CONFIG_NAMES)
    if method == "draft_head":
        names["model"] = "draft_head"
    return {"speculative": "auto"} | {names[name]: value for name, value in config.items()}
