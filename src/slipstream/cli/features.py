"""`slipstream features`: the feature matrix."""

from __future__ import annotations

import json
from typing import Annotated

from slipstream.cli.parameters import Option
from slipstream.features import FEATURES, pairs


def features(
    json_: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every feature, its switch, and how each pair of features behaves together.

    + the pair works, with exactly the same tokens; * it works, see the note; x it is refused, see the note.
    """
    if json_:
        print(
            json.dumps(
                {
                    "features": [
                        {"name": each.feature, "changes_tokens": not each.transparent, "switch": each.switch}
                        for each in FEATURES
                    ],
                    "pairs": [
                        {"first": pair.first, "second": pair.second, "works": pair.works, "note": pair.note}
                        for pair in pairs()
                    ],
                }
            )
        )
        return
    width = max(len(each.feature) for each in FEATURES)
    print("Switches")
    for number, each in enumerate(FEATURES, 1):
        print(f"{number:>3}  {each.feature:<{width}}  {each.switch}")
    print("\nPairs (+ works with exactly the same tokens, * works with a note, x refused)")
    cells = {(pair.first, pair.second): pair for pair in pairs()}
    print(" " * (width + 6) + " ".join(f"{number:>2}" for number in range(1, len(FEATURES) + 1)))
    notes: list[str] = []
    for number, row in enumerate(FEATURES, 1):
        line = []
        for column in FEATURES[:number]:
            pair = cells.get((column.feature, row.feature))
            line.append(" ." if pair is None else " x" if not pair.works else " *" if pair.note else " +")
            if pair is not None and pair.note:
                notes.append(f"{pair.first} x {pair.second}: {pair.note}")
        print(f"{number:>3}  {row.feature:<{width}} " + " ".join(line))
    for text in notes:
        print(f"  {text}")
