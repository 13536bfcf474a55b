"""OpenVINO GenAI's side of benchmarks/peers.py. It reads the same GGUF file.

One sequence runs through `LLMPipeline`, what its users get by default; several through `ContinuousBatchingPipeline`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import openvino
import openvino_genai
from protocol import UnsupportedError, serve

KV_BLOCK = 32  # tokens, on a CPU


class Clock(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Notes when each token came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def write(self, token: int | list[int]) -> Any:
        count = len(token) if isinstance(token, list) else 1
        self.times += [perf_counter()] * count
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class OpenVino:
    name = "openvino"
    version = openvino_genai.get_version().partition("-")[0]

    def load(self, model: str, threads: int, max_tokens: int, max_seqs: int) -> None:
        properties = {"INFERENCE_NUM_THREADS": threads}
        self._single = openvino_genai.LLMPipeline(model, "CPU", **properties)
        settings = openvino_genai.SchedulerConfig()
        settings.enable_prefix_caching = False
        settings.max_num_seqs = max_seqs
        settings.max_num_batched_tokens = max_tokens * max_seqs  # all prompts of a batch in one step
        settings.num_kv_blocks = max_seqs * (-(-max_tokens // KV_BLOCK) + 1)
        self._batched: Any = None
        try:
            self._batched = openvino_genai.ContinuousBatchingPipeline(model, settings, "CPU", properties)
        except RuntimeError as error:
            self._refusal = str(error).strip().splitlines()[-1]
        self._count = 0

    def prefill(self, prompts: list[list[int]]) -> tuple[float, int]:
        seconds = sum(self._alone(prompt, 1)[0] for prompt in prompts)
        return seconds, sum(map(len, prompts))

    def decode(self, prompts: list[list[int]], steps: int) -> tuple[float, int]:
        if len(prompts) == 1:
            times = self._alone(prompts[0], steps + 1)[1]
            return times[-1] - times[0], len(times) - 1
        if self._batched is None:
            raise UnsupportedError(f"its continuous batching does not take this model: {self._refusal}")
        pipeline = self._batched
        handles = []
        for prompt in prompts:
            self._count += 1
            handles.append(pipeline.add_request(self._count, _tensor(prompt), _config(steps + 1)))
        first = [0] * len(handles)
        while not all(first):
            pipeline.step()
            first = [before + _read(handle) for before, handle in zip(first, handles, strict=True)]
        started = perf_counter()
        while pipeline.has_non_finished_requests():
            pipeline.step()
        seconds = perf_counter() - started
        return seconds, sum(map(_read, handles))

    def _alone(self, prompt: list[int], tokens: int) -> tuple[float, list[float]]:
        """(seconds to the first token, when each token came)"""
        clock = Clock()
        started = perf_counter()
        self._single.generate(_tensor(prompt), _config(tokens), clock)
        if len(clock.times) != tokens:
            raise RuntimeError(f"{len(clock.times)} tokens came instead of {tokens}")
        return clock.times[0] - started, clock.times


def _tensor(prompt: list[int]) -> openvino.Tensor:
    return openvino.Tensor(np.array([prompt], np.int64))


def _config(tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def _read(handle: Any) -> int:
    """Tokens that came since the last look."""
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


if __name__ == "__main__":
    serve(OpenVino())
