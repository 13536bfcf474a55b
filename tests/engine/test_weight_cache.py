"""Starting from cached weights: the same numbers, the memory that is really held, and nothing imported in vain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.tiny_folder import write_tiny_folder
from tests.weights.files import QUANT_TYPES, random_blocks, write_gguf

from slipstream.config.types import EngineOptions
from slipstream.engine.loading import LoadedEngine, inspect_model, load_engine
from slipstream.engine.protocol import GenerationRequest
from slipstream.kernels.select import select_kernels
from slipstream.models.build import load_model
from slipstream.sampling.logprobs import TokenLogprob
from slipstream.sampling.params import SamplingParams
from slipstream.weights.cached_loader import load_cached
from slipstream.weights.loader import load_weights
from slipstream.weights.open import open_checkpoint
from slipstream.weights.slots import TensorSlot

pytestmark = pytest.mark.fast

CPU = select_kernels("cpu", num_threads=2)


def options(model: Path, **settings: object) -> EngineOptions:
    return EngineOptions.from_flat(model=str(model), num_threads=1, num_blocks=40, **({"backend": "cpu"} | settings))


def answer(loaded: LoadedEngine) -> list[TokenLogprob]:
    params = SamplingParams(max_tokens=6, logprobs=5, ignore_eos=True, temperature=0.0)
    loaded.core.add(GenerationRequest("a", (1, 2, 3, 4, 5), params))
    found: list[TokenLogprob] = []
    while loaded.core.has_work:
        found += [entry for delta in loaded.core.step() for entry in delta.logprobs]
    assert len(found) == 6
    return found


def test_answers_are_the_same_bit_for_bit(tiny_folder: Path, tmp_path: Path) -> None:
    without = load_engine(options(tiny_folder, weight_cache=False), cache_dir=tmp_path)
    assert not (tmp_path / "packed").exists()
    written = load_engine(options(tiny_folder), cache_dir=tmp_path)
    [file] = (tmp_path / "packed").glob("*.packed")
    stamp = file.stat()
    mapped = load_engine(options(tiny_folder), cache_dir=tmp_path)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
    assert answer(without) == answer(written) == answer(mapped)
    assert [each.plan.options.weight_cache for each in (without, written, mapped)] == [False, True, True]
    assert written.plan.warnings == mapped.plan.warnings == ()


def test_a_cache_that_cannot_be_written_is_one_warning_and_a_decision(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("in the way")
    loaded = load_engine(options(tiny_folder), cache_dir=tmp_path)
    [warning] = loaded.plan.warnings
    [decision] = [each for each in loaded.plan.decisions if each.field == "weight_cache"]
    assert "not kept for the next start" in warning
    assert decision.effective is loaded.plan.options.weight_cache is False
    assert decision.why in warning
    assert answer(loaded) == answer(load_engine(options(tiny_folder, weight_cache=False)))


def test_a_changed_model_is_packed_again(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model", seed=0)
    first = answer(load_engine(options(folder), cache_dir=tmp_path))
    write_tiny_folder(folder, seed=1)
    second = answer(load_engine(options(folder), cache_dir=tmp_path))
    assert first != second
    assert second == answer(load_engine(options(folder, weight_cache=False)))
    assert len(list((tmp_path / "packed").glob("*.packed"))) == 1


@pytest.mark.parametrize("dtype", [*QUANT_TYPES, "F32", "F16", "BF16"])
def test_every_stored_type_comes_back_from_the_file(dtype: str, tmp_path: Path) -> None:
    shape, rng = (35, 512), np.random.default_rng(5)
    if dtype in QUANT_TYPES:
        data = random_blocks(dtype, shape, rng)
    else:
        wide = rng.normal(size=shape).astype(np.float32)
        bfloat16 = wide.view(np.uint16)[:, 1::2].copy().view(np.uint8)
        data = {"F32": wide, "F16": wide.astype(np.float16), "BF16": bfloat16}[dtype]
    types = {} if dtype in ("F32", "F16") else {"w": dtype}
    path = write_gguf(tmp_path / "m.gguf", {"w": data}, types=types)
    slots = [TensorSlot("w", shape, "linear", "w")]

    def bind(slot: TensorSlot, values: np.ndarray) -> object:
        return CPU.bind(slot.kind, values)

    def bind_stored(slot: TensorSlot, stored: str, raw: np.ndarray) -> object:
        assert CPU.bind_stored is not None
        return CPU.bind_stored(slot.kind, stored, slot.shape, raw)

    assert CPU.packed is not None
    checkpoint = open_checkpoint(path)
    plain = load_weights(slots, checkpoint, bind, bind_stored=bind_stored)["w"]
    for _ in range(2):
        cached, report = load_cached(
            slots,
            checkpoint,
            bind,
            bind_stored=bind_stored,
            forms=CPU.packed,
            backend="cpu",
            folder=tmp_path / "packed",
        )
        assert report.in_use
        np.testing.assert_array_equal(CPU.packed.to_bytes(cached["w"]), CPU.packed.to_bytes(plain))
        np.testing.assert_array_equal(cached["w"].dequantize(), plain.dequantize())
    checkpoint.close()


def test_the_plan_counts_what_the_backend_holds(tiny_folder: Path) -> None:
    checkpoint = open_checkpoint(tiny_folder)
    parameters = sum(int(np.prod(info.shape)) for info in checkpoint.tensors.values())
    load_model(checkpoint, CPU)
    checkpoint.close()
    on_cpu = inspect_model(options(tiny_folder))[0].memory
    on_reference = inspect_model(options(tiny_folder, backend="reference"))[0].memory
    assert on_reference.weights == 4 * parameters
    assert 0 <= on_cpu.weights - 4 * parameters < 0.1 * on_cpu.weights  # float32 here; rows are padded to 16
    assert on_cpu.workspace < on_reference.workspace


def test_generating_on_the_cpu_imports_nothing_heavy(tiny_folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from slipstream.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'jinja2', 'rich', 'typer', 'pydantic', 'llguidance'}\n"
        "print(code, sorted(heavy & set(sys.modules)))\n"
    )
    command = ["generate", str(tiny_folder), "--backend=cpu", "--prompt=a", "--max-tokens=2", "--num-blocks=40"]
    environment = {"SLIPSTREAM_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code, *command], check=True, capture_output=True, text=True, env=environment
    )
    assert result.stdout.splitlines()[-1] == "0 []", result.stderr
