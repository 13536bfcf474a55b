from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.config.load import load_options, read_sections
from slipstream.config.types import EngineOptions
from slipstream.errors import ConfigError

pytestmark = pytest.mark.fast

TOML = """
[model]
model = "from-file"
max_model_len = 512
[cache]
block_size = 32
[scheduler]
max_num_seqs = 7
policy = "priority"
[engine]
seed = 3
"""


def write(folder: Path, text: str | bytes, name: str = "c.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_toml_file(tmp_path: Path) -> None:
    assert load_options(write(tmp_path, TOML)) == EngineOptions.from_flat(
        model="from-file", max_model_len=512, block_size=32, max_num_seqs=7, policy="priority", seed=3
    )


def test_json_says_the_same(tmp_path: Path) -> None:
    toml = write(tmp_path, TOML)
    same = write(tmp_path, json.dumps(read_sections(toml)), "c.json")
    assert load_options(same) == load_options(toml)


def test_command_line_over_file_over_default(tmp_path: Path) -> None:
    overrides = {"model": "from-line", "max_num_seqs": 9, "max_model_len": None, "num_threads": 2}
    options = load_options(write(tmp_path, TOML), overrides)
    assert options == EngineOptions.from_flat(
        model="from-line",
        max_model_len=512,
        block_size=32,
        max_num_seqs=9,
        policy="priority",
        seed=3,
        num_threads=2,
    )
    assert options.cache.memory_utilization is None


def test_the_model_may_come_from_the_command_line_alone(tmp_path: Path) -> None:
    options = load_options(write(tmp_path, "[cache]\nblock_size = 8\n"), {"model": "m"})
    assert options == EngineOptions.from_flat(model="m", block_size=8)


def test_without_a_file() -> None:
    assert load_options(None, {"model": "m", "block_size": None}) == EngineOptions.from_flat(model="m")
    with pytest.raises(ConfigError, match=r"\[model\] model: no model is named"):
        load_options()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[model]\nmodel = "m"\n[cache]\nblock_size = "16"\n', "[cache] block_size: must be an integer, got '16'."),
        (
            '[model]\nmodel = "m"\n[cache]\nblok_size = 16\n',
            "[cache] blok_size: is not a setting. Did you mean block_size?",
        ),
        ('[model]\nmodel = "m"\n[cahe]\n', "[cahe]: is not a section. Did you mean cache?"),
        ('[model]\nmodel = "m"\n[cache]\nseed = 1\n', "[cache] seed: is not a setting. It belongs to [engine]."),
        ("block_size = 16\n", "block_size: stands outside every section. Put it under [cache]."),
        ("schedular = 16\n", "schedular: stands outside every section. Did you mean scheduler?"),
        ("[cache]\n", "[model] model: no model is named."),
        ("[cache\n", "cannot be parsed: "),
        ("a = " + "[" * 100_000, "cannot be parsed: "),
        ("a = " + "9" * 10_000, "cannot be parsed: "),
    ],
    ids=range(10),
)
def test_a_bad_toml_file_is_named_with_the_setting(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_options(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "must hold sections, not a single value."),
        ("{", "cannot be parsed: "),
        ('{"cache": {"block_size": 8, "block_size": 16}}', "block_size: is given twice. Keep one of the two."),
        (
            '{"model": {"model": "m"}, "cache": {"memory_utilization": NaN}}',
            "[cache] memory_utilization: must be a number",
        ),
        ('{"model": {"model": null}}', "[model] model: must be a string, got None."),
    ],
)
def test_a_bad_json_file(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text, "c.json")
    with pytest.raises(ConfigError) as caught:
        load_options(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_an_override_does_not_hide_what_is_wrong_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[model]\nmodel = "m"\n[cache]\nblock_size = 0\n')
    with pytest.raises(ConfigError, match=r"c\.toml: \[cache\] block_size: must be from 1 to 1024, got 0"):
        load_options(path, {"block_size": 16})


def test_a_bad_override_does_not_blame_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_options(write(tmp_path, TOML), {"block_size": 0})
    assert str(caught.value) == "[cache] block_size: must be from 1 to 1024, got 0."
    with pytest.raises(ConfigError, match=r"^max_num_sequences: is not a setting. Did you mean max_num_seqs\?"):
        load_options(write(tmp_path, TOML), {"max_num_sequences": 1})


@pytest.mark.parametrize("name", ["c.yaml", "config"])
def test_other_kinds_of_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"is neither \.toml nor \.json"):
        load_options(write(tmp_path, TOML, name))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file or directory"):
        load_options(tmp_path / "missing.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.toml: cannot be read: Is a directory"):
        load_options(tmp_path / "folder.toml")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 2\)"):
        load_options(write(tmp_path, b"ab\xff"))
