"""What Python's standard library says about itself: functions with their sources, and paragraphs of documentation."""

from __future__ import annotations

import ast
import inspect
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_SOURCE_LINES = 32
MAX_SOURCE_CHARACTERS = 1200
MIN_PARAGRAPH_WORDS, MAX_PARAGRAPH_WORDS = 25, 150

_LEFT_OUT = frozenset(
    ("test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo", "site-packages", "dist-packages", "ensurepip")
)


@dataclass(frozen=True, slots=True)
class Function:
    """`name` with its module and class; `source` without the docstring."""

    name: str
    arguments: tuple[str, ...]
    source: str
    doc: str


@dataclass(frozen=True, slots=True)
class Library:
    functions: tuple[Function, ...]  # with a docstring
    paragraphs: tuple[tuple[str, str], ...]  # (module, prose)


def read_library(folder: Path | None = None, *, max_files: int | None = None) -> Library:
    """Parse the modules of `folder` (default: the standard library's) in a fixed order; files that are not valid
    Python are left out. max_files: the first so many only."""
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    files = sorted(_files(root))
    random.Random(0).shuffle(files)
    functions: list[Function] = []
    paragraphs: list[tuple[str, str]] = []
    for path in files[:max_files]:
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for name, node in _definitions(tree, module):
            doc = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
            paragraphs += [(module, prose) for prose in _prose(doc)]
            if not isinstance(node, ast.FunctionDef) or not doc:
                continue
            source = _without_docstring(node, text)
            if source is not None:
                arguments = tuple(each.arg for each in node.args.args if each.arg not in ("self", "cls"))
                functions.append(Function(name, arguments, source, doc))
    return Library(tuple(functions), tuple(paragraphs))


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and path.name not in _LEFT_OUT:
            yield from _files(path)
        elif path.suffix == ".py":
            yield path


def _definitions(tree: ast.Module, module: str) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    yield module, tree
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield f"{module}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield f"{module}.{node.name}", node
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{module}.{node.name}.{inner.name}", inner


def _without_docstring(node: ast.FunctionDef, text: str) -> str | None:
    """The function's lines, moved to the left margin; None where they are too many or nothing is left of them."""
    first, last = node.body[0], node.end_lineno
    assert last is not None
    assert first.end_lineno is not None
    lines = text.splitlines()
    if len(node.body) < 2 or last - first.end_lineno > MAX_SOURCE_LINES or last - first.end_lineno < 2:
        return None
    kept = [*lines[node.lineno - 1 : first.lineno - 1], *lines[first.end_lineno : last]]
    indent = len(kept[0]) - len(kept[0].lstrip())
    source = "\n".join(line[indent:] for line in kept)
    return source if len(source) <= MAX_SOURCE_CHARACTERS else None


def _prose(doc: str) -> Iterator[str]:
    """Paragraphs that are sentences: no lists, tables, or examples."""
    for paragraph in re.split(r"\n\s*\n", doc):
        words = paragraph.split()
        plain = sum(word.strip(".,;:!?()'\"").isalpha() for word in words)
        if (
            MIN_PARAGRAPH_WORDS <= len(words) <= MAX_PARAGRAPH_WORDS
            and plain > 0.75 * len(words)
            and ">>>" not in paragraph
            and words[-1].endswith((".", "!", "?"))
        ):
            yield " ".join(words)
