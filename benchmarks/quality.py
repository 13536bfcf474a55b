"""Quality of a backend against another on real text: perplexity, KL divergence, top-1 agreement.

    python -m benchmarks.quality MODEL TEXT [--backend cpu] [--against reference] [--kv-dtype float32] [--windows 8]
        [--length 512] [--json]

The text is cut into windows of `length` tokens. Both backends run the same file over the same tokens with an empty
cache; the backend's is of type `kv-dtype`, the other's float32. Every position but the last of a window predicts the
next token. KL is KL(against || backend), natural log.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.engine.batcher import build_batch
from slipstream.engine.plan import PlanRow, RowSampling, StepPlan
from slipstream.engine.runner import ForwardModel
from slipstream.hub.store import resolve_model
from slipstream.kernels.select import select_kernels
from slipstream.kernels.table import Kernels
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec, load_model
from slipstream.sampling.params import SamplingParams
from slipstream.text.from_folder import tokenizer_from_folder
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.text.tokenizer import Tokenizer
from slipstream.weights.open import open_checkpoint

BLOCK = 16


class Scorer:
    """log-softmax of every position of a window, [tokens, vocab] float64."""

    def __init__(self, path: Path, backend: str, length: int, kv_dtype: str = "float32") -> None:
        self._kernels: Kernels = select_kernels(backend, num_threads=2)
        checkpoint = open_checkpoint(path)
        model = load_model(checkpoint, self._kernels, max_position=length)
        checkpoint.close()
        spec = kv_spec(model.config, block_size=BLOCK, dtype=kv_dtype)
        blocks = spec.blocks_for(length)
        self._kv = KVStorage(spec, blocks, self._kernels.new_kv(spec, blocks))
        compile_ = self._kernels.compile
        self._model: ForwardModel = model if compile_ is None else compile_(model, self._kv)
        self._blocks = tuple(range(blocks))

    def __call__(self, tokens: list[int]) -> NDArray[np.float64]:
        sampling = RowSampling(SamplingParams(), 0, len(tokens), ())
        row = PlanRow("window", tuple(tokens), 0, self._blocks, 0, len(tokens), False, sampling)
        batch = build_batch(StepPlan(1, (row,)), BLOCK)
        logits = self._kernels.to_numpy(self._model(batch, self._kv)).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits


def tokenizer_of(path: Path) -> Tokenizer:
    checkpoint = open_checkpoint(path)
    try:
        if checkpoint.format == "gguf":
            return tokenizer_from_gguf(checkpoint.metadata)
        return tokenizer_from_folder(path)
    finally:
        checkpoint.close()


def compare(
    path: Path, text: str, names: tuple[str, str], num_windows: int, length: int, kv_dtype: str = "float32"
) -> dict[str, Any]:
    tokenizer = tokenizer_of(path)
    ids = tokenizer.encode(text[: num_windows * length * 8], add_special_tokens=False)
    prefix = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
    step = length - len(prefix)
    windows = [prefix + ids[i * step : (i + 1) * step] for i in range(num_windows)]
    windows = [window for window in windows if len(window) == length]
    scorer, against = Scorer(path, names[0], length, kv_dtype), Scorer(path, names[1], length)
    loss = dict.fromkeys(names, 0.0)
    divergences: list[NDArray[np.float64]] = []
    agreed = positions = 0
    for number, window in enumerate(windows):
        ours, theirs = scorer(window)[:-1], against(window)[:-1]
        targets = window[1:]
        at = np.arange(len(targets))
        loss[names[0]] -= float(ours[at, targets].sum())
        loss[names[1]] -= float(theirs[at, targets].sum())
        divergences.append((np.exp(theirs) * (theirs - ours)).sum(axis=1))
        agreed += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        positions += len(targets)
        print(f"window {number + 1} of {len(windows)}", file=sys.stderr, flush=True)
    kl = np.concatenate(divergences)
    perplexity = {name: math.exp(value / positions) for name, value in loss.items()}
    return {
        "positions": positions,
        "perplexity": perplexity,
        "perplexity_ratio": perplexity[names[0]] / perplexity[names[1]],
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "top1_agreement": agreed / positions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--against", default="reference")
    parser.add_argument("--kv-dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = (args.backend, args.against)
    text = args.text.read_text("utf-8")
    result = compare(resolve_model(args.model), text, names, args.windows, args.length, args.kv_dtype)
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<18} {value}")


if __name__ == "__main__":
    main()
