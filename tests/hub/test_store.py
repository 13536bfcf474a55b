from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import ModelNotFoundError
from slipstream.hub.catalog import known_model
from slipstream.hub.store import list_models, models_dir, resolve_model

pytestmark = pytest.mark.fast


def pretend_pulled(cache: Path, name: str, missing_bytes: int = 0) -> Path:
    """A sparse file of the right size (which is all that resolving looks at)."""
    model = known_model(name)
    assert model is not None
    path = models_dir(cache) / name / model.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(model.num_bytes - missing_bytes)
    return path


def test_a_pulled_name(tmp_path: Path) -> None:
    path = pretend_pulled(tmp_path, "smollm2")
    assert resolve_model("smollm2", tmp_path) == path
    assert resolve_model("SmolLM2", tmp_path) == path


def test_a_known_name_that_is_not_here_says_how_to_pull_it(tmp_path: Path) -> None:
    pretend_pulled(tmp_path, "smollm2", missing_bytes=1)
    for name in ("smollm2", "gemma3-270m"):
        with pytest.raises(ModelNotFoundError, match=f"`slipstream pull {name}`") as caught:
            resolve_model(name, tmp_path)
        assert caught.value.exit_code == 3


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model(str(file), tmp_path) == file
    assert resolve_model("model.gguf", tmp_path) == Path("model.gguf")
    assert resolve_model("org/name", tmp_path) == Path("org/name")
    assert resolve_model("~/model.gguf", tmp_path) == file


def test_a_known_name_goes_before_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pretend_pulled(tmp_path, "smollm2")
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("smollm2", tmp_path) == path
    assert resolve_model("./smollm2", tmp_path) == Path("smollm2")


def test_a_pulled_repository(tmp_path: Path) -> None:
    folder = models_dir(tmp_path) / "org--name"
    folder.mkdir(parents=True)
    (folder / "one-00002-of-00002.gguf").touch()
    first = folder / "one-00001-of-00002.gguf"
    first.touch()
    assert resolve_model("org/name", tmp_path) == first
    (folder / "other.gguf").touch()
    assert resolve_model("org/name", tmp_path) == first
    (folder / "model.safetensors").touch()
    assert resolve_model("org/name", tmp_path) == folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/name", "`slipstream pull org/name`"),
        ("smolm2", "Did you mean smollm2"),
        ("zzz", "pull --list"),
        ("", "no model ''"),
        ("./smollm3.gguf", r"\./smollm3\.gguf: no such file"),
        ("dir/model.gguf", r"dir/model\.gguf: no such file"),
        ("a/b/c", "a/b/c: no such file"),
        ("../org--name", "no such file"),
        ("a" * 5000, "cannot be looked up: .*too long"),
        ("a" * 300 + "/b", "cannot be looked up: .*too long"),
        ("~nobody-of-this-name/x", "cannot be looked up"),
    ],
)
def test_what_is_not_there(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        resolve_model(name, tmp_path)


def test_list(tmp_path: Path) -> None:
    path = pretend_pulled(tmp_path, "smollm2")
    kept = models_dir(tmp_path) / ".partial" / "gemma3-270m"
    kept.mkdir(parents=True)
    (kept / "part1.whl").touch()
    repository = models_dir(tmp_path) / "org--some--name"
    repository.mkdir()
    (repository / "model.safetensors").write_bytes(b"12345")
    assert [(m.name, m.state, m.num_bytes, m.path) for m in list_models(tmp_path)] == [
        ("smollm2", "pulled", 98_362_432, path),
        ("gemma3-270m", "interrupted", 253_113_024, None),
        ("org/some--name", "pulled", 5, repository),
    ]
    assert [m.state for m in list_models(tmp_path / "empty")] == ["not pulled", "not pulled"]
