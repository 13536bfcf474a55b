"""What a server is told of a loaded engine."""

from __future__ import annotations

import os

from slipstream.engine.core import EngineCore
from slipstream.engine.loading import LoadedEngine
from slipstream.engine.protocol import EngineInfo


def engine_info(loaded: LoadedEngine, *, load_time: float, warm_up_time: float) -> EngineInfo:
    """Times in seconds."""
    plan = loaded.plan
    return EngineInfo(
        model=plan.options.model,
        max_model_len=plan.options.max_model_len,
        vocab_size=plan.config.vocab_size,
        family=plan.family,
        path=str(plan.path),
        decisions=plan.decisions,
        warnings=plan.warnings,
        load_time=load_time,
        warm_up_time=warm_up_time,
        pid=os.getpid(),
    )


def bare_info(core: EngineCore) -> EngineInfo:
    """Of a core that came from no model file."""
    return EngineInfo(model="", max_model_len=core.max_model_len, vocab_size=core.vocab_size, pid=os.getpid())
