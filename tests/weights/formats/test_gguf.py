from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from slipstream.errors import ModelFormatError, ModelNotFoundError
from slipstream.weights.checkpoint import Checkpoint, TensorInfo
from slipstream.weights.formats.gguf import open_gguf

from ..files import QUANT_TYPES, random_blocks, reference_values, write_gguf  # noqa: TID252

pytestmark = pytest.mark.fast


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def write_all_types(path: Path, rng: np.random.Generator, **options: Any) -> dict[str, np.ndarray]:
    """A file with one tensor of every type; the values that each should have."""
    tensors: dict[str, np.ndarray] = {
        "f32": rng.normal(size=(3, 5)).astype(np.float32),
        "f16": rng.normal(size=(2, 3, 4)).astype(np.float16),
    }
    expected = {name: values.astype(np.float32) for name, values in tensors.items()}
    for dtype in (*QUANT_TYPES, "BF16"):
        if dtype == "BF16":
            tensors[dtype] = rng.integers(0, 0x7F00, (4, 6), dtype=np.uint16).view(np.uint8)
        else:
            tensors[dtype] = random_blocks(dtype, (4, 512), rng)
        expected[dtype] = reference_values(tensors[dtype], dtype)
    write_gguf(path, tensors, types={name: name for name in tensors if name.isupper()}, **options)
    return expected


def test_tensors_of_every_type(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "model.gguf"
    expected = write_all_types(path, rng)
    checkpoint: Checkpoint = open_gguf(path)
    assert (checkpoint.path, checkpoint.format) == (path, "gguf")
    assert list(checkpoint.tensors) == list(expected)
    for name, values in expected.items():
        info = checkpoint.tensors[name]
        assert info == TensorInfo(name, values.shape, name.upper(), checkpoint.raw(name).size)
        np.testing.assert_array_equal(checkpoint.read(name), values)
        np.testing.assert_array_equal(checkpoint.read(name, (1, 2)), values[1:2])
        assert checkpoint.read(name, (1, 1)).shape == (0, *values.shape[1:])


def test_raw_is_the_file_without_a_copy(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {"w": values}))
    raw = checkpoint.raw("w")
    assert raw.tobytes() == values.tobytes()
    assert not raw.flags.writeable
    assert not raw.flags.owndata


def test_rows_of_a_quantised_vector(tmp_path: Path, rng: np.random.Generator) -> None:
    raw = random_blocks("Q4_0", (1, 64), rng)[0]
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {"v": raw}, types={"v": "Q4_0"}))
    np.testing.assert_array_equal(checkpoint.read("v", (5, 40)), reference_values(raw, "Q4_0")[5:40])


@pytest.mark.parametrize("rows", [(-1, 2), (2, 1), (0, 4)])
def test_rows_outside_the_tensor(tmp_path: Path, rows: tuple[int, int]) -> None:
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {"w": np.zeros((3, 4), np.float32)}))
    with pytest.raises(ValueError, match=f"rows {rows[0]} to {rows[1]} are not inside w"):
        checkpoint.read("w", rows)


def test_closing(tmp_path: Path) -> None:
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {"w": np.ones((3, 4), np.float32)}))
    kept = checkpoint.raw("w")
    checkpoint.close()
    assert kept.view(np.float32).sum() == 12
    with pytest.raises(ValueError, match="closed"):
        checkpoint.read("w")
    assert list(checkpoint.tensors) == ["w"]


