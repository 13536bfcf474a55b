from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.errors import InsufficientMemoryError, ModelError, ModelFormatError, ModelNotFoundError
from slipstream.weights.formats import mapped
from slipstream.weights.open import open_checkpoint

from .files import write_gguf

pytestmark = pytest.mark.fast

VALUES = {"w": np.arange(8, dtype=np.float32).reshape(2, 4)}


def gguf_at(path: Path) -> Path:
    return write_gguf(path, VALUES)


def safetensors_at(path: Path) -> Path:
    (path.parent / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file(VALUES, path)
    return path


def split_at(folder: Path) -> list[Path]:
    paths = [folder / f"m-0000{number + 1}-of-00002.gguf" for number in range(2)]
    for number, path in enumerate(paths):
        write_gguf(path, {f"t{number}": VALUES["w"]}, metadata={"split.no": number, "split.count": 2})
    return paths


def test_gguf_is_known_by_its_content(tmp_path: Path) -> None:
    assert open_checkpoint(gguf_at(tmp_path / "model.bin")).format == "gguf"


def test_a_link_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(gguf_at(tmp_path / "m.gguf"))
    assert list(open_checkpoint(str(link)).tensors) == ["w"]


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_safetensors(tmp_path: Path, name: str) -> None:
    safetensors_at(tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path / name)
    assert checkpoint.format == "safetensors"
    np.testing.assert_array_equal(checkpoint.read("w"), VALUES["w"])


def test_shards_by_folder_or_index(tmp_path: Path) -> None:
    safetensors_at(tmp_path / "a.safetensors")
    save_file({"v": VALUES["w"]}, tmp_path / "b.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}))
    for path in (tmp_path, index, tmp_path / "b.safetensors"):
        assert set(open_checkpoint(path).tensors) == {"v", "w"}


def test_a_folder_with_one_gguf_file(tmp_path: Path) -> None:
    path = gguf_at(tmp_path / "m.gguf")
    (tmp_path / "README.md").write_text("hello")
    assert open_checkpoint(tmp_path).path == path


def test_a_folder_with_a_split_model(tmp_path: Path) -> None:
    split_at(tmp_path)
    assert list(open_checkpoint(tmp_path).tensors) == ["t0", "t1"]


def test_a_folder_with_one_oddly_named_safetensors_file(tmp_path: Path) -> None:
    safetensors_at(tmp_path / "weights.safetensors")
    assert list(open_checkpoint(tmp_path).tensors) == ["w"]


@pytest.mark.parametrize("extra", ["gguf", "split", "safetensors"])
def test_folders_with_several_models_are_refused(tmp_path: Path, extra: str) -> None:
    gguf_at(tmp_path / "a.gguf")
    if extra == "gguf":
        gguf_at(tmp_path / "b.gguf")
    elif extra == "split":
        split_at(tmp_path)
    else:
        safetensors_at(tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"holds more than one model: a\.gguf, .*Name the file to use"):
        open_checkpoint(tmp_path)


def test_several_safetensors_files_without_an_index(tmp_path: Path) -> None:
    safetensors_at(tmp_path / "a.safetensors")
    safetensors_at(tmp_path / "b.safetensors")
    with pytest.raises(ModelFormatError, match=r"holds a\.safetensors, b\.safetensors, but neither"):
        open_checkpoint(tmp_path)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelFormatError, match=r"pickle files.*never loaded here: pytorch_model\.bin\."):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelFormatError, match=r"pickle files.*never loaded here"):
        open_checkpoint(tmp_path / "pytorch_model.bin")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="the folder is empty"):
        open_checkpoint(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf or \.safetensors file, only notes\.txt"):
        open_checkpoint(tmp_path)


def test_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelFormatError, match=r"neither a GGUF nor a safetensors file; it begins with b'hell'"):
        open_checkpoint(tmp_path / "notes.txt")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelFormatError, match="the file is empty"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["nothing", "file/inside"])
def test_a_path_that_leads_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelNotFoundError, match="there is no such file or folder"):
        open_checkpoint(tmp_path / name)


def test_broken_and_circular_links(tmp_path: Path) -> None:
    broken, circular = tmp_path / "broken.gguf", tmp_path / "circular.gguf"
    broken.symlink_to(tmp_path / "gone")
    circular.symlink_to(circular)
    with pytest.raises(ModelNotFoundError, match=r"broken\.gguf: is a link to .*gone, which does not exist"):
        open_checkpoint(broken)
    with pytest.raises(ModelNotFoundError, match=r"circular\.gguf: cannot be read: "):
        open_checkpoint(circular)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFormatError, match="is not a regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")


def test_a_path_too_long_for_the_system(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        open_checkpoint(tmp_path / ("x" * 5000))


def test_a_file_that_memory_cannot_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_at(tmp_path / "m.gguf")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mapped.mmap, "mmap", refuse)
    with pytest.raises(InsufficientMemoryError, match=r"m\.gguf: does not fit into the memory") as refused:
        open_checkpoint(path)
    assert refused.value.exit_code == 5


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faked, because root may read everything."""
    path = gguf_at(tmp_path / "m.gguf")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(mapped.mmap, "mmap", refuse)
    with pytest.raises(ModelNotFoundError, match=r"m\.gguf: cannot be read: permission denied"):
        open_checkpoint(path)
