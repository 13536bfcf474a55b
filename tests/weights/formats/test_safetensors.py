from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from slipstream.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from slipstream.weights.checkpoint import Checkpoint, TensorInfo
from slipstream.weights.formats.safetensors import open_safetensors

from ..files import raw_safetensors  # noqa: TID252

pytestmark = pytest.mark.fast

CONFIG = {"model_type": "llama", "hidden_size": 8}


def folder_with(tmp_path: Path, config: Any = CONFIG) -> Path:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return tmp_path


def tensors_of(prefix: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{prefix}.f32": torch.randn(3, 5, generator=generator),
        f"{prefix}.f16": torch.randn(2, 4, 3, generator=generator).to(torch.float16),
        f"{prefix}.bf16": torch.randn(7, generator=generator).to(torch.bfloat16),
    }


def write_shards(folder: Path) -> dict[str, torch.Tensor]:
    first, second = tensors_of("a", 1), tensors_of("b", 2)
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    weight_map = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    weight_map |= dict.fromkeys(second, "model-00002-of-00002.safetensors")
    write_index(folder, weight_map)
    return first | second


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def assert_holds(checkpoint: Checkpoint, tensors: dict[str, torch.Tensor]) -> None:
    assert set(checkpoint.tensors) == set(tensors)
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * tensor.element_size()
        assert checkpoint.tensors[name] == TensorInfo(name, tuple(tensor.shape), name[2:].upper(), nbytes)
        expected = tensor.to(torch.float32).numpy()
        np.testing.assert_array_equal(checkpoint.read(name), expected, strict=True)
        np.testing.assert_array_equal(checkpoint.read(name, (1, 2)), expected[1:2], strict=True)
        assert checkpoint.raw(name).tobytes() == tensor.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_one_file(tmp_path: Path, name: str) -> None:
    tensors = tensors_of("a", 0)
    save_file(tensors, folder_with(tmp_path) / "model.safetensors", metadata={"format": "pt"})
    checkpoint: Checkpoint = open_safetensors(tmp_path / name)
    assert (checkpoint.path, checkpoint.format) == (tmp_path / name, "safetensors")
    assert checkpoint.metadata == CONFIG
    assert_holds(checkpoint, tensors)


@pytest.mark.parametrize("name", ["", "model-00002-of-00002.safetensors"])
def test_shards(tmp_path: Path, name: str) -> None:
    tensors = write_shards(folder_with(tmp_path))
    checkpoint = open_safetensors(tmp_path / name)
    assert checkpoint.path == tmp_path
    assert_holds(checkpoint, tensors)


def test_a_file_that_the_index_does_not_list_opens_alone(tmp_path: Path) -> None:
    write_shards(folder_with(tmp_path))
    save_file(tensors_of("c", 3), tmp_path / "other.safetensors")
    assert_holds(open_safetensors(tmp_path / "other.safetensors"), tensors_of("c", 3))


def test_tensor_bytes_need_no_alignment(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    values = np.array([1.5, -2.0], np.float32)
    for spaces in range(4):
        text = json.dumps(header).encode() + b" " * spaces
        (folder_with(tmp_path) / "model.safetensors").write_bytes(raw_safetensors(text, values.tobytes()))
        np.testing.assert_array_equal(open_safetensors(tmp_path).read("w"), values)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    write_shards(folder_with(tmp_path))
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"1 of 2 shards are missing: model-00001-of-00002\.safetensors\."):
        open_safetensors(tmp_path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    tensors = write_shards(folder_with(tmp_path))
    weight_map = {name: f"model-0000{1 if name[0] == 'a' else 2}-of-00002.safetensors" for name in tensors}
    weight_map["lost"] = weight_map["a.f16"]
    del weight_map["b.bf16"]
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelFormatError, match=r"00001\S+ lacks 1 tensors: lost\. .*00002\S+ holds 1 .*: b\.bf16\."):
        open_safetensors(tmp_path)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    write_shards(folder_with(tmp_path))
    save_file(tensors_of("b", 2) | tensors_of("a", 1), tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ModelFormatError, match=r"00002\S+ holds 3 tensors that the index does not give it: a\.bf16"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "model.bin", 7, "a\x00.safetensors"])
def test_an_index_may_only_name_files_of_its_folder(tmp_path: Path, name: object) -> None:
    write_index(folder_with(tmp_path), {"w": name})
    with pytest.raises(ModelFormatError, match="names files that are not safetensors files of its own folder"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"weight_map": {}}', '{"weight_map": []}', "\xff", ""])
def test_a_malformed_index(tmp_path: Path, text: str) -> None:
    (folder_with(tmp_path) / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFormatError, match=r"model\.safetensors\.index\.json: "):
        open_safetensors(tmp_path)


def test_config_is_needed(tmp_path: Path) -> None:
    save_file(tensors_of("a", 0), tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"has no config\.json"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", "[" * 100_000])
def test_a_malformed_config(tmp_path: Path, text: str) -> None:
    save_file(tensors_of("a", 0), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFormatError, match=r"config\.json: "):
        open_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
        ({"quantization_config": {}}, "an unnamed method"),
    ],
)
def test_quantised_checkpoints_are_refused_by_name(tmp_path: Path, config: dict[str, Any], method: str) -> None:
    save_file(tensors_of("a", 0), folder_with(tmp_path, config) / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=f"quantised with {method}, which is not supported"):
        open_safetensors(tmp_path)


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    tensors = {"ok": torch.zeros(2), "i": torch.zeros(2, dtype=torch.int64), "b": torch.zeros(2, dtype=torch.bool)}
    save_file(tensors, folder_with(tmp_path) / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"not supported \(2\): .*i is I64.*Supported are F32, F16, BF16"):
        open_safetensors(tmp_path)


