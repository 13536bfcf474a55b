"""Speculation with a real model, composed with whatever ends, moves or restricts a request: never another token."""

from __future__ import annotations

import random

import pytest
from replay import Replay, always, ngrams
from tiny_engine import BACKENDS, MAX_MODEL_LEN, TinyEngine, spell, tokens

from slipstream import SamplingParams
from slipstream.engine.outputs import CompletionStats, RequestOutput
from slipstream.engine.protocol import RequestSpeculation
from slipstream.engine.speculation import FORCED
from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec

_RNG = random.Random(5)
PROMPT = tuple(_RNG.randrange(99) for _ in range(11))
LOOP = (7, 8, 9, 10, 11, 12) * 4  # what n-grams find something in
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, logprobs=2)
SEEDED = SamplingParams(temperature=1.3, top_p=0.95, max_tokens=24, seed=3, logprobs=2)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def plain(backend: str, prompt: tuple[int, ...], params: SamplingParams, eos: tuple[int, ...] = ()) -> RequestOutput:
    [output] = TinyEngine(backend=backend, eos=eos).answer([(prompt, params)])
    return output


def answer(backend: str, prompt: tuple[int, ...], params: SamplingParams, eos: tuple[int, ...] = ()) -> list[int]:
    return [*prompt, *plain(backend, prompt, params, eos).outputs[0].token_ids]


def same(ours: RequestOutput, expected: RequestOutput) -> None:
    for a, b in zip(ours.outputs, expected.outputs, strict=True):
        assert a.token_ids == b.token_ids
        assert (a.text, a.finish_reason, a.stop_reason) == (b.text, b.finish_reason, b.stop_reason)
        assert a.logprobs == b.logprobs
        assert a.cumulative_logprob == b.cumulative_logprob


def stats(output: RequestOutput) -> CompletionStats:
    found = output.outputs[0].stats
    assert found is not None
    return found


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("prompt", [PROMPT, LOOP], ids=["prompt", "loop"])
def test_ngrams_change_no_token_and_no_probability(
    backend: str, prompt: tuple[int, ...], params: SamplingParams
) -> None:
    engine = TinyEngine(backend=backend, drafts=ngrams(num_tokens=4))
    [output] = engine.answer([(prompt, params)])
    same(output, plain(backend, prompt, params))
    assert engine.core.stats().num_draft_tokens > 0


def test_right_drafts_save_steps_and_are_counted(backend: str) -> None:
    drafter = Replay({"r0": answer(backend, PROMPT, GREEDY)}, wrong=0.0)
    engine = TinyEngine(backend=backend, drafts=always(drafter, 4))
    [output] = engine.answer([(PROMPT, GREEDY)])
    same(output, plain(backend, PROMPT, GREEDY))
    # One step for the prompt and its token; then 5 at a time, and at the end the room is for 3 = 2 drafts and one.
    assert [len(row.tokens) for row in engine.runner.rows("r0")] == [11, 5, 5, 5, 5, 3]
    assert (stats(output).num_drafts, stats(output).num_draft_tokens, stats(output).num_accepted_tokens) == (5, 18, 18)
    assert stats(output).mean_accepted_length == 1 + 18 / 5
    assert stats(output).acceptance_rate == 1.0
    totals = engine.core.stats()
    assert (totals.num_drafts, totals.num_draft_tokens, totals.accepted_per_position) == (5, 18, (5, 5, 4, 4))
    assert not drafter.open_sequences


def test_deltas_say_how_many_of_their_tokens_were_drafted(backend: str) -> None:
    engine = TinyEngine(backend=backend, drafts=always(Replay({"a": answer(backend, PROMPT, GREEDY)}, wrong=0.4), 4))
    engine.add("a", PROMPT, GREEDY)
    seen = []
    while engine.core.has_work:
        for delta in engine.core.step():
            engine.outputs["a"].add(delta)
            seen.append((len(delta.token_ids), delta.num_accepted))
    assert all(count == accepted + 1 for count, accepted in seen)
    assert sum(accepted for _, accepted in seen) == stats(engine.outputs["a"]).num_accepted_tokens > 0


@pytest.mark.parametrize("length", range(1, 8))
def test_max_tokens_inside_a_draft(backend: str, length: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=length)
    engine = TinyEngine(backend=backend, drafts=always(Replay({"r0": answer(backend, PROMPT, GREEDY)}, wrong=0.0), 4))
    [output] = engine.answer([(PROMPT, params)])
    same(output, plain(backend, PROMPT, params))
    assert output.outputs[0].finish_reason == "length"


