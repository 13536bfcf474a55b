"""The parts of a Hugging Face config.json that families share.

Both spellings of the rotation are read: `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling`.
"""

from __future__ import annotations

from slipstream.errors import ModelFormatError
from slipstream.kernels.specs import ActivationKind
from slipstream.layers.rope import RopeConfig, yarn_attention_factor
from slipstream.models.reader import Reader

_ACTIVATIONS: dict[str, ActivationKind] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def activation(config: Reader, key: str = "hidden_act", default: str = "silu") -> ActivationKind:
    name = config.text(key, default)
    if name not in _ACTIVATIONS:
        raise config.unsupported(key)
    return _ACTIVATIONS[name]


def head_dim(config: Reader) -> int:
    return config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"))


def rope(
    config: Reader, head_dim: int, *, theta: float = 10000.0, rotary_factor: float = 1.0, interleaved: bool = False
) -> RopeConfig:
    """The model's one rotation. `theta` and `rotary_factor` are what the family assumes when the file is silent."""
    key = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    return rope_section(
        config, config.section(key), head_dim, theta=theta, rotary_factor=rotary_factor, interleaved=interleaved
    )


def rope_section(
    config: Reader,
    section: Reader,
    head_dim: int,
    *,
    theta: float,
    rotary_factor: float = 1.0,
    interleaved: bool = False,
) -> RopeConfig:
    """One rotation from its own section; what the section leaves out is looked up at the top."""
    kind = section.text("rope_type", section.text("type", "default"))
    theta = section.number("rope_theta", config.number("rope_theta", theta))
    rotary_factor = section.number("partial_rotary_factor", config.number("partial_rotary_factor", rotary_factor))
    if not 0 < rotary_factor <= 1:
        raise ModelFormatError(
            f"partial_rotary_factor must be above 0 and at most 1, not {rotary_factor}.", where=section.where
        )
    rotary_dim = int(head_dim * rotary_factor)
    if kind == "default":
        return RopeConfig(theta, rotary_dim, interleaved)
    if kind == "linear":
        return RopeConfig(theta, rotary_dim, interleaved, kind="linear", factor=section.number("factor"))
    if kind == "dynamic":
        return RopeConfig(theta, rotary_dim, interleaved, kind="dynamic", factor=section.number("factor"))
    if kind not in ("llama3", "yarn"):
        raise section.unsupported("rope_type" if section.has("rope_type") else "type")
    context = config.integer("max_position_embeddings")
    original = section.integer("original_max_position_embeddings", context)
    original = config.integer("original_max_position_embeddings", original)
    if kind == "llama3":
        return RopeConfig(
            theta,
            rotary_dim,
            interleaved,
            kind="llama3",
            factor=section.number("factor"),
            original_max_position=original,
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
        )
    factor = section.number("factor", context / original)
    default_factor = yarn_attention_factor(factor, section.number("mscale", 0.0), section.number("mscale_all_dim", 0.0))
    return RopeConfig(
        theta,
        rotary_dim,
        interleaved,
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
        attention_factor=section.number("attention_factor", default_factor),
    )


def late_windows(config: Reader, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's windows: off unless use_sliding_window; `layer_types`, or else the layers from max_window_layers on."""
    if not config.flag("use_sliding_window", False):
        return (None,) * num_layers
    window = config.integer("sliding_window", 4096)
    if config.has("layer_types"):
        return typed_windows(config, window)
    first = config.values.get("max_window_layers", 28)
    if not isinstance(first, int):
        raise config.unsupported("max_window_layers")
    return tuple(window if layer >= first else None for layer in range(num_layers))


def typed_windows(config: Reader, window: int) -> tuple[int | None, ...]:
    """One entry of `layer_types` per layer."""
    windows = {"full_attention": None, "sliding_attention": window}
    types = config.texts("layer_types")
    if not set(types) <= set(windows):
        raise config.unsupported("layer_types")
    return tuple(windows[name] for name in types)
