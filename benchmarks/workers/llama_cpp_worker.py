"""llama.cpp's side of benchmarks/peers.py, through the low-level functions of llama-cpp-python."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))
import llama_cpp
import numpy as np
from protocol import serve

BATCH = 2048


class LlamaCpp:
    name = "llama.cpp"
    version = llama_cpp.__version__

    def load(self, model: str, threads: int, max_tokens: int, max_seqs: int, kv_dtype: str = "float16") -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = max_tokens * max_seqs
        params.n_batch = params.n_ubatch = BATCH
        params.n_ubatch = 512
        params.n_seq_max = max_seqs
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.type_k = params.type_v = {"float16": llama_cpp.GGML_TYPE_F16, "float32": llama_cpp.GGML_TYPE_F32}[
            kv_dtype
        ]
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, max_seqs)

    def prefill(self, prompts: list[list[int]]) -> tuple[float, int]:
        self._clear()
        started = perf_counter()
        for sequence, prompt in enumerate(prompts):
            self._feed(sequence, prompt)
        return perf_counter() - started, sum(map(len, prompts))

    def decode(self, prompts: list[list[int]], steps: int) -> tuple[float, int]:
        self._clear()
        last = [self._feed(sequence, prompt) for sequence, prompt in enumerate(prompts)]
        started = perf_counter()
        for step in range(steps):
            self._start()
            for sequence, token in enumerate(last):
                self._add(token, len(prompts[sequence]) + step, sequence, True)
            self._run()
            last = [self._greedy(sequence) for sequence in range(len(prompts))]
        return perf_counter() - started, steps * len(prompts)

    def logits(self, prompt: list[int], out: str) -> tuple[float, int]:
        """Of every position of one prompt, saved to `out` as float32 [tokens, vocab]."""
        self._clear()
        started = perf_counter()
        self._start()
        for position, token in enumerate(prompt):
            self._add(token, position, 0, True)
        self._run()
        seconds = perf_counter() - started
        rows = llama_cpp.llama_get_logits(self._context)
        np.save(out, np.ctypeslib.as_array(rows, (len(prompt), self._vocab)))
        return seconds, len(prompt)

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def _feed(self, sequence: int, prompt: list[int]) -> int:
        """A prompt in pieces of at most BATCH tokens; the token that follows it."""
        for start in range(0, len(prompt), BATCH):
            piece = prompt[start : start + BATCH]
            self._start()
            for offset, token in enumerate(piece):
                self._add(token, start + offset, sequence, start + offset == len(prompt) - 1)
            self._run()
        return self._greedy(self._batch.n_tokens - 1)

    def _start(self) -> None:
        self._batch.n_tokens = 0

    def _add(self, token: int, position: int, sequence: int, logits: bool) -> None:
        i = self._batch.n_tokens
        self._batch.token[i] = token
        self._batch.pos[i] = position
        self._batch.n_seq_id[i] = 1
        self._batch.seq_id[i][0] = sequence
        self._batch.logits[i] = logits
        self._batch.n_tokens = i + 1

    def _run(self) -> None:
        code = llama_cpp.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode gave {code}")

    def _greedy(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())


if __name__ == "__main__":
    serve(LlamaCpp())
