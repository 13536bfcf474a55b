"""Dummy requests of typical shapes before the first real one, so that nobody pays for what happens only once."""

from __future__ import annotations

import time
from contextlib import suppress

from slipstream.engine.core import EngineCore
from slipstream.engine.protocol import GenerationRequest, RequestSpeculation
from slipstream.errors import OverloadedError
from slipstream.sampling.params import SamplingParams

SHORT, LONG, TOGETHER = 8, 256, 4  # prompt tokens; requests decoded in one batch
ANSWER = 4  # tokens


def warm_up(core: EngineCore) -> float:
    """Run three kinds of requests, one after the other; the seconds that took. The core's totals begin anew afterwards.

    A short prompt decoded greedily, a prompt of several chunks' length, and four sampled answers in one batch (fewer
    if the queue takes fewer). All of them are cut to what the core can hold. A draft model or head drafts once for
    each kind, and the vocabulary is prepared for grammars. Raises what the core raises if it cannot run at all.
    """
    started = time.monotonic()
    room = core.max_model_len - 1
    answer = min(ANSWER, room)
    greedy = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, seed=0)
    sampled = SamplingParams(top_p=0.9, top_k=40, max_tokens=answer, ignore_eos=True, seed=0)
    no_drafts = RequestSpeculation("off")  # what is learned of drafts shall be of real ones
    for kind, count, length, params in (
        ("short", 1, SHORT, greedy),
        ("long", 1, LONG, greedy),
        ("together", TOGETHER, SHORT, sampled),
    ):
        prompt = tuple(range(min(length, core.vocab_size, room - answer + 1)))
        requests = [
            GenerationRequest(f"warm-up-{kind}-{index}", prompt, params, cache_salt="warm-up", speculative=no_drafts)
            for index in range(count)
        ]
        with suppress(OverloadedError):
            for request in requests:
                core.add(request)
        while core.has_work:
            core.step()
        core.warm_up_drafter(requests)
    core.warm_up_grammars()
    seconds = time.monotonic() - started
    core.begin(warm_up_time=seconds)
    return seconds
