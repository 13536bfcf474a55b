"""vLLM's side of benchmarks/peers.py, on its CPU backend in float32.

vLLM does not read this GGUF file on a CPU, so it gets the file's architecture with random weights: the same shapes,
therefore the same work, but four bytes per weight.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its steps are timed here, so they must run here
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
import vllm
from protocol import serve
from transformers import AutoConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


class Vllm:
    name = "vllm"
    version = f"{vllm.__version__} (float32)"

    def load(self, model: str, threads: int, max_tokens: int, max_seqs: int) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
        settings = load_gguf_checkpoint(model)["config"]
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        config.architectures = [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[config.model_type]]
        folder = tempfile.mkdtemp(prefix="vllm-")
        config.save_pretrained(folder)
        self._llm = vllm.LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=max_tokens,
            max_num_seqs=max_seqs,
            max_num_batched_tokens=max_tokens * max_seqs,
            enable_prefix_caching=False,
            enforce_eager=True,
        )
        self._count = 0

    def prefill(self, prompts: list[list[int]]) -> tuple[float, int]:
        started = perf_counter()
        self._add(prompts, 1)
        while self._llm.llm_engine.has_unfinished_requests():
            self._llm.llm_engine.step()
        return perf_counter() - started, sum(map(len, prompts))

    def decode(self, prompts: list[list[int]], steps: int) -> tuple[float, int]:
        engine = self._llm.llm_engine
        counts = dict.fromkeys(self._add(prompts, steps + 1), 0)
        while not all(counts.values()):
            _note(engine.step(), counts)
        first = sum(counts.values())
        started = perf_counter()
        while engine.has_unfinished_requests():
            _note(engine.step(), counts)
        return perf_counter() - started, sum(counts.values()) - first

    def _add(self, prompts: list[list[int]], tokens: int) -> list[str]:
        params = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        names = []
        for prompt in prompts:
            self._count += 1
            names.append(str(self._count))
            self._llm.llm_engine.add_request(names[-1], {"prompt_token_ids": prompt}, params)
        return names


def _note(outputs: list[Any], counts: dict[str, int]) -> None:
    for output in outputs:
        counts[output.request_id] = len(output.outputs[0].token_ids)


if __name__ == "__main__":
    serve(Vllm())
