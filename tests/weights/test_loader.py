from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import ModelFormatError
from slipstream.weights.formats.gguf import open_gguf
from slipstream.weights.loader import load_weights
from slipstream.weights.match import match_slots
from slipstream.weights.rope_rows import rope_rows_to_halves
from slipstream.weights.slots import TensorSlot

from .fake_checkpoint import FakeCheckpoint
from .files import random_blocks, reference_values, write_gguf

pytestmark = pytest.mark.fast


def slot(name: str, shape: tuple[int, ...], gguf_name: str | None = None, **fields: Any) -> TensorSlot:
    kind = "linear" if len(shape) == 2 else "vector"
    return TensorSlot(name=name, shape=shape, kind=kind, gguf_name=gguf_name or name, **fields)


def grid(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def keep(_: TensorSlot, values: np.ndarray) -> np.ndarray:
    return values


def load(slots: list[TensorSlot], tensors: Mapping[str, np.ndarray], *, gguf: bool = True, **options: Any) -> Any:
    return load_weights(slots, FakeCheckpoint(tensors, "gguf" if gguf else "safetensors"), keep, **options)


def to_llama_cpp(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the Q and K projections of Llama."""
    halves = weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def test_whole_tensors_by_the_names_of_each_format() -> None:
    slots = [slot("a.weight", (2, 3), "blk.a", hf_name="merged.a"), slot("b", (4,), "blk.b")]
    found = load(slots, {"blk.b": grid(4), "blk.a": grid(2, 3)})
    assert list(found) == ["b", "a.weight"]  # file order
    np.testing.assert_array_equal(found["a.weight"], grid(2, 3), strict=True)
    found = load(slots, {"merged.a": grid(2, 3), "b": grid(4)}, gguf=False)
    assert list(found) == ["a.weight", "b"]


def test_row_ranges_of_a_merged_tensor() -> None:
    parts = {"q": (0, 4), "k": (4, 6), "v": (6, 8)}
    slots = [
        slot(name, (stop - start, 3), "qkv", hf_name="qkv", gguf_rows=(start, stop), hf_rows=(start, stop))
        for name, (start, stop) in parts.items()
    ]
    for gguf in (True, False):
        found = load(slots[::-1], {"qkv": grid(8, 3)}, gguf=gguf)
        assert list(found) == ["q", "k", "v"]
        for name, (start, stop) in parts.items():
            np.testing.assert_array_equal(found[name], grid(8, 3)[start:stop])


def test_experts_of_a_stacked_tensor() -> None:
    slots = [slot(f"experts.{e}", (4, 2), "exps", gguf_expert=e) for e in (2, 0, 1)]
    found = load(slots, {"exps": grid(3, 4, 2)})
    for e in range(3):
        np.testing.assert_array_equal(found[f"experts.{e}"], grid(3, 4, 2)[e], strict=True)


def test_rows_of_experts() -> None:
    slots = [
        slot(f"{name}.{e}", (2, 3), "gate_up", gguf_expert=e, gguf_rows=rows)
        for e in range(2)
        for name, rows in (("gate", (0, 2)), ("up", (2, 4)))
    ]
    found = load(slots, {"gate_up": grid(2, 4, 3)})
    np.testing.assert_array_equal(found["up.1"], grid(2, 4, 3)[1, 2:])
    assert found["up.1"].base is None


@given(num_heads=st.integers(1, 5), half=st.integers(1, 4), columns=st.sampled_from([None, 1, 3]))
@settings(max_examples=30, deadline=None)
def test_rope_rows_return_to_hugging_face_order(num_heads: int, half: int, columns: int | None) -> None:
    shape = (num_heads * 2 * half,) if columns is None else (num_heads * 2 * half, columns)
    weights = grid(*shape)
    stored = to_llama_cpp(weights, num_heads)
    restored = rope_rows_to_halves(stored, num_heads)
    np.testing.assert_array_equal(restored, weights, strict=True)
    assert restored.flags.c_contiguous
    found = load([slot("q", shape, gguf_rope_heads=num_heads)], {"q": stored})
    np.testing.assert_array_equal(found["q"], weights)
    untouched = load([slot("q", shape, gguf_rope_heads=num_heads)], {"q": stored}, gguf=False)
    np.testing.assert_array_equal(untouched["q"], stored)


def test_the_interleaving_by_hand() -> None:
    """Two heads of four: llama.cpp stores each head's rows as 0, 2, 1, 3."""
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7], np.float32)
    np.testing.assert_array_equal(rope_rows_to_halves(stored, 2), np.arange(8))


