"""The `slipstream` command. An interrupt may strike before anything is imported, so nothing is until `run` watches."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # `typing` is an import, too
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def run() -> NoReturn:
    """Entry point of the console script."""
    try:
        # Loading makes hundreds of thousands of small objects that stay; looking for garbage among them finds none.
        gc.set_threshold(100_000, 20, 50)
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # the caller closed it
                setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  until the process ends
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


def main(args: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return the exit code; errors go to stderr."""
    from slipstream.cli.dispatch import dispatch

    return dispatch(args)
