"""Acceptance of drafts as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.training.acceptance import Table


def show_acceptance(table: Table) -> None:
    """One table for greedy answers and one for those at temperature 1, a row for each kind of text."""
    from rich.console import Console
    from rich.table import Table as RichTable

    for mode, domains in table.items():
        title = f"Acceptance by place in the draft, {mode.replace('_', ' ')}"
        shown = RichTable("text", "positions", "1", "2", "3", "4", title=title)
        for name, each in sorted(domains.items(), key=lambda item: (item[0] != "all", item[0])):
            rates = ("-" if rate is None else f"{rate:.2f}" for rate in each.rates)
            shown.add_row(name, f"{each.tried[0]:,}", *rates)
        Console().print(shown)
