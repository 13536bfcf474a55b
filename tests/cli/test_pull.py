from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from slipstream.cli import pull as pull_module
from slipstream.cli.main import main
from slipstream.cli.pull_bar import BarProgress
from slipstream.hub.catalog import KnownModel, known_model
from slipstream.hub.download import Pulled
from slipstream.hub.progress import Progress

pytestmark = pytest.mark.fast


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path, bool]]:
    """Calls of pull_known, which is replaced by one that downloads nothing."""
    calls: list[tuple[str, Path, bool]] = []

    def pull_known(model: KnownModel, directory: Path, *, force: bool, progress: Progress) -> Pulled:
        calls.append((model.name, directory, force))
        progress.begin(f"downloading {model.name}", 2000)
        progress.reach(2000)
        return Pulled(model.name, directory / model.name / model.file_name, model.num_bytes, downloaded=True)

    monkeypatch.setattr(pull_module, "pull_known", pull_known)
    return calls


def test_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "--list", "--cache-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "STATE", "LICENCE", "DESCRIPTION"]
    assert lines[1].startswith("smollm2      98.4 MB   not pulled  Apache-2.0")
    assert main(["pull", "--list", "--json", "--cache-dir", str(tmp_path)]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed[0] == {
        "name": "smollm2",
        "description": "SmolLM2 135M Instruct, Q4_1 (the default model)",
        "licence": "Apache-2.0",
        "state": "not pulled",
        "num_bytes": 98_362_432,
        "path": None,
    }


def test_pull_prints_the_path_and_tells_the_rest_on_stderr(
    pulls: list[tuple[str, Path, bool]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "smollm2", "--cache-dir", str(tmp_path)]) == 0
    path = tmp_path / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert capsys.readouterr() == (f"{path}\n", "downloading smollm2 (2.0 kB)\n")
    assert main(["pull", "smollm2", "--cache-dir", str(tmp_path), "--force", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"name": "smollm2", "path": str(path), "num_bytes": 98_362_432, "downloaded": True}
    assert err == ""
    assert pulls == [("smollm2", tmp_path / "models", False), ("smollm2", tmp_path / "models", True)]


def test_the_cache_folder_may_come_from_the_environment(
    pulls: list[tuple[str, Path, bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path / "env"))
    assert main(["pull", "smollm2"]) == 0
    assert main(["pull", "smollm2", "--cache-dir", str(tmp_path / "option")]) == 0
    assert [directory for _, directory, _ in pulls] == [tmp_path / "env" / "models", tmp_path / "option" / "models"]


@pytest.mark.usefixtures("pulls")
def test_the_terms_of_gemma_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "gemma3-270m", "--cache-dir", str(tmp_path)]) == 0
    gemma = known_model("gemma3-270m")
    assert gemma is not None
    assert f"Licence: Gemma Terms of Use. {gemma.notice}\n" in capsys.readouterr().err


def test_a_local_path_needs_no_pull(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"123")
    assert main(["pull", str(file), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"name": str(file), "path": str(file), "num_bytes": 3, "downloaded": False}
    assert "nothing to download" in err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["pull"], 2, "which model?"),
        (["pull", "smollm2", "--list"], 2, "--list takes no MODEL"),
        (["pull", "smollm2", "--include", "*"], 2, "smollm2 is one file"),
        (["pull", "smolm2"], 3, "Did you mean smollm2"),
        (["pull", "./no.gguf"], 3, "no such file"),
    ],
)
def test_mistakes(args: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_the_bar_completes_each_stage() -> None:
    console = Console(record=True, width=100, force_terminal=False)
    with BarProgress(console) as bar:
        bar.begin("first", 1000)
        bar.reach(5000)
        bar.note("A word [in brackets].")
        bar.begin("second", 2000)
    text = console.export_text()
    assert "A word [in brackets]." in text
    assert "first" in text
    assert "1.0/1.0 kB" in text
    assert "2.0/2.0 kB" in text
