from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.training.prompts import Prompt, read_prompts

pytestmark = pytest.mark.fast

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1)
LINES = st.one_of(
    st.fixed_dictionaries({"prompt": TEXTS}, optional={"domain": TEXTS, "id": st.integers()}),
    st.fixed_dictionaries({"turns": st.lists(TEXTS, min_size=1)}, optional={"category": TEXTS}),
    st.fixed_dictionaries(
        {
            "messages": st.lists(TEXTS, min_size=1, max_size=2).map(
                lambda texts: [{"role": "user", "content": text} for text in texts]
            )
        }
    ),
)


def expected(entry: dict[str, object]) -> Prompt:
    domain = str(entry.get("domain", entry.get("category", "data")))
    if "messages" in entry:
        return Prompt(tuple(("user", each["content"]) for each in entry["messages"]), domain)  # type: ignore[attr-defined]
    text = entry["prompt"] if "prompt" in entry else entry["turns"][0]  # type: ignore[index]
    return Prompt.of(str(text), domain)


@settings(max_examples=40, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=5), st.booleans())
def test_jsonl(tmp_path_factory: pytest.TempPathFactory, entries: list[dict[str, object]], ascii_only: bool) -> None:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n\n".join(json.dumps(entry, ensure_ascii=ascii_only) for entry in entries), encoding="utf-8")
    assert read_prompts(path) == [expected(entry) for entry in entries]


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_text(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("data") / "data.txt"
    path.write_text("\r\n\n".join(lines), encoding="utf-8")
    assert read_prompts(path) == [Prompt.of(line) for line in lines]


def test_what_the_assistant_says_last_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    roles = ("system", "user", "assistant", "user", "assistant")
    path.write_text(json.dumps({"messages": [{"role": role, "content": role} for role in roles]}))
    assert read_prompts(path) == [Prompt(tuple((role, role) for role in roles[:4]), "data")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected an object, not list"),
        ("{}", "exactly one of"),
        ('{"prompt": "a", "turns": ["b"]}', "exactly one of"),
        ('{"prompt": " "}', "prompt must hold a text"),
        ('{"prompt": 3}', "prompt must hold a text"),
        ('{"turns": []}', "turns must be a list"),
        ('{"turns": [7]}', "turns must hold a text"),
        ('{"prompt": "a", "domain": 3}', "domain or category"),
        ('{"messages": "a"}', "messages must be a list"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "a message has a role"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "must end with one of the user"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "good"}\n' + line)
    with pytest.raises(UsageError, match=problem) as caught:
        read_prompts(path)
    assert caught.value.where == f"{path} line 2"


def test_files_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UsageError, match="has no prompts"):
        read_prompts(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"good\nb\xe4d\n")
    with pytest.raises(UsageError, match="not valid UTF-8") as caught:
        read_prompts(tmp_path / "latin.txt")
    assert caught.value.where == f"{tmp_path / 'latin.txt'} line 2"
