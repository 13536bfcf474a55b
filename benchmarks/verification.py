"""How often drafts are accepted at temperature 1 by each way of verifying them, from the distributions themselves.

    python -m benchmarks.verification MODEL.gguf [--drop 2 4 8] [--prompts 8] [--max-tokens 96] [--noise 64] [--json]

Answers are drawn by the model (the target); at each of their positions its distribution p is compared with the
distribution q of a draft model, the same model with `--drop` of its layers left out (see benchmarks.draft_pair). Both
are taken from the 1000 likeliest tokens, and the rest counts as one token. Mean chance of acceptance of a draft that is

* `judged`: drawn from q and judged by rejection sampling, the sum of min(p, q): no draft from q is accepted more often;
* `same noise`: the maximum of log q plus the Gumbel noise of the request, compared with the token (`--noise` draws);
* `compared`: drawn from q with other noise and compared with the token, the sum of p q;
* `likeliest`: the maximum of q, compared with the token: its p.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from benchmarks.draft_pair import PROMPTS, pruned, write_model
from benchmarks.program import run_program
from slipstream import LLM, SamplingParams
from slipstream.hub.store import resolve_model
from slipstream.sampling.logprobs import TokenLogprob

KNOWN = 1000
WAYS = ("judged", "same noise", "compared", "likeliest")


def chances(p: NDArray[np.float64], q: NDArray[np.float64], noise: NDArray[np.float64]) -> list[float]:
    """In the order of `WAYS`. p, q: [V]; noise: Gumbel [N, V]."""
    with np.errstate(divide="ignore"):
        token, draft = (np.log(p) + noise).argmax(-1), (np.log(q) + noise).argmax(-1)
    return [float(np.minimum(p, q).sum()), float((token == draft).mean()), float((p * q).sum()), float(p[q.argmax()])]


def together(one: TokenLogprob, other: TokenLogprob) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both distributions over the tokens that either of them names, and one for all others."""
    ids = sorted({token for each in (one, other) for token, _ in each.top})
    found = []
    for each in (one, other):
        known = dict(each.top)
        shares = np.exp([known.get(token, -np.inf) for token in ids])
        found.append(np.append(shares, max(0.0, 1.0 - shares.sum())))
    return found[0], found[1]


def distributions(llm: LLM, texts: list[list[int]]) -> list[list[TokenLogprob | None]]:
    params = SamplingParams(max_tokens=1, prompt_logprobs=KNOWN)
    return [llm.generate([text], params)[0].prompt_logprobs or [] for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--drop", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--noise", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    path = resolve_model(args.model, Path.home() / ".cache" / "slipstream")
    settings = {"max_model_len": 1024, "max_num_seqs": 4, "weight_cache": False}
    with LLM(str(path), **settings) as llm:  # type: ignore[arg-type]
        params = SamplingParams(max_tokens=args.max_tokens, seed=1)
        starts = [llm.tokenizer.encode(text) for text in PROMPTS[: args.prompts]]
        answers = [each.outputs[0].token_ids for each in llm.generate(starts, params)]
        texts = [[*start, *answer] for start, answer in zip(starts, answers, strict=True)]
        target = distributions(llm, texts)
    reader = GGUFReader(str(path))
    num_layers = sum(tensor.name.endswith("attn_output.weight") for tensor in reader.tensors)
    rng, rows = np.random.default_rng(0), {}
    for drop in args.drop:
        with tempfile.TemporaryDirectory() as folder:
            small = write_model(reader, Path(folder) / "draft.gguf", pruned(num_layers, drop))
            with LLM(str(small), **settings) as llm:  # type: ignore[arg-type]
                draft = distributions(llm, texts)
        found = []
        for start, ours, theirs in zip(starts, target, draft, strict=True):
            for one, other in zip(ours[len(start) :], theirs[len(start) :], strict=True):
                if one is not None and other is not None:
                    p, q = together(one, other)
                    found.append(chances(p, q, rng.gumbel(size=(args.noise, len(p)))))
        rows[drop] = dict(zip(WAYS, np.mean(found, axis=0).tolist(), strict=True)) | {"positions": len(found)}
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'layers left out':<16}" + "".join(f"{way:>12}" for way in WAYS) + f"{'positions':>11}")
    for drop, row in rows.items():
        print(f"{drop:<16}" + "".join(f"{100 * row[way]:>10.1f} %" for way in WAYS) + f"{row['positions']:>11}")


if __name__ == "__main__":
    run_program(main)