def test_context_end_inside_a_draft(backend: str) -> None:
    prompt = (PROMPT * 11)[: MAX_MODEL_LEN - 7]
    params = SamplingParams(temperature=0.0)
    drafter = Replay({"r0": answer(backend, prompt, params)}, wrong=0.0)
    engine = TinyEngine(backend=backend, drafts=always(drafter, 5))
    [output] = engine.answer([(prompt, params)])
    same(output, plain(backend, prompt, params))
    assert len(output.outputs[0].token_ids) == 7
    assert engine.core.stats().num_accepted_tokens == 5


@pytest.mark.parametrize("kind", ["stop token", "end of sequence", "stop string"])
def test_an_end_inside_a_draft(backend: str, kind: str) -> None:
    full = answer(backend, PROMPT, GREEDY)
    output_ids = full[len(PROMPT) :]
    # The first token comes alone, then drafts of 4 with one behind: outputs 1-4 are drafted, and so are 6-9.
    at = next(i for i in (7, 8, 6, 3, 2) if output_ids[i] not in output_ids[:i])
    eos: tuple[int, ...] = (output_ids[at],) if kind == "end of sequence" else ()
    params = SamplingParams(
        temperature=0.0,
        max_tokens=24,
        logprobs=2,
        stop=[spell(output_ids[at - 1 : at + 1])] if kind == "stop string" else [],
        stop_token_ids=[output_ids[at]] if kind == "stop token" else [],
    )
    engine = TinyEngine(backend=backend, drafts=always(Replay({"r0": full}, wrong=0.0), 4), eos=eos)
    [output] = engine.answer([(PROMPT, params)])
    same(output, plain(backend, PROMPT, params, eos))
    assert output.outputs[0].finish_reason == "stop"
    last = engine.runner.rows("r0")[-1]
    assert last.start + len(last.tokens) > len(PROMPT) + at + 1, "no draft reached beyond the end"
    assert stats(output).num_accepted_tokens <= len(output.outputs[0].token_ids)


def test_an_abort_while_a_draft_waits(backend: str) -> None:
    answers = {name: answer(backend, PROMPT, GREEDY) for name in "ab"}
    drafter = Replay(answers, wrong=0.2)
    engine = TinyEngine(backend=backend, drafts=always(drafter, 4))
    for name in "ab":
        engine.add(name, PROMPT, GREEDY)
    engine.step()
    engine.step()
    engine.abort("a")
    assert set(drafter.open_sequences) == {"b"}
    engine.run()
    same(engine.outputs["b"], plain(backend, PROMPT, GREEDY))
    given = engine.outputs["a"].outputs[0].token_ids
    assert given == answers["a"][len(PROMPT) :][: len(given)]
    assert not drafter.open_sequences


@pytest.mark.parametrize("num_blocks", [9, 10, 12, 16])
def test_blocks_run_out_in_the_middle_of_drafts(backend: str, num_blocks: int) -> None:
    prompts = [PROMPT, LOOP[:9], PROMPT[::-1]]
    answers = {f"r{i}": answer(backend, prompt, GREEDY) for i, prompt in enumerate(prompts)}
    engine = TinyEngine(backend=backend, num_blocks=num_blocks, drafts=always(Replay(answers, wrong=0.3), 4))
    outputs = engine.answer([(prompt, GREEDY) for prompt in prompts])
    for prompt, output in zip(prompts, outputs, strict=True):
        same(output, plain(backend, prompt, GREEDY))
    if num_blocks < 12:
        assert engine.core.stats().num_preemptions > 0


def test_a_draft_for_which_there_are_no_blocks_is_dropped(backend: str) -> None:
    """11 + 24 - 1 positions are 9 blocks of 4: all that there are, and at the end a draft would need a tenth."""
    engine = TinyEngine(backend=backend, num_blocks=9, drafts=always(Replay({}, wrong=0.0), 40))
    [output] = engine.answer([(PROMPT, GREEDY)])
    same(output, plain(backend, PROMPT, GREEDY))
    assert engine.core.stats().num_preemptions == 0


