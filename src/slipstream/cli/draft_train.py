"""`slipstream draft train`: a draft head for a model, trained on what the model itself writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from slipstream.cli.draft_table import show_acceptance
from slipstream.cli.parameters import Argument, Option
from slipstream.cli.render import note
from slipstream.config.env import read_environment
from slipstream.errors import UsageError


def train(
    model: Annotated[str, Argument(metavar="MODEL", help="The target: a pulled name, a file or a folder.")],
    *,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Where the head goes; new or empty.")] = None,
    data: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Prompts: a text file with one per line, or .jsonl with prompt, turns or messages. "
            "By default the model writes most of them, and some are made from Python's standard library.",
        ),
    ] = None,
    tokens: Annotated[int, Option(metavar="N", help="Tokens that the model answers.")] = 1_000_000,
    epochs: Annotated[int, Option(help="Passes over them.")] = 2,
    draft_vocab: Annotated[int, Option(metavar="N", help="Tokens that can be drafted, the most frequent.")] = 8192,
    steps_ahead: Annotated[int, Option(help="Drafted tokens in a row to train on, 1 to 3.")] = 2,
    batch: Annotated[int, Option(metavar="TOKENS", help="Tokens per step of training.")] = 4096,
    seed: Annotated[int, Option(help="Of prompts, answers and training.")] = 0,
    backend: Annotated[str, Option(help="auto, reference or cpu.")] = "auto",
    threads: Annotated[int | None, Option(metavar="N", help="Processor threads.")] = None,
    init: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="A head of the same model to begin with."),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the training in --out.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress bars, no table.")] = False,
) -> None:
    """Let MODEL answer prompts, train a head on its hidden states, and report how many drafts it would accept.

    Needs PyTorch. Ctrl-C keeps what is done; the same command with --resume goes on, also with more --tokens or
    other settings of the training itself. FOLDER/training (answers and hidden states, 2 KB per token or so) may be
    deleted afterwards.
    """
    if out is None:
        raise UsageError("where to?", fix="Name a new folder with --out.")
    from slipstream.training.run import TrainingRun, train_draft_head
    from slipstream.training.settings import TrainingSettings
    from slipstream.training.target_engine import TargetEngine

    settings = TrainingSettings(
        tokens=tokens, epochs=epochs, draft_vocab=draft_vocab, steps_ahead=steps_ahead, batch=batch, seed=seed
    )
    engine = TargetEngine(
        model=model, backend=backend, num_threads=threads, cache_dir=read_environment().cache_dir, quiet=quiet
    )
    run = TrainingRun(engine=engine, out=out, settings=settings, data=data, resume=resume, init=init)
    try:
        table = train_draft_head(run)
    except KeyboardInterrupt:
        note(f"What is done is in {out}; the same command with --resume goes on.")
        raise
    if not quiet:
        show_acceptance(table)
        note(f"The head is in {out}. {out / 'training'} is needed for --resume only.")
