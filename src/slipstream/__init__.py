"""Slipstream: fast large-language-model inference on the hardware you have.

The names below are the public surface; they are imported when first used, so that `import slipstream` costs nothing.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing `typing` for it would take longer than all the rest
if TYPE_CHECKING:
    from slipstream.config.decision import Decision
    from slipstream.config.types import EngineOptions
    from slipstream.engine.async_engine import AsyncEngine
    from slipstream.engine.echo import EchoEngine
    from slipstream.engine.llm import LLM
    from slipstream.engine.outputs import CompletionOutput, CompletionStats, OutputDelta, RequestOutput
    from slipstream.engine.process.engine import ProcessEngine
    from slipstream.engine.protocol import Engine, EngineStats, GenerationRequest
    from slipstream.errors import SlipstreamError
    from slipstream.sampling.grammar.spec import GrammarSpec
    from slipstream.sampling.logprobs import TokenLogprob
    from slipstream.sampling.params import SamplingParams

_HOME = {
    "LLM": "slipstream.engine.llm",
    "AsyncEngine": "slipstream.engine.async_engine",
    "CompletionOutput": "slipstream.engine.outputs",
    "CompletionStats": "slipstream.engine.outputs",
    "Decision": "slipstream.config.decision",
    "EchoEngine": "slipstream.engine.echo",
    "Engine": "slipstream.engine.protocol",
    "EngineOptions": "slipstream.config.types",
    "EngineStats": "slipstream.engine.protocol",
    "GenerationRequest": "slipstream.engine.protocol",
    "GrammarSpec": "slipstream.sampling.grammar.spec",
    "OutputDelta": "slipstream.engine.outputs",
    "ProcessEngine": "slipstream.engine.process.engine",
    "RequestOutput": "slipstream.engine.outputs",
    "SamplingParams": "slipstream.sampling.params",
    "SlipstreamError": "slipstream.errors",
    "TokenLogprob": "slipstream.sampling.logprobs",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "CompletionStats",
    "Decision",
    "EchoEngine",
    "Engine",
    "EngineOptions",
    "EngineStats",
    "GenerationRequest",
    "GrammarSpec",
    "OutputDelta",
    "ProcessEngine",
    "RequestOutput",
    "SamplingParams",
    "SlipstreamError",
    "TokenLogprob",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
