"""`slipstream inspect`: what a model is, what memory it needs, and what would run how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from slipstream.cli.options import engine_options, read_options
from slipstream.cli.parameters import Argument, Option
from slipstream.config.decision import Decision
from slipstream.engine.loading import EnginePlan, inspect_model
from slipstream.errors import UsageError
from slipstream.hub.disk import format_bytes
from slipstream.hw.info import HardwareInfo, read_hardware
from slipstream.hw.memory import format_memory
from slipstream.kernels.cpu.native import kernel_sets
from slipstream.text.tokenizer import Tokenizer

_SEQUENCES = (1, 8, 64)
_MEMORY = frozenset({"total", "available", "weights as loaded", "KV per token"})
_UNITS = {"context": "tokens", "vocabulary": "tokens", "hidden size": "values", "feed-forward size": "values"}
_SETTING_UNITS = {
    "max_model_len": "tokens",
    "block_size": "tokens",
    "memory_utilization": "of the memory",
    "num_blocks": "blocks",
    "max_num_batched_tokens": "tokens per step",
    "max_num_seqs": "sequences",
    "max_prefill_chunk": "tokens",
    "max_queued": "requests",
    "max_queued_tokens": "tokens",
    "tpot_objective": "seconds per token",
    "num_speculative_tokens": "tokens",
    "prompt_lookup_min": "tokens",
    "prompt_lookup_max": "tokens",
    "speculative_store_tokens": "tokens",
    "num_threads": "threads",
}


@engine_options
def inspect(
    model: Annotated[str | None, Argument(metavar="MODEL", help="A pulled name, a file or a folder.")] = None,
    *,
    hardware: Annotated[bool, Option("--hardware", help="Show the machine instead of a model.")] = False,
    json_: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    settings: Mapping[str, Any],
) -> None:
    """Show architecture, sizes, tokenizer, memory and settings of a model without loading its weights."""
    if hardware:
        if model is not None:
            raise UsageError("--hardware takes no MODEL.")
        report = _hardware_report(read_hardware())
    elif model is None:
        raise UsageError("which model?", fix="Give a MODEL, or --hardware for the machine.")
    else:
        options, environment = read_options(model, settings)
        plan, tokenizer = inspect_model(options, cache_dir=environment.cache_dir)
        report = _model_report(plan, tokenizer)
    if json_:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _print(report)


def _model_report(plan: EnginePlan, tokenizer: Tokenizer) -> dict[str, Any]:
    config, summary, spec = plan.config, plan.summary, plan.memory.spec
    length = plan.options.max_model_len
    windows = {window for window in config.windows if window is not None}
    architecture: dict[str, Any] = {
        "family": plan.family,
        "parameters": summary.num_parameters,
        "layers": config.num_layers,
        "hidden size": config.hidden_size,
        "feed-forward size": config.intermediate_size,
        "heads": f"{config.num_heads} query, {config.num_kv_heads} KV, {config.head_dim} values each",
        "vocabulary": config.vocab_size,
        "head": "shares the embedding" if config.tie_word_embeddings else "own weights",
        "context": config.max_position_embeddings,
    }
    if windows:
        count = sum(window is not None for window in config.windows)
        architecture["sliding window"] = f"{min(windows)} tokens in {count} of {config.num_layers} layers"
    if config.moe is not None:
        architecture["experts"] = f"{config.moe.top_k} of {config.moe.num_experts} per token"
    return {
        "file": {
            "path": str(plan.path),
            "tensor data": summary.nbytes,
            **{
                f"{each.dtype}": f"{each.num_tensors} tensors, {each.num_parameters:,} parameters, "
                f"{format_bytes(each.nbytes)}, {each.bits_per_parameter:.2f} bits each"
                for each in summary.by_dtype
            },
        },
        "architecture": architecture,
        "tokenizer": {
            "tokens": tokenizer.vocab_size,
            "beginning of text": tokenizer.bos_token or "none",
            "added to every prompt": tokenizer.adds_bos,
            "ends an answer": ", ".join(str(tokenizer.id_to_token(each)) for each in tokenizer.eos_token_ids),
            "chat template": "yes" if tokenizer.chat_template is not None else "no",
        },
        "memory": {
            "weights as loaded": plan.memory.weights,
            "KV per token": spec.bytes_per_token,
            **{f"KV of {count} x {length} tokens": count * length * spec.bytes_per_token for count in _SEQUENCES},
            "plan": plan.memory.formula().splitlines(),
            "warnings": list(plan.memory.warnings),
        },
        "settings in force": {each.field: f"{_setting(each)}  ({each.why})" for each in plan.decisions},
    }


def _setting(decision: Decision) -> str:
    if decision.effective is None:
        return "not set"
    if isinstance(decision.effective, bool):
        return "yes" if decision.effective else "no"
    unit = _SETTING_UNITS.get(decision.field) if isinstance(decision.effective, int | float) else None
    return str(decision.effective) if unit is None else f"{decision.effective} {unit}"


def _kernel_report(usable: list[str]) -> dict[str, str]:
    """usable: the compiled kernel sets that this processor can run, best first."""
    best = usable[0]
    why = "the processor lacks AVX2, FMA or F16C" if best == "scalar" else "the widest that runs on this processor"
    return {"used": f"{best} ({why})", "usable": ", ".join(usable)}


def _hardware_report(hardware: HardwareInfo) -> dict[str, Any]:
    return {
        "processor": {
            "model": hardware.cpu_model,
            "architecture": hardware.architecture,
            "physical cores": hardware.physical_cores,
            "usable cores": hardware.usable_cores,
            "usable processors": hardware.usable_cpus,
            "quota": hardware.cpu_quota,
            "NUMA nodes": hardware.numa_nodes,
            "threads used": hardware.recommended_threads,
            "features": " ".join(hardware.cpu_features),
        },
        "kernels of the cpu backend": _kernel_report(kernel_sets()),
        "memory": {"total": hardware.total_memory, "available": hardware.available_memory},
    }


def _print(report: Mapping[str, Mapping[str, Any]]) -> None:
    for title, fields in report.items():
        print(title.capitalize())
        width = max(len(name) for name in fields)
        for name, value in fields.items():
            if isinstance(value, list):
                for index, line in enumerate(value):
                    print(f"  {name if index == 0 else '':<{width}}  {line}")
            else:
                print(f"  {name:<{width}}  {_shown(name, value)}")


def _shown(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name == "tensor data":
            return format_bytes(value)
        if name in _MEMORY or name.startswith("KV of"):
            return format_memory(value)
        return f"{value:,} {_UNITS.get(name, '')}".rstrip()
    return str(value)
