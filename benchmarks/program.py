"""What the programs of this folder share: an error of Slipstream's ends them with a sentence, not a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from slipstream.errors import SlipstreamError

INTERRUPTED = 130


def run_program(main: Callable[[], None]) -> None:
    """Call `main`. Where it fails or is interrupted, raises SystemExit with the `slipstream` command's exit code."""
    try:
        main()
    except SlipstreamError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