def test_several_completions_of_one_prompt(backend: str) -> None:
    params = SamplingParams(temperature=1.3, max_tokens=16, seed=3, n=3, logprobs=1)
    engine = TinyEngine(backend=backend, drafts=ngrams(num_tokens=4))
    [output] = engine.answer([(LOOP, params)])
    same(output, plain(backend, LOOP, params))
    assert engine.core.stats().num_draft_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_penalties_and_bias_at_every_drafted_position(backend: str, temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature,
        seed=1,
        max_tokens=24,
        logprobs=2,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.2,
        logit_bias={3: 2.0, 50: -5.0},
        bad_words_ids=[[3, 4]],
        min_tokens=4,
    )
    engine = TinyEngine(backend=backend, drafts=always(Replay({"r0": answer(backend, PROMPT, params)}, wrong=0.3), 4))
    [output] = engine.answer([(PROMPT, params)])
    same(output, plain(backend, PROMPT, params))
    assert engine.core.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_what_a_grammar_forces_is_drafted_and_accepted(backend: str, temperature: float) -> None:
    word = spell([1, 2, 3, 4, 5, 6, 7, 8])
    grammar = GrammarSpec.regex(f"({word}[{spell([20])}-{spell([90])}])+")
    params = SamplingParams(temperature=temperature, seed=2, max_tokens=24, grammar=grammar, logprobs=1)
    engine = TinyEngine(backend=backend, drafts=always(Replay({}, wrong=1.0), 4))
    [output] = engine.answer([(PROMPT, params)])
    same(output, plain(backend, PROMPT, params))
    assert stats(output).num_accepted_tokens >= 10
    assert len(engine.runner.rows("r0")) <= 14


def test_evidence_of_a_grammar_is_no_proposers() -> None:
    assert FORCED < 0


def test_a_long_prompt_leaves_nothing_behind_for_a_short_one(backend: str) -> None:
    fresh = TinyEngine(backend=backend, max_num_seqs=1, drafts=ngrams(num_tokens=4))
    [alone] = fresh.answer([(PROMPT, GREEDY)])
    used = TinyEngine(backend=backend, max_num_seqs=1, drafts=ngrams(num_tokens=4))
    used.answer([((*PROMPT, *LOOP, *PROMPT, *LOOP), GREEDY)])
    [later] = used.answer([(PROMPT, GREEDY)])
    same(later, alone)
    assert [row.tokens for row in used.runner.rows("r1")] == [row.tokens for row in fresh.runner.rows("r0")]
    assert stats(later) == stats(alone)


def test_a_request_may_draft_less_or_nothing(backend: str) -> None:
    answers = {name: answer(backend, PROMPT, GREEDY) for name in "abc"}
    engine = TinyEngine(backend=backend, drafts=always(Replay(answers, wrong=0.0), 4))
    engine.add("a", PROMPT, GREEDY, speculative=RequestSpeculation("off"))
    engine.add("b", PROMPT, GREEDY, speculative=RequestSpeculation(num_tokens=1))
    engine.add("c", PROMPT, GREEDY, speculative=RequestSpeculation("ngram"))
    engine.run()
    assert tokens([engine.outputs[name] for name in "abc"]) == tokens([plain(backend, PROMPT, GREEDY)] * 3)
    longest = [max(row.num_draft for row in engine.runner.rows(name)) for name in "abc"]
    assert longest == [0, 1, 4]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("wish", "drafts", "message"),
    [
        (RequestSpeculation("ngram"), False, "speculative.mode is 'ngram', but this engine drafts nothing"),
        (RequestSpeculation("eagle"), True, "mode is 'eagle'. Choose off, auto, ngram, draft_model or draft_head"),  # type: ignore[arg-type]
        (RequestSpeculation("draft_head"), True, "'draft_head', but this engine drafts with ngram only. Start it with"),
        (
            RequestSpeculation("draft_model"),
            True,
            "'draft_model', but this engine drafts with ngram only. Start it with speculative = the name of a smaller",
        ),
        (RequestSpeculation(num_tokens=5), True, "speculative.num_tokens must be from 0 to 4, got 5"),
        (RequestSpeculation(num_tokens=-1), True, "speculative.num_tokens must be from 0 to 4, got -1"),
    ],
)
def test_wishes_that_cannot_be_had_are_refused(wish: RequestSpeculation, drafts: bool, message: str) -> None:
    engine = TinyEngine(drafts=ngrams(num_tokens=4) if drafts else None)
    with pytest.raises(InvalidParamsError, match=message):
        engine.add("a", PROMPT, GREEDY, speculative=wish)
    engine.add("b", PROMPT, GREEDY, speculative=RequestSpeculation("auto"))
