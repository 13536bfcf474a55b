"""Quality of backends and of llama.cpp against one backend on real text: perplexity, KL divergence, top-1 agreement.

    python -m benchmarks.quality MODEL TEXT [--of cpu,llama.cpp] [--against reference] [--kv-dtype float32]
        [--windows 8] [--length 512] [--json]

The text is cut into windows of `length` tokens. All run the same file over the same tokens with an empty cache; that of
our backends is of type `kv-dtype`, llama.cpp's of the same type, the one they are held against float32. Every position
but the last of a window predicts the next token. KL is KL(against || one), natural log. Agreement comes with the
half-width of its 95 % interval (normal approximation): a few hundred positions say little about the last percent.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import ENGINES, Worker
from benchmarks.program import run_program
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
        return log_softmax(self._kernels.to_numpy(self._model(batch, self._kv)))


class LlamaCppScorer:
    """The same, computed by llama.cpp in its own environment (`make peers`)."""

    def __init__(self, path: Path, length: int, kv_dtype: str, folder: Path) -> None:
        [spec] = [spec for spec in ENGINES if spec.name == "llama.cpp"]
        self._worker = Worker(spec, folder / "llama.cpp.log")
        self._out = folder / "logits.npy"
        self._worker.call(
            {"load": {"model": str(path), "threads": 2, "max_tokens": length, "max_seqs": 1, "kv_dtype": kv_dtype}}
        )

    def __call__(self, tokens: list[int]) -> NDArray[np.float64]:
        self._worker.call({"logits": {"prompt": tokens, "out": str(self._out)}})
        return log_softmax(np.load(self._out))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores


def tokenizer_of(path: Path) -> Tokenizer:
    checkpoint = open_checkpoint(path)
    try:
        if checkpoint.format == "gguf":
            return tokenizer_from_gguf(checkpoint.metadata)
        return tokenizer_from_folder(path)
    finally:
        checkpoint.close()


@dataclass
class Tally:
    loss: float = 0.0
    agreed: int = 0
    divergences: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, ours: NDArray[np.float64], theirs: NDArray[np.float64], targets: list[int]) -> None:
        self.loss -= float(ours[np.arange(len(targets)), targets].sum())
        self.agreed += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        self.divergences.append((np.exp(theirs) * (theirs - ours)).sum(axis=1))

    def summary(self, positions: int, reference_loss: float) -> dict[str, float]:
        kl = np.concatenate(self.divergences)
        agreement = self.agreed / positions
        return {
            "perplexity": math.exp(self.loss / positions),
            "perplexity_ratio": math.exp((self.loss - reference_loss) / positions),
            "kl_mean": float(kl.mean()),
            "kl_p99": float(np.quantile(kl, 0.99)),
            "top1_agreement": agreement,
            "top1_agreement_within": 1.96 * math.sqrt(agreement * (1 - agreement) / positions),
        }


def text_windows(path: Path, text: str, num_windows: int, length: int) -> list[list[int]]:
    tokenizer = tokenizer_of(path)
    ids = tokenizer.encode(text[: num_windows * length * 8], add_special_tokens=False)
    prefix = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
    step = length - len(prefix)
    windows = [prefix + ids[i * step : (i + 1) * step] for i in range(num_windows)]
    return [window for window in windows if len(window) == length]


def compare(
    windows: list[list[int]], scorers: dict[str, Callable[[list[int]], NDArray[np.float64]]], against: str
) -> dict[str, Any]:
    """`scorers` by name; `against` names the one that the others are held against."""
    tallies = {name: Tally() for name in scorers}
    positions = 0
    for number, window in enumerate(windows):
        theirs, targets = scorers[against](window)[:-1], window[1:]
        for name, scorer in scorers.items():
            tallies[name].add(theirs if name == against else scorer(window)[:-1], theirs, targets)
        positions += len(targets)
        print(f"window {number + 1} of {len(windows)}", file=sys.stderr, flush=True)
    base = tallies[against].loss
    return {"positions": positions, "of": {name: tally.summary(positions, base) for name, tally in tallies.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--of", default="cpu", help="comma-separated: backends, and llama.cpp")
    parser.add_argument("--against", default="reference")
    parser.add_argument("--kv-dtype", default="float32", choices=("float32", "float16"))
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    path = resolve_model(args.model)
    windows = text_windows(path, args.text.read_text("utf-8"), args.windows, args.length)
    with tempfile.TemporaryDirectory() as folder:
        scorers: dict[str, Callable[[list[int]], NDArray[np.float64]]] = {
            args.against: Scorer(path, args.against, args.length)
        }
        for name in args.of.split(","):
            if name == "llama.cpp":
                scorers[name] = LlamaCppScorer(path, args.length, args.kv_dtype, Path(folder))
            else:
                scorers[name] = Scorer(path, name, args.length, args.kv_dtype)
        result = compare(windows, scorers, args.against)
    if args.json:
        print(json.dumps(result))
        return
    print(f"{result['positions']} positions")
    for name, figures in result["of"].items():
        print(f"{name:<10} " + "  ".join(f"{key} {value:.4f}" for key, value in figures.items()))


if __name__ == "__main__":
    run_program(main)
