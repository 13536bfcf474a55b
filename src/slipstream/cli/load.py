"""Loading a model for a verb: a progress bar on a terminal, and what is not in force as asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from slipstream.cli.options import read_options
from slipstream.cli.prompt_line import in_small_steps
from slipstream.cli.render import note, overruled
from slipstream.engine.llm import LLM


def load_llm(model: str, settings: Mapping[str, Any], *, quiet: bool = False, interactive: bool = False) -> LLM:
    """`interactive`: somebody at the terminal will be shown how far a prompt is, if not `quiet`.

    Raises ConfigError, ModelError or InsufficientMemoryError.
    """
    options, environment = read_options(model, settings)
    if quiet or not sys.stderr.isatty():
        llm = LLM(options, cache_dir=environment.cache_dir)
    else:
        if interactive:
            options = in_small_steps(options)
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("Loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("load", total=None)
            llm = LLM(
                options,
                cache_dir=environment.cache_dir,
                load_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    if not quiet:
        warnings = (*llm.plan.memory.warnings, *llm.plan.warnings)
        for line in (*overruled(llm.decisions), *(f"warning: {warning}" for warning in warnings)):
            note(line)
    return llm