def test_metadata_as_plain_values(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -300)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -70000)
    writer.add_uint64("u64", 2**63 + 1)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 🙂\n")
    writer.add_array("strings", ["a", "", "🙂", "x" * 300])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("bools", [True, False])
    writer.add_tensor("w", np.zeros((1, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = dict(open_gguf(tmp_path / "m.gguf").metadata)
    arrays = {key: found.pop(key) for key in ("ints", "floats", "bools")}
    assert found == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -3,
        "u16": 60000,
        "i16": -300,
        "u32": 4_000_000_000,
        "i32": -70000,
        "u64": 2**63 + 1,
        "i64": -(2**62),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "naïve 🙂\n",
        "strings": ["a", "", "🙂", "x" * 300],
    }
    assert type(found["yes"]) is bool
    np.testing.assert_array_equal(arrays["ints"], np.array([1, -2, 3], np.int32), strict=True)
    np.testing.assert_array_equal(arrays["floats"], np.array([0.5, 1.5], np.float32), strict=True)
    np.testing.assert_array_equal(arrays["bools"], np.array([True, False]), strict=True)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment(tmp_path: Path, rng: np.random.Generator, alignment: int) -> None:
    expected = write_all_types(tmp_path / "m.gguf", rng, alignment=alignment)
    checkpoint = open_gguf(tmp_path / "m.gguf")
    for name, values in expected.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)


def write_split(folder: Path, count: int, **changes: dict[str, Any]) -> list[Path]:
    """`count` parts with two tensors each; `changes` {"part1": {key: value}} overrides metadata."""
    paths = []
    for number in range(count):
        path = folder / f"model-{number + 1:05d}-of-{count:05d}.gguf"
        metadata = {"split.no": number, "split.count": count, "split.tensors.count": 2 * count}
        metadata |= {"only.first": "x"} if number == 0 else {}
        metadata |= changes.get(f"part{number + 1}", {})
        tensors = {f"t{number}.{k}": np.full((2, 3), 10 * number + k, np.float32) for k in range(2)}
        paths.append(write_gguf(path, tensors, metadata=metadata))
    return paths


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_part_of_a_split_model_opens_all(tmp_path: Path, named: int) -> None:
    paths = write_split(tmp_path, 3)
    checkpoint = open_gguf(paths[named])
    assert checkpoint.path == paths[0]
    assert checkpoint.metadata["only.first"] == "x"
    assert list(checkpoint.tensors) == ["t0.0", "t0.1", "t1.0", "t1.1", "t2.0", "t2.1"]
    for number in range(3):
        assert (checkpoint.read(f"t{number}.1") == 10 * number + 1).all()


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 4)
    paths[0].unlink()
    paths[2].unlink()
    with pytest.raises(
        ModelFormatError, match=r"4 files and 2 are missing: model-00001-of-00004\.gguf, model-00003-of-00004\.gguf\."
    ):
        open_gguf(paths[1])


def test_a_part_that_lost_its_name(tmp_path: Path) -> None:
    renamed = write_split(tmp_path, 2)[1].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFormatError, match=r"part 1 \(from 0\) of a model split over 2 files"):
        open_gguf(renamed)


def test_a_name_outside_the_count(tmp_path: Path) -> None:
    path = write_split(tmp_path, 2)[1].rename(tmp_path / "model-00003-of-00002.gguf")
    with pytest.raises(ModelFormatError, match="is named part 3 of 2"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split.no": 0}, r"is named part 2 of 2, but its metadata say split\.no = 0"),
        ({"split.count": 3}, r"split\.count = 3"),
    ],
)
def test_a_part_that_disagrees_with_its_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        open_gguf(write_split(tmp_path, 2, part2=change)[0])


def test_a_split_with_too_few_tensors(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"split\.tensors\.count is 9, but the parts hold 4 tensors"):
        open_gguf(write_split(tmp_path, 2, part1={"split.tensors.count": 9})[0])


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 2)
    metadata = {"split.no": 1, "split.count": 2}
    write_gguf(paths[1], {name: np.zeros((1, 4), np.float32) for name in ("t0.0", "t9")}, metadata=metadata)
    with pytest.raises(ModelFormatError, match=r"more than one part: t0\.0\."):
        open_gguf(paths[0])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf: there is no such file"):
        open_gguf(tmp_path / "nothing.gguf")
