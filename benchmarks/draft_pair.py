"""Drafting with a smaller model, on a pair made for the purpose: acceptance, break-even, and time per output token.

    python -m benchmarks.draft_pair MODEL.gguf [--deepen 3] [--drop 0 1 2 4] [--num-tokens 5] [--batch 1 4]
        [--temperature 0 1] [--max-tokens 96] [--groups 4] [--policy cost] [--keep DIR] [--json]

MODEL is a Llama in a GGUF file (SmolLM2-135M by default of what is pulled). Nothing is trained and no weight is random:

* The target is MODEL with `--deepen` idle layers behind each of its own: copies of it whose output projections are
  zero, so that it says exactly what MODEL says and takes that many times longer, as a larger model of a family would.
* A draft is MODEL with `--drop` of its layers left out, evenly spread over the middle. With none left out it is always
  right, which shows what there is to gain at best; the more are left out, the cheaper and the more often wrong it is.

Each pair runs as benchmarks.speculation does: in groups, with drafts and without, the order alternating, ratios of TPOT
with 95 % intervals, and the tokens of both compared. `--drop` 0 and a large `--deepen` are the kindest case; a pair of
a real family lies between.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from gguf import GGUFReader, ReaderTensor

from benchmarks.program import run_program
from benchmarks.speculation import Row, measure_kind, table, tokenise
from slipstream.config.types import EngineOptions
from slipstream.engine.loading import load_engine
from slipstream.hub.store import resolve_model

ALIGNMENT = 32
SILENCED = ("attn_output.weight", "ffn_down.weight")  # without them a layer adds nothing to the residual
PROMPTS = (
    "Explain why the sky is blue to a child.",
    "Write a short letter that asks a neighbour to keep the music down at night.",
    "What are the steps for making tea?",
    "Describe how a bicycle stays upright.",
    "Give three reasons to learn a second language.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Summarise the story of Cinderella.",
    "What is the difference between weather and climate?",
    "List five animals that live in the sea, with one sentence about each.",
    "How does a refrigerator keep food cold?",
    "Tell me about the history of the printing press.",
    "Write a poem of four lines about autumn.",
    "What should one pack for a week in the mountains?",
    "Explain what a prime number is, with examples.",
    "How do bees make honey?",
    "Write a product description of a wooden chair.",
)

Source = tuple[int, bool]  # (layer of the model, whether it is silenced)


def deepened(num_layers: int, idle: int) -> list[Source]:
    return [(layer, copy > 0) for layer in range(num_layers) for copy in range(1 + idle)]


def pruned(num_layers: int, drop: int) -> list[Source]:
    """All but `drop` layers, the dropped ones evenly spread between the first and the last two."""
    if not 0 <= drop <= num_layers - 4:
        raise SystemExit(f"--drop must be from 0 to {num_layers - 4} for {num_layers} layers.")
    gone = {2 + round((i + 0.5) * (num_layers - 4) / drop - 0.5) for i in range(drop)}
    return [(layer, False) for layer in range(num_layers) if layer not in gone]


def write_model(reader: GGUFReader, path: Path, layers: list[Source]) -> Path:
    """The model with these layers in this order; everything else as it is, byte for byte."""
    architecture = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    header = bytearray(reader.data[: reader.tensors[0].field.offset].tobytes())
    count = reader.fields[f"{architecture}.block_count"]
    struct.pack_into("<I", header, count.offset + sum(part.nbytes for part in count.parts[:-1]), len(layers))
    tensors = list(_tensors(reader, layers))
    struct.pack_into("<Q", header, 8, len(tensors))
    offset = 0
    for name, tensor, _ in tensors:
        shape = [int(n) for n in tensor.shape]
        header += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}QIQ", *shape, int(tensor.tensor_type), offset)
        offset += -(-tensor.n_bytes // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for _, tensor, silenced in tensors:
            data = bytes(tensor.n_bytes) if silenced else tensor.data.tobytes()
            file.write(data + bytes(-len(data) % ALIGNMENT))
    return path


def _tensors(reader: GGUFReader, layers: list[Source]) -> Iterator[tuple[str, ReaderTensor, bool]]:
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in by_name.items():
        if not name.startswith("blk."):
            yield name, tensor, False
    for index, (layer, silenced) in enumerate(layers):
        prefix = f"blk.{layer}."
        for name, tensor in by_name.items():
            if name.startswith(prefix):
                rest = name.removeprefix(prefix)
                yield f"blk.{index}.{rest}", tensor, silenced and rest in SILENCED


def run(target: Path, draft: Path, kind: str, args: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    options = EngineOptions.from_flat(
        model=str(target),
        speculative="draft_model",
        draft_model=str(draft),
        enable_prefix_caching=False,
        max_num_seqs=max(args.batch),
        max_model_len=1024,
        speculative_policy=args.policy,
        num_speculative_tokens=args.num_tokens,
        num_threads=args.threads,
    )
    loaded = load_engine(options, cache_dir=target.parent / "cache")
    shown = ("step_times", "draft_step_times", "draft_break_even")
    facts = {each.field: str(each) for each in loaded.plan.decisions if each.field in shown}
    facts["warnings"] = " ".join(loaded.plan.warnings)
    prompts = tokenise(loaded, PROMPTS, 1024 - args.max_tokens)
    return facts, measure_kind(loaded.core, kind, prompts, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="a pulled name or a GGUF file")
    parser.add_argument("--deepen", type=int, default=3, help="idle layers behind each of the target's own")
    parser.add_argument("--drop", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--num-tokens", type=int, default=5)
    parser.add_argument("--policy", default="cost", choices=("cost", "threshold", "fixed"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the models here and leave them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        reader = GGUFReader(resolve_model(args.model))
        num_layers = len({tensor.name.split(".")[1] for tensor in reader.tensors if tensor.name.startswith("blk.")})
        target = write_model(reader, folder / "target.gguf", deepened(num_layers, args.deepen))
        found: list[dict[str, object]] = []
        rows: list[Row] = []
        for drop in args.drop:
            draft = write_model(reader, folder / f"draft-{drop}.gguf", pruned(num_layers, drop))
            kind = f"{num_layers - drop} of {num_layers}"
            facts, measured = run(target, draft, kind, args)
            found.append({"draft": kind, **facts, "rows": [asdict(row) for row in measured]})
            rows += measured
    if args.json:
        print(json.dumps({"model": args.model, "deepen": args.deepen, "pairs": found}))
        return
    for each in found:
        print("\n".join(f"{name}: {value}" for name, value in each.items() if name != "rows" and value))
    print(table(rows))


if __name__ == "__main__":
    run_program(main)
