"""Slipstream's side of benchmarks/peers.py, through the public `LLM` and its core."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))
from protocol import serve

from slipstream import LLM, GenerationRequest, SamplingParams
from slipstream.version import installed_version

MOST_EARLY = 32  # tokens that the first of a batch decodes while the last is still being prefilled


class Slipstream:
    name = "slipstream"

    def load(self, model: str, threads: int, max_tokens: int, max_seqs: int) -> None:
        self._llm = LLM(
            model,
            backend="cpu",
            num_threads=threads,
            enable_prefix_caching=False,
            max_num_seqs=max_seqs,
            tpot_objective="off",  # all are to decode together as soon as can be
            num_blocks=max_seqs * (-(-(max_tokens + MOST_EARLY) // 16)),
        )
        self.version = f"{installed_version()} ({self._llm.plan.options.backend})"
        self._count = 0

    def prefill(self, prompts: list[list[int]]) -> tuple[float, int]:
        started = perf_counter()
        self._llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
        return perf_counter() - started, sum(map(len, prompts))

    def decode(self, prompts: list[list[int]], steps: int) -> tuple[float, int]:
        """Exactly `steps` steps in which all decode: early prompts' first tokens are not measured."""
        core = self._llm._core
        params = SamplingParams(temperature=0, max_tokens=steps + 1 + MOST_EARLY, ignore_eos=True)
        waiting = set()
        for prompt in prompts:
            self._count += 1
            core.add(GenerationRequest(f"bench-{self._count}", tuple(prompt), params))
            waiting.add(f"bench-{self._count}")
        names = tuple(waiting)
        while waiting:
            waiting -= {delta.request_id for delta in core.step() if delta.token_ids}
        started, tokens = perf_counter(), 0
        for _ in range(steps):
            tokens += sum(len(delta.token_ids) for delta in core.step())
        seconds = perf_counter() - started
        for name in names:
            core.abort(name)
        return seconds, tokens


if __name__ == "__main__":
    serve(Slipstream())
