"""The feature matrix, executed: every pair that works runs with both features on and gives exactly the plain tokens.

Plain: each request alone, prompts whole, nothing cached, memory in plenty, and only those features on that change the
output on purpose. Each feature also has to prove that it was in effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from replay import Replay, always
from scheduling_loop import KnownCost
from tiny_engine import BACKENDS, TinyEngine, spell, tiny_model, tokens

from slipstream import LLM, SamplingParams
from slipstream.engine import loading
from slipstream.engine.outputs import RequestOutput
from slipstream.engine.queue import PriorityOrder
from slipstream.engine.recent_answers import RecentAnswers
from slipstream.errors import FeatureConflictError
from slipstream.features import FEATURES, Feature, Pair, pairs, require_working
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.spec.answers import AnswerStore
from slipstream.spec.ngram import NgramProposer

SEMANTIC = frozenset(info.feature for info in FEATURES if not info.transparent)
NUM_REQUESTS, MAX_TOKENS, LIMIT = 4, 10, 3
Features = frozenset[Feature]
GRAMMAR = f"([{spell([0])}-{spell([49])}][{spell([50])}-{spell([98])}])*[{spell([0])}-{spell([49])}]?"

# What every engine of the running test computes with; a context variable, because all helpers below depend on it.
BACKEND: ContextVar[str] = ContextVar("BACKEND", default="reference")


@cache
def prompts() -> list[tuple[int, ...]]:
    rng = random.Random(11)
    shared = [rng.randrange(99) for _ in range(9)]
    return [(*shared, *(rng.randrange(99) for _ in range(3 + 2 * i))) for i in range(NUM_REQUESTS)]


def sampling(on: Features) -> list[SamplingParams]:
    params: dict[str, object] = {"max_tokens": MAX_TOKENS, "temperature": 0.0}
    if Feature.SEEDED_SAMPLING in on:
        params |= {"temperature": 1.2, "top_k": 50, "top_p": 0.98, "min_p": 0.001}
    if Feature.PARALLEL_SAMPLING in on:
        params["n"] = 2
    if Feature.LOGPROBS in on:
        params["logprobs"] = 2
    if Feature.PROMPT_LOGPROBS in on:
        params["prompt_logprobs"] = 1
    if Feature.PENALTIES in on:
        likely = plain(on - {Feature.PENALTIES, Feature.STOP})[0].outputs[0].token_ids
        params |= {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3}
        params |= {"logit_bias": {5: 1.5, 60: -2.0}, "bad_words": spell(likely[:1]), "bad_words_ids": [likely[1:3]]}
    if Feature.GRAMMAR in on:
        params["grammar"] = GrammarSpec.regex(GRAMMAR)
    stops: list[dict[str, object]] = [{}] * NUM_REQUESTS
    if Feature.STOP in on:
        answers = [output.outputs[0].token_ids for output in plain(on - {Feature.STOP})]
        # Half of the requests end at a string of two tokens, half at a token; min_tokens forbids the latter at first.
        stops = [
            {"stop": ["never", spell(answer[7:9])], "min_tokens": 2, "stop_token_ids": [] if i % 2 else answer[8:9]}
            for i, answer in enumerate(answers)
        ]
    return [SamplingParams(**params, **stops[i], seed=10 * i) for i in range(NUM_REQUESTS)]  # type: ignore[arg-type]


def engine(on: Features, **settings: object) -> TinyEngine:
    """An engine for the features of `on` that belong to the model and its KV cache."""
    model = tiny_model(
        "MixtralForCausalLM" if Feature.MOE in on else "LlamaForCausalLM",
        window=Feature.SLIDING_WINDOW in on,
        soft_cap=Feature.SOFT_CAP in on,
        backend=BACKEND.get(),
    )
    kv_dtype = "float16" if Feature.KV_FLOAT16 in on else "float32"
    return TinyEngine(model, backend=BACKEND.get(), kv_dtype=kv_dtype, **settings)  # type: ignore[arg-type]


def plain(on: Features) -> tuple[RequestOutput, ...]:
    """What must come out. Log-probabilities may be on, so that their values can be compared too."""
    return _plain(BACKEND.get(), on)


@cache
def _plain(backend: str, on: Features) -> tuple[RequestOutput, ...]:
    assert on <= SEMANTIC | {Feature.LOGPROBS, Feature.PROMPT_LOGPROBS}
    requests = list(zip(prompts(), sampling(on), strict=True))
    return tuple(engine(on, enable_chunked_prefill=False, max_num_seqs=2).alone(requests))


def answers(on: Features) -> dict[str, list[int]]:
    """Prompt and output of every completion, by the id that its request has in `run`."""
    return {
        f"q{i}/{completion.index}" if completion.index else f"q{i}": [*output.prompt_token_ids, *completion.token_ids]
        for i, output in enumerate(plain(on))
        for completion in output.outputs
    }


@dataclass
class Run:
    """A run with features on, and what is needed to tell whether they were in effect."""

    on: Features
    engine: TinyEngine
    outputs: list[RequestOutput]
    warm: RequestOutput | None = None  # of a request that came before, with the first prompt
    again: RequestOutput | None = None  # of one that came afterwards, with the last prompt


def run(on: Features, *, wrong: float = 0.3) -> Run:
    settings: dict[str, object] = {"caching": Feature.PREFIX_CACHING in on}
    settings["enable_chunked_prefill"] = bool(on & {Feature.CHUNKED_PREFILL, Feature.TPOT_OBJECTIVE})
    if Feature.CHUNKED_PREFILL in on:
        settings["max_num_batched_tokens"] = 7
    if Feature.PREEMPTION in on:
        settings["num_blocks"] = 9 if Feature.SPECULATION in on else 12  # drafts end requests before blocks run out
    if Feature.PRIORITY in on:
        settings |= {"policy": PriorityOrder(), "max_num_seqs": 3}
    if on & {Feature.SPECULATION, Feature.ANSWER_STORE}:
        proposer = Replay(answers(on & SEMANTIC), wrong=wrong) if Feature.SPECULATION in on else NgramProposer()
        settings["drafts"] = always(proposer, answers=filled(on) if Feature.ANSWER_STORE in on else None)
    if Feature.TPOT_OBJECTIVE in on:
        settings |= {"tpot_objective": 1e-3, "min_prefill_chunk": LIMIT, "cost_model": KnownCost(token=1.0)}
    core = engine(on, **settings)
    params = sampling(on & (SEMANTIC | {Feature.LOGPROBS, Feature.PROMPT_LOGPROBS}))
    result = Run(on, core, [])
    if Feature.PREFIX_CACHING in on:
        [result.warm] = core.answer([(prompts()[0], params[0])])
    for i in range(NUM_REQUESTS):
        if i == 2:  # the others arrive while the first ones decode
            core.step()
            core.step()
        core.add(f"q{i}", prompts()[i], params[i], priority=NUM_REQUESTS - i if Feature.PRIORITY in on else 0)
    core.run()
    result.outputs = [core.outputs[f"q{i}"] for i in range(NUM_REQUESTS)]
    if Feature.PREFIX_CACHING in on:
        [result.again] = core.answer([(prompts()[-1], SamplingParams(temperature=0.0, max_tokens=1))])
    return result


def filled(on: Features) -> RecentAnswers:
    """A store with all answers but for every fourth token of theirs."""
    store = AnswerStore(10_000)
    for answer in answers(on & SEMANTIC).values():
        prompt = len(answer) - MAX_TOKENS
        store.add((None, None), [98 if i > prompt and i % 4 == 0 else token for i, token in enumerate(answer)])
    return RecentAnswers(store)


def cached(output: RequestOutput | None) -> int:
    assert output is not None
    stats = output.outputs[0].stats
    assert stats is not None
    return stats.num_cached_tokens


def by_the_grammar(run: Run) -> bool:
    """Every character from the one half that the grammar draws from, and then from the other."""
    answers = [completion.token_ids for output in run.outputs for completion in output.outputs]
    assert all((token < 50) == (i % 2 == 0) for answer in answers for i, token in enumerate(answer))
    return bool(answers)


def in_batches(run: Run) -> bool:
    return any(len({row.request_id.partition("/")[0] for row in plan.rows}) > 1 for plan in run.engine.runner.plans)


def in_chunks(run: Run) -> bool:
    fed = [run.engine.runner.rows(f"q{i}") for i in range(NUM_REQUESTS)]
    assert all(len(row.tokens) <= 7 for rows in fed for row in rows)
    return any(not row.samples for rows in fed for row in rows)


def from_cache(run: Run) -> bool:
    hits = [cached(output) for output in run.outputs]
    if Feature.PROMPT_LOGPROBS in run.on:
        assert hits == [0] * NUM_REQUESTS, "a prompt position without logits"
    else:
        assert max(hits) >= 8
    return cached(run.again) > 0


def preempted(run: Run) -> bool:
    counted = sum(c.stats.num_preemptions for output in run.outputs for c in output.outputs if c.stats)
    return run.engine.core.stats().num_preemptions >= counted > 0


def by_priority(run: Run) -> bool:
    rows = [row.request_id for plan in run.engine.runner.plans for row in plan.rows]
    return rows.index("q3") < rows.index("q2")


def within_the_objective(run: Run) -> bool:
    """A step that decodes takes no more of prompts than the cost model allows, and some step took some."""
    seen, decoded = False, frozenset[str]()
    for plan in run.engine.runner.plans:
        first, decodes = plan.rows[0], decoded  # who comes back after a preemption is no decode yet
        decoded = frozenset(row.request_id for row in plan.rows if row.samples)
        prompts = sum(len(row.tokens) for row in plan.rows if len(row.tokens) - row.num_draft > 1)
        if first.request_id in decodes and len(first.tokens) - first.num_draft == 1 and prompts:
            assert prompts <= LIMIT
            seen = True
    return seen


def in_parallel(run: Run) -> bool:
    assert all(len(output.outputs) == 2 for output in run.outputs)
    return run.engine.kv.usage().shared_tokens > 0


def with_logprobs(run: Run) -> bool:
    return all(
        [entry.token_id for entry in completion.logprobs or ()] == completion.token_ids
        and all(len(entry.top) == 2 for entry in completion.logprobs or ())
        for output in run.outputs
        for completion in output.outputs
    )


def with_prompt_logprobs(run: Run) -> bool:
    return all(
        [entry.token_id if entry else None for entry in output.prompt_logprobs or ()]
        == [None, *output.prompt_token_ids[1:]]
        for output in run.outputs
    )


def stopped(run: Run) -> bool:
    """By strings and by tokens; where min_tokens forbids a stop token the answer may become another that never ends."""
    ends = [output.outputs[0] for output in run.outputs if output.outputs[0].finish_reason == "stop"]
    assert all(len(end.token_ids) < MAX_TOKENS for end in ends)
    return {type(end.stop_reason) for end in ends} == {int, str}


def drafted(run: Run) -> bool:
    """Some drafted tokens were right and some wrong."""
    stats = run.engine.core.stats()
    assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
    return 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def from_answers(run: Run) -> bool:
    """Drafts of the store were right."""
    stats = run.engine.core.stats()
    return 0 < stats.num_store_accepted_tokens <= stats.num_store_draft_tokens <= stats.num_draft_tokens


IN_EFFECT: dict[Feature, Callable[[Run], bool]] = {
    Feature.CONTINUOUS_BATCHING: in_batches,
    Feature.CHUNKED_PREFILL: in_chunks,
    Feature.PREFIX_CACHING: from_cache,
    Feature.PREEMPTION: preempted,
    Feature.PRIORITY: by_priority,
    Feature.TPOT_OBJECTIVE: within_the_objective,
    Feature.PARALLEL_SAMPLING: in_parallel,
    Feature.LOGPROBS: with_logprobs,
    Feature.PROMPT_LOGPROBS: with_prompt_logprobs,
    Feature.STOP: stopped,
    Feature.GRAMMAR: by_the_grammar,
    Feature.SPECULATION: drafted,
    Feature.ANSWER_STORE: from_answers,
}


def changes_the_output(feature: Feature, on: Features) -> bool:
    """A semantic feature is in effect if the plain tokens are others without it.

    Rounding keys and values to float16 changes the log-probabilities, but seldom a token.
    """
    semantic = on & SEMANTIC
    if feature is Feature.KV_FLOAT16:
        semantic |= {Feature.LOGPROBS}
        return values(plain(semantic)) != values(plain(semantic - {feature}))
    return tokens(plain(semantic)) != tokens(plain(semantic - {feature}))


def values(outputs: Iterable[RequestOutput]) -> list[object]:
    return [(o.prompt_logprobs, [(c.logprobs, c.cumulative_logprob) for c in o.outputs]) for o in outputs]


def texts(outputs: Iterable[RequestOutput]) -> list[object]:
    return [(c.text, c.finish_reason, c.stop_reason) for output in outputs for c in output.outputs]


def check(on: Features, *, compare: bool = True) -> None:
    """`compare`: run it without each semantic feature, too, to see that this makes a difference."""
    expected = plain(on & SEMANTIC)
    result = run(on)
    assert tokens(result.outputs) == tokens(expected)
    assert texts(result.outputs) == texts(expected)
    if result.warm is not None:
        assert tokens([result.warm]) == tokens(expected[:1])
    asked = on & {Feature.LOGPROBS, Feature.PROMPT_LOGPROBS}
    if asked:
        assert values(result.outputs) == values(plain(on & SEMANTIC | asked))
    for feature in on:
        assert feature not in IN_EFFECT or IN_EFFECT[feature](result), f"{feature} was not in effect"
        assert not compare or feature not in SEMANTIC or changes_the_output(feature, on), f"{feature} changes nothing"


def pair_id(pair: Pair) -> str:
    return f"{pair.first.name}-{pair.second.name}".lower()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    token = BACKEND.set(request.param)
    yield request.param
    BACKEND.reset(token)


@pytest.mark.parametrize("pair", [pair for pair in pairs() if pair.works], ids=pair_id)
def test_working_pair(backend: str, pair: Pair) -> None:
    check(frozenset({pair.first, pair.second}))


@pytest.mark.parametrize(
    "left_out",
    [
        frozenset({Feature.PRIORITY, Feature.PROMPT_LOGPROBS}),
        frozenset({Feature.TPOT_OBJECTIVE, Feature.PRIORITY, Feature.PREFIX_CACHING}),
    ],
    ids=["with-cache", "with-prompt-logprobs"],
)
def test_nearly_everything_at_once(backend: str, left_out: Features) -> None:
    check(frozenset(Feature) - left_out, compare=False)


@pytest.mark.parametrize("feature", sorted(SEMANTIC))
@pytest.mark.parametrize("wrong", [0.0, 0.9], ids=["always-right", "mostly-wrong"])
def test_drafters_of_any_luck(backend: str, wrong: float, feature: Feature) -> None:
    on = frozenset({feature, Feature.SPECULATION, Feature.LOGPROBS, Feature.CONTINUOUS_BATCHING})
    result = run(on, wrong=wrong)
    asked = on & SEMANTIC | {Feature.LOGPROBS}
    assert (tokens(result.outputs), texts(result.outputs)) == (tokens(plain(asked)), texts(plain(asked)))
    assert values(result.outputs) == values(plain(asked))
    stats = result.engine.core.stats()
    share = stats.num_accepted_tokens / stats.num_draft_tokens
    assert share > 0.8 if wrong == 0.0 else share < 0.2


@pytest.mark.fast
def test_the_table_covers_every_feature_once() -> None:
    assert [info.feature for info in FEATURES] == list(Feature)
    table = list(pairs())
    assert len({frozenset({pair.first, pair.second}) for pair in table}) == len(table)
    assert len(table) == len(Feature) * (len(Feature) - 1) // 2
    assert all(pair.note for pair in table if not pair.works)


REFUSED = Pair(Feature.PREFIX_CACHING, Feature.KV_FLOAT16, works=False, note="only for this test")


@pytest.mark.fast
def test_a_refused_pair_is_named_with_its_reason() -> None:
    require_working({Feature.PREFIX_CACHING, Feature.MOE}, [REFUSED])
    message = "prefix caching and float16 KV cache do not work together: only for this test"
    with pytest.raises(FeatureConflictError, match=message):
        require_working(set(Feature), [REFUSED])
    for pair in pairs():
        if not pair.works:
            with pytest.raises(FeatureConflictError):
                require_working({pair.first, pair.second})


@pytest.mark.fast
def test_a_refused_pair_is_refused_when_the_engine_is_built(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "require_working", lambda active: require_working(active, [REFUSED]))
    with LLM(str(tiny_folder), num_threads=1, num_blocks=32, backend="reference") as llm:
        assert llm.plan.options.enable_prefix_caching
    with pytest.raises(FeatureConflictError, match="only for this test"):
        LLM(str(tiny_folder), num_threads=1, num_blocks=32, backend="reference", kv_dtype="float16")


@pytest.mark.fast
def test_active_features_follow_settings_and_model(tiny_folder: Path) -> None:
    with LLM(str(tiny_folder), num_threads=1, num_blocks=32, backend="reference") as llm:
        plan = llm.plan
    assert loading.active_features(plan.options, plan.config) == {
        Feature.CONTINUOUS_BATCHING,
        Feature.CHUNKED_PREFILL,
        Feature.PREFIX_CACHING,
    }
    off = {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_num_seqs": 1}
    with LLM(str(tiny_folder), num_threads=1, num_blocks=32, backend="reference", **off) as llm:
        plan = llm.plan
    assert loading.active_features(plan.options, plan.config) == set()
    everything = {"kv_dtype": "float16", "policy": "priority", "tpot_objective": 0.5, "speculative": "ngram"}
    everything["speculative_store_tokens"] = 100
    with LLM(str(tiny_folder), num_threads=1, num_blocks=32, backend="reference", **everything) as llm:
        config = tiny_model("MixtralForCausalLM", window=True, soft_cap=True).config
        active = loading.active_features(llm.plan.options, config)
    by_request = {
        Feature.PREEMPTION,
        Feature.PARALLEL_SAMPLING,
        Feature.SEEDED_SAMPLING,
        Feature.PENALTIES,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.STOP,
        Feature.GRAMMAR,
    }
    assert active == set(Feature) - by_request
