from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from slipstream.training.default_prompts import default_prompts
from slipstream.training.stdlib_sources import Library, read_library

pytestmark = pytest.mark.fast

MODULE = '''"""{prose}"""

def outer(first, second=1):
    """Say what comes of both.

    {prose}
    """
    total = first + second
    if total > 3:
        return total
    return None

class Thing:
    def method(self, value):
        """Change the value."""
        self.value = value
        self.count = 1
        return self

def without(value):
    value += 1
    value += 2
    return value
'''
PROSE = "This text is about things that " + "have many words and say little about anything, " * 4 + "as texts do."


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("lib")
    (folder / "one.py").write_text(MODULE.format(prose=PROSE))
    (folder / "broken.py").write_text("def (:")
    (folder / "test").mkdir()
    (folder / "test" / "left_out.py").write_text(MODULE.format(prose=PROSE))
    return read_library(folder)


def test_functions_come_without_their_docstring(library: Library) -> None:
    assert [each.name for each in library.functions] == ["one.outer", "one.Thing.method"]
    outer, method = library.functions
    assert outer.arguments == ("first", "second")
    assert outer.source.splitlines() == [
        "def outer(first, second=1):",
        "    total = first + second",
        "    if total > 3:",
        "        return total",
        "    return None",
    ]
    assert method.source.startswith("def method(self, value):\n    self.value = value\n")
    assert method.arguments == ("value",)
    assert library.paragraphs == (("one", " ".join(PROSE.split())),) * 2


def test_prompts_are_a_function_of_the_seed(tmp_path: Path) -> None:
    standard = read_library(max_files=30)
    first = list(islice(default_prompts(standard, 1), 300))
    assert first == list(islice(default_prompts(standard, 1), 300))
    assert first != list(islice(default_prompts(standard, 2), 300))
    assert len({prompt.messages for prompt in first}) == 300
    kinds = Counter(prompt.domain for prompt in first)
    assert len(kinds) == 12
    assert min(kinds.values()) >= 3


def test_a_small_library_repeats_itself_rather_than_hang(library: Library) -> None:
    few = Library(library.functions[:1], library.paragraphs * 2)
    assert len(list(islice(default_prompts(few, 0), 3000))) == 3000