def test_rope_heads_of_a_row_range() -> None:
    query = grid(8, 3)
    merged = np.concatenate([to_llama_cpp(query, 2), -grid(4, 3)])
    slots = [slot("q", (8, 3), "qk", gguf_rows=(0, 8), gguf_rope_heads=2), slot("k", (4, 3), "qk", gguf_rows=(8, 12))]
    found = load(slots, {"qk": merged})
    np.testing.assert_array_equal(found["q"], query)
    np.testing.assert_array_equal(found["k"], -grid(4, 3))


def test_the_offset_is_for_safetensors_only() -> None:
    norm = [slot("norm", (3,), hf_offset=1.0)]
    np.testing.assert_array_equal(load(norm, {"norm": grid(3)}, gguf=False)["norm"], grid(3) + 1, strict=True)
    np.testing.assert_array_equal(load(norm, {"norm": grid(3)})["norm"], grid(3))


def test_quantised_file(tmp_path: Path) -> None:
    raw = random_blocks("Q4_K", (4, 256), np.random.default_rng(0))
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {"q": raw}, types={"q": "Q4_K"}))
    rows = [slot("a", (1, 256), "q", gguf_rows=(0, 1)), slot("b", (3, 256), "q", gguf_rows=(1, 4))]
    found = load_weights(rows, checkpoint, keep)
    np.testing.assert_array_equal(np.concatenate([found["a"], found["b"]]), reference_values(raw, "Q4_K"))


def test_ignored_tensors() -> None:
    tensors = {"w": grid(2), "rope_freqs.weight": grid(4), "x.inv_freq": grid(4)}
    assert list(load([slot("w", (2,))], tensors, ignore={"rope_freqs.weight", "x.inv_freq"})) == ["w"]
    assert list(load([slot("w", (2,))], tensors, ignore=lambda name: name != "w")) == ["w"]
    with pytest.raises(ModelFormatError, match=r"1 tensor unexpected: x\.inv_freq\."):
        load([slot("w", (2,))], tensors, ignore={"rope_freqs.weight"})


def test_one_error_names_everything() -> None:
    slots = [slot("gone", (2,)), slot("lost", (2,), "blk.lost"), slot("bad", (2, 3))]
    with pytest.raises(ModelFormatError) as caught:
        load(slots, {"bad": grid(3, 2), "new": grid(2), "newer": grid(2)})
    assert "2 tensors missing: gone, blk.lost (for lost). 2 tensors unexpected: new, newer. " in caught.value.what
    assert "1 tensor of the wrong shape or use: bad has the shape (3, 2), bad needs (2, 3)." in caught.value.what
    assert caught.value.where == "fake"


def test_long_lists_are_counted_and_cut() -> None:
    with pytest.raises(ModelFormatError, match=r"30 tensors missing: t0, .*, t19 and 10 more\."):
        load([slot(f"t{k}", (1,)) for k in range(30)], {})


