"""What a model asks and says by itself."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from slipstream.engine.llm import LLM
from slipstream.training.default_prompts import default_prompts
from slipstream.training.own_texts import FILE, OwnTexts, read_own_texts, write_own_texts
from slipstream.training.progress import stage
from slipstream.training.stdlib_sources import read_library
from slipstream.training.target_engine import TargetEngine


def write(llm: LLM, folder: Path, questions: int, texts: int, seed: int = 3) -> OwnTexts:
    with stage("Prompts", None, quiet=True) as bar:
        return write_own_texts(llm, folder, questions=questions, texts=texts, seed=seed, stage=bar)


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> LLM:
    return LLM(str(tiny_folder), backend="cpu", num_threads=1, max_model_len=256, max_num_seqs=8)


def test_texts_depend_on_the_seed_and_their_number_alone(llm: LLM, tmp_path: Path) -> None:
    for name in ("whole", "parts", "other"):
        (tmp_path / name).mkdir()
    whole = write(llm, tmp_path / "whole", 30, 6)
    assert len(whole.questions) > 10
    assert len(whole.texts) > 1
    write(llm, tmp_path / "parts", 11, 2)
    path = tmp_path / "parts" / FILE
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-3], lines[-3][:5]]))  # killed while it was writing
    assert write(llm, tmp_path / "parts", 30, 6) == whole
    assert OwnTexts.of(*read_own_texts(tmp_path / "parts")) == whole
    assert write(llm, tmp_path / "other", 30, 6, seed=4) != whole


def test_what_is_there_is_not_written_again(llm: LLM, tmp_path: Path) -> None:
    first = write(llm, tmp_path, 12, 3)
    size = (tmp_path / FILE).stat().st_size
    assert write(llm, tmp_path, 12, 3) == first
    assert (tmp_path / FILE).stat().st_size == size
    asked, told = read_own_texts(tmp_path)
    assert sorted(asked) == list(range(12))
    assert 1 <= len(told) <= 3  # a question may leave no room for an answer
    assert all(text in asked.values() for text in first.questions)


@pytest.mark.fast
def test_prompts_take_the_model_s_own_once_and_in_order() -> None:
    own = OwnTexts(
        tuple(f"question {i}?" for i in range(40)), tuple(f"Text {i}. It is longer. Much." for i in range(20))
    )
    library = read_library(max_files=30)
    found = list(islice(default_prompts(library, 1, own), 300))
    assert found == list(islice(default_prompts(library, 1, own), 300))
    asked = [prompt.messages[0][1] for prompt in found if prompt.domain == "own question"]
    assert asked == list(own.questions)
    about = [
        prompt
        for prompt in found
        if prompt.domain in {f"own {kind}" for kind in ("summarise", "rewrite", "context", "translate")}
    ]
    assert len(about) == 20
    assert sum(prompt.domain.startswith("own") for prompt in found[:60]) > 30
    assert "own question" not in {prompt.domain for prompt in islice(default_prompts(library, 1), 300)}


@pytest.mark.fast
def test_broken_lines_are_left_out(tmp_path: Path) -> None:
    lines = [
        '{"kind": "question", "number": 0, "text": "one?"}',
        "{",
        '{"kind": "other"}',
        "3",
        json.dumps({"kind": "text", "number": 4, "text": ""}),
        '{"kind": "text", "number": 1e999, "text": ""}',
        "[" * 100_000,
    ]
    (tmp_path / FILE).write_bytes("\n".join(lines).encode() + b"\n\xff\x00")
    assert read_own_texts(tmp_path) == ({0: "one?"}, {4: ""})
    assert read_own_texts(tmp_path / "nowhere") == ({}, {})


def test_a_model_without_a_chat_template_asks_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_folder.iterdir():
        if file.name == "tokenizer_config.json":
            values = json.loads(file.read_text())
            values.pop("chat_template", None)
            (bare / file.name).write_text(json.dumps(values))
        elif file.name != "chat_template.jinja":
            (bare / file.name).symlink_to(file)
    engine = TargetEngine(model=str(bare), num_threads=1, cache_dir=tmp_path / "cache", quiet=True)
    plan, _ = engine.inspect()
    assert engine.own_texts(plan, tmp_path, tokens=100, seed=0) == OwnTexts()
