"""The thread team when its members lose their processors: the same bits, nobody lost, nothing touched too late."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from transformers import LlamaConfig

from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import ThreadPool, kernel_sets
from slipstream.kernels.cpu.record import RecordedModel
from slipstream.models.build import kv_spec, load_model
from slipstream.models.family import Model
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.harness import random_prompts, save, tiny_model
from tests.models.paged import PagedRunner
from tests.native.test_program import SIZES

pytestmark = pytest.mark.fast
K = cpu_kernels(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    checkpoint = open_safetensors(save(tiny_model(LlamaConfig(**SIZES)), tmp_path_factory.mktemp("model")))
    model = load_model(checkpoint, K, max_position=128)
    checkpoint.close()
    return model


def steps(model: Model, pool: ThreadPool) -> list[np.ndarray]:
    """Prefills, decodes and mixed steps through one recorded program."""
    runner = PagedRunner(model, K, block_size=8)
    runner._model = RecordedModel(model, runner.kv, pool, kernel_sets()[0])  # type: ignore[assignment]
    prompts = random_prompts(77, [20, 1, 33], seed=3)
    out: list[np.ndarray] = []
    for step in ({"0": prompts[0]}, {"0": [5], "1": prompts[1]}, {"0": [6], "2": prompts[2]}):
        out += runner.step(step).values()
    for token in range(12):
        out += runner.step({"0": [token], "1": [token + 1]} if token % 3 == 0 else {"0": [token]}).values()
    return out


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("stalled", [None, 0, 1])
def test_bits_do_not_depend_on_who_computes_what(model: Model, threads: int, stalled: int | None) -> None:
    expected = steps(model, ThreadPool(1))
    pool = ThreadPool(threads)
    if stalled is not None:
        pool.stall(stalled, 300)
    for a, b in zip(steps(model, pool), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_member_that_comes_back_after_its_program_is_gone(model: Model) -> None:
    spec = kv_spec(model.config)
    pool = ThreadPool(3)
    pool.stall(2, 2000)
    batch = PagedRunner(model, K, block_size=16)
    expected = batch.step({"a": [1, 2, 3]})["a"]
    for _ in range(20):
        runner = PagedRunner(model, K, block_size=spec.block_size)
        runner._model = RecordedModel(model, runner.kv, pool, kernel_sets()[0])  # type: ignore[assignment]
        np.testing.assert_array_equal(runner.step({"a": [1, 2, 3]})["a"], expected)
        del runner


def test_programs_of_one_team_take_turns(model: Model) -> None:
    pool = ThreadPool(2)
    pool.stall(1, 200)
    runners = [PagedRunner(model, K, block_size=8) for _ in range(3)]
    plain = PagedRunner(model, K, block_size=8)
    for runner in runners:
        runner._model = RecordedModel(model, runner.kv, pool, "scalar")  # type: ignore[assignment]
    for token in range(8):
        expected = plain.step({"a": [token]})["a"]
        for runner in runners:
            np.testing.assert_array_equal(runner.step({"a": [token]})["a"], expected)


def test_a_forked_child_computes_alone_and_ends() -> None:
    code = """
import os, sys
import numpy as np
from slipstream.kernels.cpu.native import PackedMatrix, Program, Sampler, ThreadPool, kernel_sets

pool = ThreadPool(3)
sampler = Sampler(pool, kernel_sets()[0])
logits = np.eye(6, 50, dtype=np.float32)
draws = [(i, (0.0, 0, 1.0, 0.0, 0, 0)) for i in range(6)]
data = np.ones(64 * 64, np.float32).view(np.uint8)
program = Program(pool, kernel_sets()[0])
assert sampler.draw(logits, draws) == ([0, 1, 2, 3, 4, 5], [])
child = os.fork()
if child == 0:
    assert sampler.draw(logits, draws) == ([0, 1, 2, 3, 4, 5], [])
    matrix = PackedMatrix("F32", 64, 64, data, pool)
    row = np.empty(64, np.float32)
    matrix.unpack_row(63, row)
    assert row.tolist() == [1.0] * 64
    del program, sampler, pool
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert sampler.draw(logits, draws) == ([0, 1, 2, 3, 4, 5], [])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
