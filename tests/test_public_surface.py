"""What `import slipstream` gives, what it costs, and rules that hold for every file of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipstream

PACKAGE = Path(slipstream.__file__).parent
HEAVY = ("torch", "numpy", "transformers", "tokenizers", "jinja2", "rich", "typer", "huggingface_hub", "safetensors")


def trees() -> Iterator[tuple[str, ast.Module]]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    for path in files:
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> set[str]:
    """Top-level names of everything imported anywhere in a file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_all_is_sorted_importable_and_complete() -> None:
    assert dir(slipstream) == sorted(slipstream.__all__)
    assert len(set(slipstream.__all__)) == len(slipstream.__all__)
    for name in slipstream.__all__:
        value = getattr(slipstream, name)
        assert value.__name__ == name
        assert value.__module__.startswith("slipstream.")
        assert value.__doc__
    names: dict[str, object] = {}
    exec("from slipstream import *", names)
    assert names.keys() - {"__builtins__"} == set(slipstream.__all__)


def test_what_type_checkers_see_is_what_is_there() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == slipstream._HOME
    assert seen.keys() == set(slipstream.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        slipstream.LLMs  # noqa: B018


def test_importing_costs_nothing() -> None:
    loaded = run("import slipstream, sys; print(*(name for name in sys.modules))").split()
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)
    assert [name for name in loaded if name.startswith("slipstream.")] == []


def test_everything_but_a_backend_is_imported_without_torch() -> None:
    code = "import slipstream, sys; [getattr(slipstream, name) for name in slipstream.__all__]; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run(code).split()}
    assert not loaded & {"torch", "transformers", "typer", "huggingface_hub"}


def test_torch_is_imported_by_the_reference_backend_and_training_only() -> None:
    users = {name for name, tree in trees() if "torch" in imports(tree)}
    assert users
    assert {name for name in users if not name.startswith(("kernels/reference/", "training/"))} == set()


def test_test_only_packages_and_pickle_are_not_imported() -> None:
    banned = {"transformers", "gguf", "pickle", "pytest", "hypothesis", "scipy", "sentencepiece"}
    assert {name: imports(tree) & banned for name, tree in trees() if imports(tree) & banned} == {}


def test_no_global_statements() -> None:
    assert [name for name, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Global)] == []


def test_the_environment_is_read_in_one_file() -> None:
    names = {"environ", "getenv", "putenv", "environb", "unsetenv"}
    users = set()
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in names:
                users.add(name)
            if isinstance(node, ast.ImportFrom) and node.module == "os" and {a.name for a in node.names} & names:
                users.add(name)
    assert users == {"config/env.py"}


def test_no_module_level_containers_that_can_change() -> None:
    """A module's own dict, list or set is state that two engines in one process would share."""
    found = []
    for name, tree in trees():
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            mutable = isinstance(value, ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
            if not mutable or {getattr(target, "id", "") for target in targets} == {"__all__"}:
                continue
            names = {getattr(target, "id", "") for target in targets}
            if names & set(_changed(tree)):
                found.append((name, names))
    assert found == []


def _changed(tree: ast.Module) -> Iterator[str]:
    """Names that something is stored into, deleted from or added to."""
    methods = {"append", "extend", "add", "update", "pop", "clear", "setdefault", "remove", "discard", "insert"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield getattr(node.value, "id", "")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            yield getattr(node.func.value, "id", "")
