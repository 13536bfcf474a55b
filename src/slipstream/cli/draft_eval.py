"""`slipstream draft eval`: what a trained draft head reaches on given prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from slipstream.cli.draft_table import show_acceptance
from slipstream.cli.parameters import Argument, Option
from slipstream.config.env import read_environment
from slipstream.errors import UsageError


def evaluate(
    model: Annotated[str, Argument(metavar="MODEL", help="The target: a pulled name, a file or a folder.")],
    *,
    head: Annotated[Path | None, Option(metavar="FOLDER", help="The draft head.")] = None,
    data: Annotated[
        Path | None,
        Option(metavar="FILE", help="Prompts: one per line, or .jsonl with prompt, turns or messages."),
    ] = None,
    answer_tokens: Annotated[int, Option(metavar="N", help="Tokens of the longest answer.")] = 128,
    seed: Annotated[int, Option(help="Of the answers.")] = 0,
    backend: Annotated[str, Option(help="auto, reference or cpu.")] = "auto",
    threads: Annotated[int | None, Option(metavar="N", help="Processor threads.")] = None,
    json_: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Let MODEL answer every prompt greedily and at temperature 1, and count how many drafts it would accept.

    By kind of text, where the file says `domain` or `category`. Needs PyTorch.
    """
    if head is None or data is None:
        raise UsageError("which head, on which prompts?", fix="Give --head and --data.")
    if not 8 <= answer_tokens <= 1024:
        raise UsageError(f"must be from 8 to 1024, not {answer_tokens}.", where="--answer-tokens")
    from slipstream.training.run import require_torch

    require_torch()
    from slipstream.training.evaluate import evaluate_head
    from slipstream.training.target_engine import TargetEngine

    engine = TargetEngine(
        model=model, backend=backend, num_threads=threads, cache_dir=read_environment().cache_dir, quiet=quiet
    )
    table = evaluate_head(engine, head, data, longest=answer_tokens, seed=seed)
    if json_:
        from slipstream.training.acceptance import as_json

        print(json.dumps(as_json(table)))
    else:
        show_acceptance(table)
