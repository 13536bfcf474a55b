"""The draft head against plain NumPy, on both backends, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig

from slipstream.errors import ModelFormatError, ModelNotFoundError, SlipstreamError, UnsupportedModelError
from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.select import select_kernels
from slipstream.kernels.table import Kernels
from slipstream.kv.storage import KVStorage
from slipstream.layers.embedding import Embedding, LMHead
from slipstream.layers.rope import RopeConfig
from slipstream.models.draft_head import DraftHead, bind_head, head_kv_spec, reduced_output
from slipstream.models.draft_head_file import (
    DraftHeadConfig,
    DraftHeadFile,
    is_draft_head,
    read_draft_head,
    require_fit,
)
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.harness import save, tiny_model

KERNELS = {"reference": select_kernels("reference"), "cpu": cpu_kernels(2)}
CONFIG = DraftHeadConfig(64, 4, 2, 16, 96, 1e-5, RopeConfig(10000.0, 16), 50, 20, "tiny", "f" * 32)
RNG = np.random.default_rng(0)
EMBEDDING = RNG.standard_normal((50, 64)).astype(np.float32)


def head_file(folder: Path = Path("head")) -> DraftHeadFile:
    rng = np.random.default_rng(1)
    weights = {
        name: (rng.standard_normal(shape) * (0.2 if len(shape) == 1 else shape[-1] ** -0.5)).astype(np.float32)
        for name, shape in CONFIG.shapes().items()
    }
    for name in weights:
        if len(weights[name].shape) == 1:
            weights[name] += 1
    return DraftHeadFile(folder, CONFIG, weights, rng.permutation(50)[:20].astype(np.int32))


def expected(
    head: DraftHeadFile, tokens: np.ndarray[Any, Any], states: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """One sequence in float64."""
    w = {name: each.astype(np.float64) for name, each in head.weights.items()}

    def norm(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG.rms_norm_eps) * weight

    x = np.concatenate([states, 3.0 * EMBEDDING[tokens]], axis=1) @ w["fc.weight"].T
    y = norm(x, w["layer.input_layernorm.weight"])
    n = len(tokens)
    angles = np.arange(n)[:, None] * 10000.0 ** -(np.arange(0, 16, 2) / 16)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def rotate(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        a, b = z[..., :8], z[..., 8:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    q = rotate((y @ w["layer.self_attn.q_proj.weight"].T).reshape(n, 4, 16))
    k = rotate((y @ w["layer.self_attn.k_proj.weight"].T).reshape(n, 2, 16)).repeat(2, axis=1)
    v = (y @ w["layer.self_attn.v_proj.weight"].T).reshape(n, 2, 16).repeat(2, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / 4
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("hqk,khd->qhd", weights, v).reshape(n, 64)
    x = x + out @ w["layer.self_attn.o_proj.weight"].T
    y = norm(x, w["layer.post_attention_layernorm.weight"])
    gate = y @ w["layer.mlp.gate_proj.weight"].T
    up = y @ w["layer.mlp.up_proj.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w["layer.mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"]) @ EMBEDDING[head.draft_ids].T.astype(np.float64), x


def run(kernels: Kernels, head: DraftHeadFile, *, compiled: bool = True) -> Callable[..., tuple[Any, Any]]:
    """(tokens, states, start) of one sequence in blocks of 4 -> logits and what the head makes."""
    embedding = Embedding(kernels, kernels.bind("embedding", EMBEDDING), 3.0)
    output = LMHead(kernels, kernels.bind("linear", EMBEDDING[head.draft_ids]))
    model = DraftHead(CONFIG, kernels, bind_head(head, kernels), embedding, output, 64)
    spec = head_kv_spec(CONFIG, block_size=4, dtype="float32")
    kv = KVStorage(spec, 16, kernels.new_kv(spec, 16))
    forward: Any = model if kernels.compile is None or not compiled else kernels.compile(model, kv)

    def step(tokens: np.ndarray[Any, Any], states: np.ndarray[Any, Any], start: int = 0) -> tuple[Any, Any]:
        n = len(tokens)
        at = np.arange(start, start + n, dtype=np.int32)
        table = np.arange(16, dtype=np.int32)[None]
        ends = np.array([start + n], np.int32)
        rows = np.arange(n, dtype=np.int32)
        batch = ForwardBatch(tokens, at, at, np.array([0, n], np.int32), ends, table, rows, states)
        logits, made = forward(batch, kv)
        return kernels.to_numpy(logits).copy(), kernels.to_numpy(made)

    return step


@pytest.mark.parametrize("backend", KERNELS)
def test_the_forward_is_that_of_the_paper(backend: str) -> None:
    """The cpu backend rounds weights and activations to eight bits."""
    head = head_file()
    tokens, states = RNG.integers(0, 50, 13).astype(np.int32), RNG.standard_normal((13, 64)).astype(np.float32)
    logits, made = run(KERNELS[backend], head)(tokens, states)
    wanted_logits, wanted = expected(head, tokens, states)
    tolerance = 1e-5 if backend == "reference" else 0.03
    np.testing.assert_allclose(made, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
    np.testing.assert_allclose(logits, wanted_logits, rtol=0, atol=tolerance * np.abs(wanted_logits).max())


@pytest.mark.parametrize("backend", KERNELS)
def test_pieces_and_one_token_at_a_time_keep_their_bits(backend: str) -> None:
    head = head_file()
    tokens, states = RNG.integers(0, 50, 13).astype(np.int32), RNG.standard_normal((13, 64)).astype(np.float32)
    logits, made = run(KERNELS[backend], head)(tokens, states)
    pieces = run(KERNELS[backend], head)
    for start, stop in ((0, 5), (5, 6), (6, 13)):
        ours = pieces(tokens[start:stop], states[start:stop], start)
        np.testing.assert_array_equal(ours[0], logits[start:stop])
        np.testing.assert_array_equal(ours[1], made[start:stop])


def test_a_recorded_head_reads_the_states_of_each_step() -> None:
    head = head_file()
    step = run(KERNELS["cpu"], head)
    tokens, states = RNG.integers(0, 50, 3).astype(np.int32), RNG.standard_normal((3, 64)).astype(np.float32)
    first = step(tokens, states)
    assert not np.array_equal(step(tokens, 2 * states)[1], first[1])
    np.testing.assert_array_equal(step(tokens, states)[1], first[1])


@pytest.mark.parametrize("backend", KERNELS)
def test_states_of_another_shape_are_refused(backend: str) -> None:
    step = run(KERNELS[backend], head_file())
    for states in (None, np.zeros((2, 64), np.float32), np.zeros((3, 32), np.float32)):
        with pytest.raises(ValueError, match=r"belong together|batch's inputs"):
            step(np.array([1, 2, 3], np.int32), states)  # type: ignore[arg-type]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("backend", KERNELS)
def test_the_output_rows_are_the_targets_own(tmp_path: Path, backend: str, tied: bool) -> None:
    sizes = {"vocab_size": 77, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8}
    folder = save(tiny_model(LlamaConfig(**sizes, tie_word_embeddings=tied)), tmp_path)
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    table = load_file(folder / "model.safetensors")[name].astype(np.float32)
    ids = np.array([5, 0, 76, 58, 6], np.int32)
    checkpoint, kernels = open_safetensors(folder), KERNELS[backend]
    head = reduced_output(checkpoint, ids, kernels)
    checkpoint.close()
    x = RNG.standard_normal((3, 32)).astype(np.float32)
    rows = np.arange(3, dtype=np.int32)
    batch = ForwardBatch(rows, rows, rows, np.array([0, 3], np.int32), rows[:1], rows[:1, None], rows, x)
    logits = kernels.to_numpy(head(kernels.inputs(batch, 32)))
    np.testing.assert_allclose(logits, x @ table[ids].T, rtol=1e-5, atol=1e-5)


# ---- files ----


def write(folder: Path, head: DraftHeadFile, dtype: Any = np.float16, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    config = {
        "format": "slipstream-draft-head",
        "version": 1,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "vocab_size": 50,
        "draft_vocab_size": 20,
        "features": ["final"],
        "target": {"name": "tiny", "fingerprint": "f" * 32},
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    arrays = {name: each.astype(dtype) for name, each in head.weights.items()}
    save_file({**arrays, "draft_ids": head.draft_ids}, folder / "model.safetensors")
    return folder


def test_a_folder_is_read_back(tmp_path: Path) -> None:
    head = head_file()
    folder = write(tmp_path, head, np.float32)
    assert is_draft_head(folder)
    read = read_draft_head(folder)
    assert read.config == CONFIG
    np.testing.assert_array_equal(read.draft_ids, head.draft_ids)
    for name, each in head.weights.items():
        np.testing.assert_array_equal(read.weights[name], each)
    halves = read_draft_head(write(tmp_path, head))
    np.testing.assert_array_equal(halves.weights["norm.weight"], head.weights["norm.weight"].astype(np.float16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "eagle"}, "its format is not 'slipstream-draft-head'"),
        ({"version": 2}, "version = 2 is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"features": ["final", "final"]}, "features = .* is not supported"),
        ({"features": [3]}, "features must be a list of strings"),
        ({"hidden_size": 0}, "hidden_size must be a positive integer"),
        ({"num_key_value_heads": 3}, "do not make an attention layer"),
        ({"head_dim": 15}, "do not make an attention layer"),
        ({"rms_norm_eps": -1.0}, "do not make an attention layer"),
        ({"rope_theta": 0.0}, "a rotation of base 0.0 cannot be computed"),
        ({"draft_vocab_size": 51}, "draft_vocab_size is larger than vocab_size"),
        ({"draft_vocab_size": 19}, r"draft_ids is not \[19\] int32"),
        ({"vocab_size": 20}, "a token twice, or one outside 0 .. 19"),
        ({"intermediate_size": 95}, r"mlp.gate_proj.weight is \[96, 64\] float16, not \[95, 64\]"),
        ({"target": {"name": "tiny"}}, "fingerprint is missing"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=message):
        read_draft_head(write(tmp_path, head_file(), **changes))


def _without(arrays: dict[str, Any]) -> None:
    del arrays["fc.weight"]


def _more(arrays: dict[str, Any]) -> None:
    arrays["lm_head.weight"] = np.zeros((2, 2), np.float32)


def _integers(arrays: dict[str, Any]) -> None:
    arrays["norm.weight"] = np.ones(64, np.int32)


def _infinite(arrays: dict[str, Any]) -> None:
    arrays["norm.weight"][3] = np.inf


def _huge(arrays: dict[str, Any]) -> None:
    arrays["fc.weight"] = arrays["fc.weight"].astype(np.float32)
    arrays["fc.weight"][3, 5] = 1e30  # no int8 with a float16 scale can hold that


def _twice(arrays: dict[str, Any]) -> None:
    arrays["draft_ids"][1] = arrays["draft_ids"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, "lacks fc.weight"),
        (_more, "has lm_head.weight as well"),
        (_integers, r"norm.weight is \[64\] int32"),
        (_infinite, "norm.weight holds values that are not finite"),
        (_huge, "fc.weight holds values that are not finite, or huge"),
        (_twice, "draft_ids holds a token twice"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    folder = write(tmp_path, head_file())
    arrays = load_file(folder / "model.safetensors")
    change(arrays)
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelFormatError, match=message):
        read_draft_head(folder)


def test_folders_that_are_no_head(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"is no draft head: it has no config.json.*slipstream draft train"):
        read_draft_head(tmp_path)
    folder = write(tmp_path / "head", head_file())
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    with pytest.raises(ModelFormatError, match="cannot be read"):
        read_draft_head(folder)
    header = b'{"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'  # a type that NumPy has not
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(ModelFormatError, match="cannot be read"):
        read_draft_head(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(SlipstreamError, match="not a JSON object"):
        read_draft_head(folder)
    assert not is_draft_head(tmp_path)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ((32, 50, "f" * 32), "trained for tiny: its hidden size is 64, the model's 32"),
        ((64, 51, "f" * 32), "its vocabulary is 50, the model's 51"),
        ((64, 50, "e" * 32), "its fingerprint is f+, the model's e+"),
    ],
)
def test_a_head_for_another_model_is_refused(facts: tuple[int, int, str], message: str) -> None:
    require_fit(head_file(), 64, 50, "f" * 32)
    with pytest.raises(UnsupportedModelError, match=message):
        require_fit(head_file(), *facts)