def item(start: int, end: int, shape: list[Any] | None = None, dtype: Any = "F32") -> dict[str, Any]:
    shape = [(end - start) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE = {
    "empty": (b"", "the file is empty"),
    "seven bytes": (b"1234567", "at least 8 bytes, this one 7"),
    "header length": (raw_safetensors({}, length=2**63), f"claims a header of {2**63} bytes"),
    "header beyond the file": (raw_safetensors({}, length=99), "its header needs 99 bytes"),
    "no tensors": (raw_safetensors({}), "holds no tensors"),
    "not an object": (raw_safetensors([1]), "not a JSON object"),
    "not JSON": (raw_safetensors(b"{'a': 1}"), "not valid JSON"),
    "not UTF-8": (raw_safetensors(b'{"\xff": 1}'), "not valid JSON"),
    "nesting": (raw_safetensors(b'{"a": ' + b"[" * 200_000), "not valid JSON"),
    "long number": (raw_safetensors(b'{"a": ' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "name twice": (
        raw_safetensors(b'{"w": ' + json.dumps(item(0, 4)).encode() + b', "w": {}}', bytes(4)),
        "the key w appears twice",
    ),
    "entry": (raw_safetensors({"w": 3}), "without exactly dtype, shape and data_offsets: w"),
    "extra key": (raw_safetensors({"w": item(0, 4) | {"x": 1}}, bytes(4)), "without exactly dtype"),
    "missing key": (raw_safetensors({"w": {"dtype": "F32", "shape": [1]}}, bytes(4)), "without exactly dtype"),
    "metadata": (raw_safetensors({"__metadata__": {"a": 1}, "w": item(0, 4)}, bytes(4)), "not an object of strings"),
    "type": (raw_safetensors({"w": item(0, 4, dtype="F8_E4M3")}, bytes(4)), "w is F8_E4M3"),
    "type as list": (raw_safetensors({"w": item(0, 4, dtype=["F32"])}, bytes(4)), r"w is \['F32'\]"),
    "negative shape": (raw_safetensors({"w": item(0, 4, [-1])}, bytes(4)), r"has the shape \[-1\]"),
    "float shape": (raw_safetensors({"w": item(0, 4, [1.0])}, bytes(4)), r"has the shape \[1\.0\]"),
    "boolean shape": (raw_safetensors({"w": item(0, 4, [True])}, bytes(4)), r"has the shape \[True\]"),
    "shape and size": (
        raw_safetensors({"w": item(0, 4, [2])}, bytes(4)),
        "needs 8 bytes for its shape, its offsets give 4",
    ),
    "shape that overflows": (raw_safetensors({"w": item(0, 4, [2**62, 2**62])}, bytes(4)), "offsets give 4"),
    "offsets reversed": (raw_safetensors({"w": item(8, 4, [1])}, bytes(8)), r"data_offsets \[8, 4\]"),
    "outside": (raw_safetensors({"w": item(0, 8)}, bytes(4)), r"past its end \(1\): w"),
    "overlap": (raw_safetensors({"a": item(0, 8), "b": item(4, 12)}, bytes(12)), "b overlaps the tensor before it"),
    "gap": (raw_safetensors({"a": item(0, 4), "b": item(8, 12)}, bytes(12)), "b leaves a gap before it"),
    "gap at the start": (raw_safetensors({"a": item(4, 8)}, bytes(8)), "a leaves a gap before it"),
    "rest": (raw_safetensors({"a": item(0, 4)}, bytes(9)), "holds 5 bytes after its last tensor"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_refused(tmp_path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    (folder_with(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFormatError, match=message):
        open_safetensors(tmp_path)


def test_a_scalar_and_an_empty_tensor_are_well_formed(tmp_path: Path) -> None:
    header = {"scalar": item(0, 4, []), "empty": item(4, 4, [0, 3])}
    content = raw_safetensors(header, np.float32(2.5).tobytes())
    (folder_with(tmp_path) / "model.safetensors").write_bytes(content)
    checkpoint = open_safetensors(tmp_path)
    assert checkpoint.read("scalar") == 2.5
    assert checkpoint.read("empty").shape == (0, 3)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = folder_with(tmp_path) / "model.safetensors"
    save_file(tensors_of("a", 0), path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFormatError):
            open_safetensors(tmp_path)


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_headers_never_raise_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    path = folder_with(tmp_path) / "model.safetensors"
    save_file(tensors_of("a", 0), path)
    content = bytearray(path.read_bytes())
    header_size = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header_size - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        checkpoint = open_safetensors(tmp_path)
    except ModelFormatError:
        return
    for name, info in checkpoint.tensors.items():
        assert checkpoint.read(name).shape == info.shape


def test_a_folder_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors: there is no such file"):
        open_safetensors(folder_with(tmp_path))
