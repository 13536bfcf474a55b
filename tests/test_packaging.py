"""What the package promises about itself: its metadata, its imports, its rooms."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, metadata, requires
from pathlib import Path

import pytest

import slipstream
from slipstream.version import installed_version

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "slipstream").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def room_path(source: Path) -> str:
    return source.relative_to(ROOT / "src" / "slipstream").as_posix()


def test_metadata() -> None:
    assert installed_version() == PROJECT["project"]["version"]
    assert metadata("slipstream-llm")["License-Expression"] == "Apache-2.0"
    (script,) = entry_points(group="console_scripts", name="slipstream")
    assert script.value == "slipstream.cli.main:run"


def test_the_version_is_stated_once() -> None:
    version = re.escape(PROJECT["project"]["version"])
    stated = re.compile(rf"version\w*\s*=\s*[\"']{version}[\"']")
    assert [path.name for path in SOURCES if stated.search(path.read_text())] == []


def test_a_plain_install_has_no_torch() -> None:
    plain = [requirement for requirement in requires("slipstream-llm") or [] if "extra ==" not in requirement]
    names = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in plain}
    assert "numpy" in names
    assert names.isdisjoint({"torch", "triton", "ray", "transformers", "gguf", "pytest"})


def test_the_torch_extra_is_pinned() -> None:
    assert PROJECT["project"]["optional-dependencies"]["torch"] == ["torch==2.13.0"]


def test_importing_the_package_is_light() -> None:
    code = "import sys, slipstream; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "slipstream" in done.stdout.split()
    assert set(done.stdout.split()).isdisjoint({"torch", "numpy", "typer", "transformers", "tokenizers", "jinja2"})


def test_rooms_depend_downwards() -> None:
    """The contracts are in pyproject.toml, [tool.importlinter]."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=room_path)
def test_house_rules(source: Path) -> None:
    """No `global`; the environment is read in one file; torch, triton, ray and pickle stay with their owners."""
    tree = ast.parse(source.read_text())
    room = room_path(source)
    imported: set[str] = set()
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"line {node.lineno}"
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            imported.add(node.module.partition(".")[0])
            as_name = node.module == "slipstream" and any(alias.name == "_native" for alias in node.names)
            if as_name or node.module == "slipstream._native":
                assert room.startswith(("hw/", "kernels/", "spec/", "text/", "weights/")), (
                    f"line {node.lineno} imports _native"
                )
        elif isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
            assert room == "config/env.py", f"line {node.lineno} reads the environment"
    assert "pickle" not in imported
    if not room.startswith(("kernels/reference/", "training/")):
        assert imported.isdisjoint({"torch"})
    assert imported.isdisjoint({"transformers", "gguf"})


def test_the_type_marker_and_the_stub_are_there() -> None:
    package = ROOT / "src" / "slipstream"
    assert (package / "py.typed").is_file()
    stub = ast.parse((package / "_native.pyi").read_text())
    from slipstream import _native

    declared = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert declared == {name for name in dir(_native) if not name.startswith("_")}
    assert str(package) in list(slipstream.__path__)
