"""Options that several verbs share, written once: settings of the engine and sampling parameters.

`@engine_options` and `@sampling_options` add them to a verb's signature (see `parameters`) and hand the ones that were
given to the function as the mappings `settings` and `sampling`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from slipstream.cli.grammar import with_grammar
from slipstream.cli.parameters import Option
from slipstream.config.env import Environment, read_environment
from slipstream.config.load import load_options
from slipstream.config.types import EngineOptions


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    kind: type
    help: str
    metavar: str | None = None


_ENGINE = (
    _Option("config", Path, "TOML or JSON file with settings; options here override it.", "FILE"),
    _Option("backend", str, "auto, reference or cpu."),
    _Option("tokenizer", str, "File or folder of another tokenizer.", "PATH"),
    _Option("max_model_len", int, "Context in tokens, prompt and output together."),
    _Option("weight_cache", bool, "Keep packed weights on disk for the next start."),
    _Option("kv_dtype", str, "Type of the KV cache: auto, float32, float16 or bfloat16."),
    _Option("block_size", int, "Tokens per KV block."),
    _Option("num_blocks", int, "KV blocks; by default what memory holds."),
    _Option("memory_utilization", float, "Share of memory to use, 0 to 1."),
    _Option("enable_prefix_caching", bool, "Reuse the KV of equal prefixes."),
    _Option("enable_chunked_prefill", bool, "Split long prompts over several steps."),
    _Option("max_num_batched_tokens", int, "Tokens fed per step."),
    _Option("max_num_seqs", int, "Requests that run at once."),
    _Option("tpot_objective", str, "Seconds per output token that prefills leave room for; or auto, off.", "SECONDS"),
    _Option(
        "speculative",
        str,
        "Draft tokens, verify them together: off, auto, ngram, draft_head or a smaller model.",
        "MODE",
    ),
    _Option("draft_head", str, "Folder of a draft head that was trained for the model.", "FOLDER"),
    _Option("num_speculative_tokens", int, "Tokens of the longest draft."),
    _Option("speculative_store_tokens", int, "Tokens of recent answers to draft from, too; 0: none."),
    _Option("num_threads", int, "Processor threads."),
)

_SAMPLING = (
    _Option("max_tokens", int, "Most output tokens."),
    _Option("temperature", float, "0 is greedy."),
    _Option("top_k", int, "Keep the k most likely tokens; 0: all."),
    _Option("top_p", float, "Keep the most likely tokens that sum to p."),
    _Option("min_p", float, "Keep tokens at least min_p times as likely as the best."),
    _Option("repetition_penalty", float, "Above 1: tokens seen before become less likely."),
    _Option("presence_penalty", float, "Subtracted from tokens of the output so far."),
    _Option("frequency_penalty", float, "The same, times their count."),
    _Option("stop", list, "End before this text; may be given several times.", "TEXT"),
    _Option("seed", int, "The same seed gives the same tokens."),
    _Option("ignore_eos", bool, "Go on behind the end-of-sequence token."),
    _Option("json_schema", Path, "The answer is JSON that fits the schema in FILE.", "FILE"),
    _Option("regex", str, "The whole answer matches this regular expression.", "REGEX"),
    _Option("grammar", Path, "The answer fits the Lark or GBNF grammar in FILE.", "FILE"),
    _Option("choice", list, "The answer is one of these; give it several times.", "TEXT"),
)

Verb = Callable[..., None]
Finish = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def engine_options(verb: Verb) -> Verb:
    """Adds the engine's settings; `verb` receives those that were given as `settings`."""
    return _extend(verb, "settings", _ENGINE, _with_objective)


def sampling_options(verb: Verb) -> Verb:
    """Adds the sampling parameters; `verb` receives those that were given as `sampling`."""
    return _extend(verb, "sampling", _SAMPLING, with_grammar)


def read_options(model: str, settings: Mapping[str, Any]) -> tuple[EngineOptions, Environment]:
    """Options of MODEL, command line before configuration file, and the environment. Raises ConfigError."""
    environment = read_environment()
    overrides = {"model": model, **{name: value for name, value in settings.items() if name != "config"}}
    config: Path | None = settings.get("config")
    return load_options(config, overrides), environment


def _with_objective(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """A number as a number; words are left to the settings' own check."""
    asked = settings.get("tpot_objective")
    with suppress(TypeError, ValueError):
        return {**settings, "tpot_objective": float(asked)}  # type: ignore[arg-type]
    return settings


def _extend(
    verb: Verb,
    target: str,
    options: tuple[_Option, ...],
    finish: Finish = dict,
) -> Verb:
    signature = inspect.signature(verb)
    hints = get_type_hints(verb, include_extras=True)

    def wrapper(**arguments: Any) -> None:
        given = {each.name: arguments.pop(each.name) for each in options}
        verb(**arguments, **{target: finish({name: value for name, value in given.items() if value not in (None, [])})})

    own = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values() if p.name != target]
    added = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(each))
        for each in options
    ]
    wrapper.__name__, wrapper.__doc__ = verb.__name__, verb.__doc__
    wrapper.__signature__ = signature.replace(parameters=own + added)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in own + added}
    return wrapper


def _annotation(option: _Option) -> Any:
    flag = "--" + option.name.replace("_", "-")
    if option.kind is bool:
        return Annotated[bool | None, Option(f"{flag}/--no-{flag[2:]}", help=option.help, show_default=False)]
    info = Option(flag, help=option.help, metavar=option.metavar, show_default=False)
    if option.kind is list:
        return Annotated[list[str] | None, info]
    return Annotated[option.kind | None, info]
