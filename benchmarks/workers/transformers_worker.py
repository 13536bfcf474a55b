"""Hugging Face transformers (float32, dequantised from the same GGUF) in benchmarks/peers.py."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))
import torch
import transformers
from protocol import serve
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


class Transformers:
    name = "transformers"
    version = f"{transformers.__version__} (float32)"

    def load(self, model: str, threads: int, max_tokens: int, max_seqs: int) -> None:
        torch.set_num_threads(threads)
        settings = load_gguf_checkpoint(model)["config"]
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
        self._model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        tensors = load_gguf_checkpoint(model, return_tensors=True, model_to_load=self._model)["tensors"]
        self._model.load_state_dict(tensors, strict=False)
        self._model.tie_weights()

    @torch.inference_mode()
    def prefill(self, prompts: list[list[int]]) -> tuple[float, int]:
        started = perf_counter()
        for prompt in prompts:
            self._model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1).logits.argmax(-1)
        return perf_counter() - started, sum(map(len, prompts))

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]], steps: int) -> tuple[float, int]:
        """The prompts of a batch must be of equal length."""
        output = self._model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        token, cache = output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values
        started = perf_counter()
        for _ in range(steps):
            output = self._model(token, past_key_values=cache, use_cache=True)
            token, cache = output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values
        return perf_counter() - started, steps * len(prompts)


if __name__ == "__main__":
    serve(Transformers())
