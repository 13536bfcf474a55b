"""Rotation tables against the formulas of transformers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slipstream.layers.rope import RopeConfig, frequencies, rope_table, yarn_attention_factor

pytestmark = pytest.mark.fast


def theirs(rope: dict[str, Any], head_dim: int, context: int) -> tuple[np.ndarray[Any, Any], float]:
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=context, rope_parameters=dict(rope)
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None)
    return inverse.double().numpy(), float(factor)


def test_default_frequencies() -> None:
    assert frequencies(RopeConfig(theta=100.0, rotary_dim=4)).tolist() == [1.0, pytest.approx(0.1)]


def test_table_holds_every_position() -> None:
    table = rope_table(RopeConfig(theta=100.0, rotary_dim=4, interleaved=True, attention_factor=2.0), 7)
    assert table.cos.dtype == table.sin.dtype == np.float32
    assert (table.max_position, table.rotary_dim, table.interleaved) == (7, 4, True)
    assert table.cos[6].tolist() == [np.float32(2 * math.cos(6)), np.float32(2 * math.cos(6 * 0.1))]
    assert table.sin[6].tolist() == [np.float32(2 * math.sin(6)), np.float32(2 * math.sin(6 * 0.1))]


def test_positions_far_out_keep_their_precision() -> None:
    table = rope_table(RopeConfig(theta=1e4, rotary_dim=2), 131072)
    assert table.cos[131071, 0] == np.float32(math.cos(131071))


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_linear(head_dim: int) -> None:
    expected, _ = theirs({"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}, head_dim, 512)
    ours = RopeConfig(theta=1e4, rotary_dim=head_dim, kind="linear", factor=3.0)
    np.testing.assert_allclose(frequencies(ours), expected, rtol=1e-6)


def test_dynamic_within_the_models_context() -> None:
    expected, _ = theirs({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}, 64, 512)
    ours = RopeConfig(theta=1e4, rotary_dim=64, kind="dynamic", factor=3.0)
    np.testing.assert_allclose(frequencies(ours), expected, rtol=1e-6)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_llama3(head_dim: int, theta: float) -> None:
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": "llama3", "rope_theta": theta, "original_max_position_embeddings": 8192, **numbers}
    expected, _ = theirs(rope, head_dim, 131072)
    ours = RopeConfig(theta, head_dim, kind="llama3", original_max_position=8192, **numbers)
    np.testing.assert_allclose(frequencies(ours), expected, rtol=1e-5)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("head_dim", [16, 128])
@pytest.mark.parametrize("beta_fast", [32.0, 3.0, 1.0])
def test_yarn(truncate: bool, head_dim: int, beta_fast: float) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": beta_fast,
        "truncate": truncate,
    }
    expected, factor = theirs(rope, head_dim, 4096)
    ours = RopeConfig(
        1e6, head_dim, kind="yarn", factor=4.0, original_max_position=1024, beta_fast=beta_fast, truncate=truncate
    )
    np.testing.assert_allclose(frequencies(ours), expected, rtol=1e-5)
    assert yarn_attention_factor(4.0) == pytest.approx(factor)


def test_yarn_attention_factor() -> None:
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(40.0, 0.7, 1.2) == pytest.approx((0.07 * math.log(40) + 1) / (0.12 * math.log(40) + 1))


def test_frequency_factors_divide() -> None:
    plain = RopeConfig(theta=100.0, rotary_dim=4)
    given = RopeConfig(theta=100.0, rotary_dim=4, frequency_factors=(1.0, 8.0))
    np.testing.assert_array_equal(frequencies(given), frequencies(plain) / [1.0, 8.0])
