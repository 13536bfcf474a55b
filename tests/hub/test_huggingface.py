from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.errors import DiskSpaceError, DownloadError, ModelFormatError, UsageError
from slipstream.hub.huggingface import HuggingFaceHub, RemoteFile, pull_repository, select_files
from slipstream.hub.paths import is_repository

from .fakes import Recorder

pytestmark = pytest.mark.fast

SAFETENSORS = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer.model",
    "chat_template.jinja",
    "LICENSE",
)
JUNK = (
    "pytorch_model.bin",
    "model.pkl",
    "weights.pt",
    "README.md",
    "code.py",
    ".gitattributes",
    "original/x.safetensors",
)


def remote(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, len(name)) for name in names]


@dataclass
class FakeHub:
    names: tuple[str, ...]
    lose: tuple[str, ...] = ()
    downloads: list[list[str]] = field(default_factory=list)

    def files(self, repository: str) -> tuple[str, list[RemoteFile]]:
        return "c0ffee", remote(*self.names)

    def download(self, repository: str, commit: str, names: Sequence[str], directory: Path) -> None:
        assert commit == "c0ffee"
        self.downloads.append(list(names))
        for name in names:
            if name not in self.lose:
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (directory / name).write_text(name)


def test_only_weights_and_texts_are_selected() -> None:
    assert [f.name for f in select_files("org/name", remote(*SAFETENSORS, *JUNK), None)] == list(SAFETENSORS)


def test_pickles_alone_are_refused() -> None:
    with pytest.raises(ModelFormatError, match=r"org/name.*pickled weights are never loaded"):
        select_files("org/name", remote("config.json", "pytorch_model.bin"), None)


def test_one_of_several_quantisations_must_be_chosen() -> None:
    files = remote("config.json", "m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")
    with pytest.raises(UsageError, match=r"2 GGUF models.*m-Q4_K_M\.gguf.*--include"):
        select_files("org/name", files, None)
    assert [f.name for f in select_files("org/name", files, "*Q8_0*")] == [
        "config.json",
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
    ]
    with pytest.raises(ModelFormatError, match=r"no weight file matches '\*Q2\*'"):
        select_files("org/name", files, "*Q2*")


def test_pull_and_pull_again(tmp_path: Path) -> None:
    hub = FakeHub(SAFETENSORS + JUNK)
    progress = Recorder()
    pulled = pull_repository("org/name", tmp_path, hub=hub, progress=progress)
    assert pulled.path == tmp_path / "org--name"
    assert {path.name for path in pulled.path.iterdir()} == set(SAFETENSORS)
    assert pulled.num_bytes == sum(map(len, SAFETENSORS))
    assert progress.notes == ["org/name: 6 files, 83 B."]
    assert not pull_repository("org/name", tmp_path, hub=hub).downloaded
    assert len(hub.downloads) == 1
    assert pull_repository("org/name", tmp_path, hub=hub, force=True).downloaded


def test_a_second_quantisation_joins_the_first(tmp_path: Path) -> None:
    hub = FakeHub(("a.gguf", "b.gguf"))
    pull_repository("org/name", tmp_path, include="a.gguf", hub=hub)
    pulled = pull_repository("org/name", tmp_path, include="b.gguf", hub=hub)
    assert {path.name for path in pulled.path.iterdir()} == {"a.gguf", "b.gguf"}
    assert not pull_repository("org/name", tmp_path, include="a*", hub=hub).downloaded


def test_an_incomplete_download_is_an_error_and_not_published(tmp_path: Path) -> None:
    hub = FakeHub(SAFETENSORS, lose=("model.safetensors",))
    with pytest.raises(DownloadError, match=r"incomplete: model\.safetensors.*goes on"):
        pull_repository("org/name", tmp_path, hub=hub)
    assert not (tmp_path / "org--name").exists()
    hub.lose = ()
    assert pull_repository("org/name", tmp_path, hub=hub).downloaded


def test_disk_space_is_checked_first(tmp_path: Path) -> None:
    hub = FakeHub(SAFETENSORS)
    with pytest.raises(DiskSpaceError, match="pulling org/name needs"):
        pull_repository("org/name", tmp_path, hub=hub, free=lambda _: 1000)
    assert hub.downloads == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("org/name", True), ("Org-1/na_me.v2", True), ("name", False), ("a/b/c", False), ("../x", False), ("/x", False)],
)
def test_is_repository(name: str, expected: bool) -> None:
    assert is_repository(name) is expected


def test_no_network_is_a_download_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    def fail_with(error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(HfApi, "model_info", fail)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)

    for error in (HTTPError("no route"), OfflineModeIsEnabled("offline")):
        fail_with(error)
        with pytest.raises(DownloadError, match=r"org/name: the Hugging Face Hub cannot be reached.*network"):
            HuggingFaceHub().files("org/name")
    fail_with(LocalEntryNotFoundError("not in the cache"))
    with pytest.raises(DownloadError, match="cannot be reached"):
        HuggingFaceHub().download("org/name", "c0ffee", ["config.json"], tmp_path)


def test_a_refusal_of_the_hub_is_a_download_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, Response

    def refuse(*_: object, **__: object) -> None:
        raise RepositoryNotFoundError("Repository Not Found.\nMore.", response=Response(404, request=SimpleNamespace()))

    monkeypatch.setattr(HfApi, "model_info", refuse)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(DownloadError, match=r"refused: Repository Not Found\.\s+Check the name") as caught:
        HuggingFaceHub().files("org/nmae")
    assert caught.value.exit_code == 6
    with pytest.raises(DownloadError, match="refused"):
        HuggingFaceHub().download("org/nmae", "c0ffee", [], tmp_path)
