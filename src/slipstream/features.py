"""Which features exist and how every pair of them behaves (requirement R4).

A feature is *transparent* when switching it on must not change a single token, and *semantic* when it changes the
output on purpose (then the tokens must be the same as with that feature alone). The pair test in
tests/engine/test_feature_pairs.py runs every pair that this table calls working; a pair refused here is refused
when the engine is built, with the same reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from itertools import combinations

from slipstream.errors import FeatureConflictError
from slipstream.lean import dataclass


class Feature(StrEnum):
    CONTINUOUS_BATCHING = "continuous batching"
    CHUNKED_PREFILL = "chunked prefill"
    PREFIX_CACHING = "prefix caching"
    PREEMPTION = "preemption"
    PRIORITY = "priority scheduling"
    TPOT_OBJECTIVE = "TPOT objective"
    PARALLEL_SAMPLING = "parallel sampling (n > 1)"
    SEEDED_SAMPLING = "seeded sampling"
    PENALTIES = "penalties and bad words"
    LOGPROBS = "log-probabilities"
    PROMPT_LOGPROBS = "prompt log-probabilities"
    STOP = "stop strings and ids"
    GRAMMAR = "grammar-constrained output"
    SLIDING_WINDOW = "sliding-window attention"
    SOFT_CAP = "logit soft-capping"
    MOE = "mixture of experts"
    KV_FLOAT16 = "float16 KV cache"
    SPECULATION = "speculative decoding"
    ANSWER_STORE = "drafts from recent answers"


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    feature: Feature
    transparent: bool  # must not change any token
    switch: str  # how a user turns it on or off


@dataclass(frozen=True, slots=True)
class Pair:
    first: Feature
    second: Feature
    works: bool
    note: str = ""  # how it works where that is not obvious, or the reason of a refusal


FEATURES: tuple[FeatureInfo, ...] = (
    FeatureInfo(Feature.CONTINUOUS_BATCHING, True, "max_num_seqs"),
    FeatureInfo(Feature.CHUNKED_PREFILL, True, "enable_chunked_prefill, max_num_batched_tokens"),
    FeatureInfo(Feature.PREFIX_CACHING, True, "enable_prefix_caching"),
    FeatureInfo(Feature.PREEMPTION, True, "num_blocks (happens when blocks run out)"),
    FeatureInfo(Feature.PRIORITY, True, 'policy = "priority"; priority of a request'),
    FeatureInfo(Feature.TPOT_OBJECTIVE, True, "tpot_objective (seconds, auto by default, or off)"),
    FeatureInfo(Feature.PARALLEL_SAMPLING, False, "n"),
    FeatureInfo(Feature.SEEDED_SAMPLING, False, "temperature, top_k, top_p, min_p, seed"),
    FeatureInfo(Feature.PENALTIES, False, "repetition/presence/frequency_penalty, logit_bias, bad_words"),
    FeatureInfo(Feature.LOGPROBS, True, "logprobs"),
    FeatureInfo(Feature.PROMPT_LOGPROBS, True, "prompt_logprobs"),
    FeatureInfo(Feature.STOP, False, "stop, stop_token_ids, min_tokens, ignore_eos"),
    FeatureInfo(Feature.GRAMMAR, False, "grammar (JSON schema, regex, grammar, choice)"),
    FeatureInfo(Feature.SLIDING_WINDOW, False, "the model's configuration"),
    FeatureInfo(Feature.SOFT_CAP, False, "the model's configuration"),
    FeatureInfo(Feature.MOE, False, "the model's configuration"),
    FeatureInfo(Feature.KV_FLOAT16, False, "kv_dtype"),
    FeatureInfo(
        Feature.SPECULATION,
        True,
        "speculative, draft_model, draft_head, num_speculative_tokens; speculative of a request",
    ),
    FeatureInfo(Feature.ANSWER_STORE, True, "speculative_store_tokens, with speculative"),
)

_NOTES: dict[frozenset[Feature], str] = {
    frozenset({Feature.PREFIX_CACHING, Feature.PROMPT_LOGPROBS}): (
        "the request does not read the cache, because every prompt position needs its logits; it still fills it"
    ),
    frozenset({Feature.PARALLEL_SAMPLING, Feature.PROMPT_LOGPROBS}): "computed once, by the first completion",
    frozenset({Feature.CHUNKED_PREFILL, Feature.PROMPT_LOGPROBS}): (
        "such prompts are fed at most 256 tokens per step in all, even with chunked prefill off, because every "
        "position costs a row of logits"
    ),
    frozenset({Feature.STOP, Feature.GRAMMAR}): (
        "a stop string can cut the text before the grammar is satisfied; a complete text ends before min_tokens"
    ),
    frozenset({Feature.GRAMMAR, Feature.SPECULATION}): "what the grammar leaves no choice about is drafted first",
    frozenset({Feature.SPECULATION, Feature.ANSWER_STORE}): (
        "answers serve where they match more than the request's own text; they need speculation"
    ),
    frozenset({Feature.PREEMPTION, Feature.SPECULATION}): "drafts are dropped before a request is preempted",
    frozenset({Feature.TPOT_OBJECTIVE, Feature.SPECULATION}): (
        "drafted tokens come before prompt chunks, which get what the objective leaves"
    ),
    frozenset({Feature.LOGPROBS, Feature.GRAMMAR}): "the model's own, before the mask",
    frozenset({Feature.PARALLEL_SAMPLING, Feature.PREFIX_CACHING}): (
        "the completions share the prompt's full blocks whether or not the cache is on"
    ),
}


_REFUSED: dict[frozenset[Feature], str] = {}  # why a pair does not work


def pairs() -> Iterator[Pair]:
    """Every unordered pair, in table order."""
    for first, second in combinations((info.feature for info in FEATURES), 2):
        both = frozenset({first, second})
        yield Pair(first, second, both not in _REFUSED, _REFUSED.get(both) or _NOTES.get(both, ""))


def require_working(active: Collection[Feature], table: Iterable[Pair] | None = None) -> None:
    """Raise FeatureConflictError, with the table's reason, if two of the features are refused together."""
    for pair in pairs() if table is None else table:
        if not pair.works and pair.first in active and pair.second in active:
            raise FeatureConflictError(f"{pair.first} and {pair.second} do not work together: {pair.note}.")
