from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.config.env import Environment, read_environment
from slipstream.errors import ConfigError

pytestmark = pytest.mark.fast


def test_nothing_set() -> None:
    assert read_environment({"PATH": "/bin"}) == Environment()


def test_everything_set() -> None:
    values = {"SLIPSTREAM_CACHE_DIR": "/c", "HF_TOKEN": "secret", "HF_HUB_OFFLINE": "1", "NO_COLOR": "0"}
    assert read_environment(values) == Environment(
        cache_dir=Path("/c"), hf_token="secret", hf_hub_offline=True, no_color=True
    )


def test_empty_counts_as_not_set() -> None:
    values = dict.fromkeys(["SLIPSTREAM_CACHE_DIR", "HF_TOKEN", "HF_HUB_OFFLINE", "NO_COLOR"], "")
    assert read_environment(values) == Environment()


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(read_environment({"HF_TOKEN": "secret"}))


def test_paths_become_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert read_environment({"SLIPSTREAM_CACHE_DIR": "~/c"}).cache_dir == Path("/home/someone/c")
    assert read_environment({"SLIPSTREAM_CACHE_DIR": "c"}).cache_dir == Path.cwd() / "c"


@pytest.mark.parametrize(
    ("value", "expected"), [("YES", True), ("on", True), ("true", True), ("off", False), ("0", False)]
)
def test_flags(value: str, expected: bool) -> None:
    assert read_environment({"HF_HUB_OFFLINE": value}).hf_hub_offline is expected


def test_bad_values() -> None:
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE: must be 1 or 0, got 'maybe'"):
        read_environment({"HF_HUB_OFFLINE": "maybe"})
    with pytest.raises(ConfigError, match=r"SLIPSTREAM_CACHEDIR: .* Did you mean SLIPSTREAM_CACHE_DIR\?"):
        read_environment({"SLIPSTREAM_CACHEDIR": "/c"})


def test_reads_the_process_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", "/from/process")
    assert read_environment().cache_dir == Path("/from/process")
