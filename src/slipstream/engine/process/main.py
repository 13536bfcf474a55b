"""`python -m slipstream.engine.process.main`: what `ProcessEngine` starts."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from slipstream.engine.core import EngineCore
from slipstream.engine.info import engine_info
from slipstream.engine.loading import load_engine
from slipstream.engine.process.child import run_child
from slipstream.engine.process.wire import Start
from slipstream.engine.protocol import EngineInfo
from slipstream.engine.warm_up import warm_up


def build(start: Start) -> tuple[EngineCore, EngineInfo]:
    """Load the model that the options name, and warm it up."""
    began = time.monotonic()
    cache_dir = None if start.cache_dir is None else Path(start.cache_dir)
    loaded = load_engine(start.options, cache_dir=cache_dir, timelines=True)
    load_time = time.monotonic() - began
    warm_up_time = warm_up(loaded.core) if start.warm_up else 0.0
    return loaded.core, engine_info(loaded, load_time=load_time, warm_up_time=warm_up_time)


if __name__ == "__main__":
    sys.exit(run_child(build, Path(sys.argv[1])))