@pytest.mark.parametrize(
    ("slots", "shape", "message"),
    [
        ([slot("a", (2, 3))], (6,), r"w has the shape \(6,\), a needs \(2, 3\)"),
        ([slot("a", (2, 3), gguf_rows=(0, 2))], (4, 3), "nothing uses the rows 2 to 4"),
        ([slot("a", (2, 3), gguf_rows=(2, 4))], (4, 3), "nothing uses the rows 0 to 2"),
        ([slot("a", (2, 3), gguf_rows=(3, 5))], (4, 3), "w has 4 rows, a needs rows 3 to 5"),
        ([slot("a", (2, 3), gguf_rows=(0, 3))], (4, 3), r"w has the shape \(3, 3\) in rows 0 to 3, a needs \(2, 3\)"),
        ([slot("a", (2, 3), gguf_expert=2)], (2, 2, 3), r"w has 2 experts, a needs number 2 \(from 0\)"),
        ([slot("a", (2, 3), gguf_expert=1)], (3, 2, 3), "w has experts that nothing uses: 0, 2"),
        ([slot("a", (2, 3), gguf_expert=0)], (2, 3), r"w has the shape \(2, 3\), a needs"),
        ([slot("a", (1, 3), gguf_expert=0, gguf_rows=(0, 1))], (1, 2, 3), "the rows 1 to 2 of expert 0"),
        ([slot("a", (6, 3), gguf_rope_heads=4)], (6, 3), "w has 6 rows, which do not divide into 4 heads"),
        ([slot("a", (2, 3)), slot("b", (2, 3))], (2, 3), "the rows 0 to 2 are used twice"),
        (
            [slot("a", (2, 3), gguf_rows=(0, 2)), slot("b", (3, 3), gguf_rows=(1, 4))],
            (4, 3),
            "the rows 1 to 2 are used twice",
        ),
    ],
)
def test_parts_that_do_not_fit(slots: list[TensorSlot], shape: tuple[int, ...], message: str) -> None:
    renamed = [slot(s.name, s.shape, "w", **_parts(s)) for s in slots]
    with pytest.raises(ModelFormatError, match=message):
        load(renamed, {"w": grid(*shape)})


def _parts(s: TensorSlot) -> dict[str, Any]:
    return {"gguf_rows": s.gguf_rows, "gguf_expert": s.gguf_expert, "gguf_rope_heads": s.gguf_rope_heads}


def test_a_tensor_whole_and_by_expert() -> None:
    slots = [slot("a", (2, 2, 3), "w"), slot("b", (2, 3), "w", gguf_expert=0)]
    with pytest.raises(ModelFormatError, match="w is used both whole and by expert"):
        load(slots, {"w": grid(2, 2, 3)})


def test_nothing_is_read_when_names_do_not_fit() -> None:
    checkpoint = FakeCheckpoint({"w": grid(2)}, "gguf")
    with pytest.raises(ModelFormatError):
        load_weights([slot("w", (2,)), slot("gone", (2,))], checkpoint, keep)
    assert checkpoint.reads == []


def test_slots_of_the_same_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="slots appear twice: w"):
        load([slot("w", (2,)), slot("w", (2,))], {"w": grid(2)})


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ModelFormatError, match="the tensor w holds values that are not finite"):
        load([slot("w", (2,))], {"w": np.array([1.0, np.nan], np.float32)})


def test_progress_counts_stored_bytes() -> None:
    calls: list[tuple[int, int]] = []
    slots = [slot("a", (1, 4), "m", gguf_rows=(0, 1)), slot("b", (3, 4), "m", gguf_rows=(1, 4)), slot("c", (2,))]
    load(slots, {"m": grid(4, 4), "c": grid(2)}, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 72), (16, 72), (64, 72), (72, 72)]


def test_stored_bytes_of_quantised_parts(tmp_path: Path) -> None:
    raw = random_blocks("Q6_K", (4, 256), np.random.default_rng(0))
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {"q": raw}, types={"q": "Q6_K"}))
    rows = [slot("a", (1, 256), "q", gguf_rows=(0, 1)), slot("b", (3, 256), "q", gguf_rows=(1, 4))]
    assert [source.nbytes for source in match_slots(rows, checkpoint)] == [210, 630]


def test_one_tensor_is_alive_at_a_time() -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def count(_: TensorSlot, values: np.ndarray) -> int:
        assert [ref for ref in alive if ref() is not None] == []
        alive.append(weakref.ref(values))
        return values.size

    slots = [slot(f"t{k}", (3, 2)) for k in range(4)]
    found = load_weights(slots, FakeCheckpoint({s.name: grid(3, 2) for s in slots}, "gguf"), count)
    assert found == {"t0": 6, "t1": 6, "t2": 6, "t3": 6}
