from __future__ import annotations

import dataclasses
import json
import re

import pytest

from slipstream.cli.main import main
from slipstream.features import FEATURES, pairs
from slipstream.hw.info import read_hardware
from slipstream.kernels.cpu.native import kernel_sets


def test_inspect_shows_sizes_memory_and_decisions(tiny_folder, capsys):
    assert main(["inspect", str(tiny_folder), "--json", "--kv-dtype", "float16"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"]["layers"] == 2
    assert report["architecture"]["heads"] == "4 query, 2 KV, 8 values each"
    assert report["memory"]["KV per token"] == 2 * 2 * 2 * 8 * 2
    assert report["file"]["tensor data"] == report["architecture"]["parameters"] * 4
    assert report["tokenizer"]["chat template"] == "yes"
    assert report["settings in force"]["kv_dtype"] == "float16  (as set)"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ((), "auto  (beside requests that decode, prompts are cut"),
        (("--tpot-objective", "auto"), "auto  (beside requests that decode, prompts are cut"),
        (("--tpot-objective", "0.05"), "0.05 seconds per token  (as set)"),
        (("--tpot-objective", "1"), "1.0 seconds per token  (as set)"),
        (("--tpot-objective", "off"), "off  (as set)"),
        (("--no-enable-chunked-prefill",), "off  (enable_chunked_prefill is off"),
    ],
)
def test_inspect_says_what_the_objective_is(tiny_folder, capsys, arguments, shown):
    assert main(["inspect", str(tiny_folder), "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["settings in force"]["tpot_objective"].startswith(shown)


@pytest.mark.parametrize("value", ["never", "nan", "-1", "0"])
def test_an_objective_that_is_none_is_refused(tiny_folder, capsys, value):
    assert main(["inspect", str(tiny_folder), "--tpot-objective", value]) == 2
    assert "[scheduler] tpot_objective: must be " in capsys.readouterr().err


def test_inspect_is_readable_too(tiny_folder, capsys):
    assert main(["inspect", str(tiny_folder)]) == 0
    out = capsys.readouterr().out
    assert "Llama" in out
    assert "KV per token = 2 (K, V) x 2 layers x 2 KV heads x 8 values in float16 = 128 bytes" in out


def test_numbers_have_units_and_nothing_is_none_of_python(tiny_folder, capsys, monkeypatch):
    assert main(["inspect", str(tiny_folder)]) == 0
    shown = dict(re.findall(r"^  (\S.*?)  +(\S.*)$", capsys.readouterr().out, re.MULTILINE))
    assert shown["tensor data"].endswith(" kB")
    assert shown["KV per token"] == "128 B"
    assert shown["context"].endswith(" tokens")
    assert shown["block_size"] == "16 tokens  (default)"
    assert shown["max_queued"] == "not set  (default)"
    assert shown["enable_prefix_caching"].startswith("yes  (")
    assert not [name for name, value in shown.items() if "None" in value]
    machine = dataclasses.replace(read_hardware(), cpu_quota=None)
    monkeypatch.setattr("slipstream.cli.inspect.read_hardware", lambda: machine)
    assert main(["inspect", "--hardware"]) == 0
    assert re.search(r"^  quota +none$", capsys.readouterr().out, re.MULTILINE)


def test_inspect_hardware(capsys):
    assert main(["inspect", "--hardware", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["processor"]["threads used"] >= 1
    assert report["memory"]["total"] >= report["memory"]["available"] > 0
    usable = kernel_sets()
    assert report["kernels of the cpu backend"]["used"].startswith(f"{usable[0]} (")
    assert report["kernels of the cpu backend"]["usable"].split(", ") == usable


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [([], 2, "which model?"), (["x", "--hardware"], 2, "takes no MODEL"), (["no-such-model"], 3, "no-such-model")],
)
def test_inspect_bad_input(capsys, arguments, code, message):
    assert main(["inspect", *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.mark.fast
def test_features_prints_every_pair(capsys):
    assert main(["features", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["pairs"]) == len(FEATURES) * (len(FEATURES) - 1) // 2 == len(list(pairs()))
    assert main(["features"]) == 0
    out = capsys.readouterr().out
    for info in FEATURES:
        assert info.feature in out
    for pair in pairs():
        assert pair.note in out
