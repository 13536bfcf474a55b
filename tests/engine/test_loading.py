"""From settings to an engine: what is decided, what is refused, and when."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.tiny_folder import CONTEXT, LAYERS, WEIGHTS, write_tiny_folder

from slipstream.config.types import EngineOptions
from slipstream.engine.loading import inspect_model, load_engine
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import (
    ConfigError,
    InsufficientMemoryError,
    ModelFormatError,
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
)
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def options(model: Path, **settings: object) -> EngineOptions:
    return EngineOptions.from_flat(model=str(model), **({"backend": "reference", "num_threads": 1} | settings))


def test_the_plan_is_the_one_that_inspect_shows(tiny_folder: Path) -> None:
    asked = options(tiny_folder, num_blocks=40, max_num_seqs=3, block_size=8, seed=1)
    plan, tokenizer = inspect_model(asked)
    loaded = load_engine(asked)
    assert loaded.plan.options == plan.options
    assert [(each.field, each.effective) for each in loaded.plan.decisions] == [
        (each.field, each.effective) for each in plan.decisions
    ]
    assert (plan.family, plan.path, tokenizer.vocab_size) == ("Llama", tiny_folder, plan.config.vocab_size)
    assert (plan.options.num_blocks, plan.options.max_model_len) == (40, CONTEXT)
    stats = loaded.core.stats()
    assert (stats.kv_blocks_total, stats.max_num_seqs) == (40, 3)


def test_memory_that_the_system_refuses_after_all(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr("slipstream.engine.loading.KVStorage", refuse)
    with pytest.raises(InsufficientMemoryError, match=r"refuses memory that seemed to be free \(std::bad_alloc\)"):
        load_engine(options(tiny_folder))


def test_every_decision_is_in_force(tiny_folder: Path) -> None:
    plan, _ = inspect_model(options(tiny_folder))
    for decision in plan.decisions:
        assert decision.effective == getattr(plan.options, decision.field)
        assert decision.why
    by_field = {decision.field: decision for decision in plan.decisions}
    assert by_field["max_model_len"].effective == CONTEXT
    assert by_field["num_blocks"].asked is None
    assert by_field["num_blocks"].effective == plan.memory.num_blocks > 0


def test_logits_of_prompt_positions_are_part_of_the_workspace(tiny_folder: Path) -> None:
    plan, _ = inspect_model(options(tiny_folder, max_num_seqs=5, max_num_batched_tokens=32))
    assert plan.memory.workspace > 2 * 4 * (5 + 256) * plan.config.vocab_size


def test_progress_reaches_the_end_and_inspecting_reads_no_weight(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    seen: list[tuple[int, int]] = []
    load_engine(options(folder), progress=lambda done, total: seen.append((done, total)))
    assert seen
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_the_seed_makes_unseeded_requests_repeatable(tiny_folder: Path) -> None:
    def answer(seed: int) -> list[int]:
        core = load_engine(options(tiny_folder, seed=seed)).core
        core.add(GenerationRequest("a", (1, 2, 3), SamplingParams(max_tokens=8, ignore_eos=True)))
        tokens: list[int] = []
        while core.has_work:
            tokens += [token for delta in core.step() for token in delta.token_ids]
        return tokens

    assert answer(1) == answer(1) != answer(2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kv_types_change_the_bytes_of_a_block(tiny_folder: Path, dtype: str) -> None:
    full, _ = inspect_model(options(tiny_folder))
    half, _ = inspect_model(options(tiny_folder, kv_dtype=dtype))
    assert full.memory.spec.bytes_per_block == 2 * half.memory.spec.bytes_per_block
    assert half.memory.spec.num_layers == LAYERS


class TestTokenizer:
    def test_of_another_folder(self, tiny_folder: Path, tmp_path: Path) -> None:
        other = write_tiny_folder(tmp_path, chat_template=False)
        _, tokenizer = inspect_model(options(tiny_folder, tokenizer=str(other)))
        assert tokenizer.chat_template is None

    def test_of_a_gguf_file(self, tiny_folder: Path, tmp_path: Path) -> None:
        vocab = json.loads((tiny_folder / "tokenizer.json").read_text())["model"]["vocab"]
        tokens = [*sorted(vocab, key=vocab.__getitem__), "ab"]
        writer = gguf.GGUFWriter(tmp_path / "vocab.gguf", "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * len(tokens))
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(7)
        writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 4), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        _, tokenizer = inspect_model(options(tiny_folder, tokenizer=str(tmp_path / "vocab.gguf")))
        assert tokenizer.eos_token_ids == (7,)

    def test_that_is_larger_than_the_embedding_is_refused(self, tmp_path: Path) -> None:
        folder = write_tiny_folder(tmp_path, vocab_size=100)
        with pytest.raises(TokenizerError, match=r"259 tokens, but the model's embedding 100"):
            inspect_model(options(folder))


class TestRefusals:
    """Before a weight is read: the file that would be read is not even whole."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_tiny_folder(tmp_path / "model")

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"backend": "triton"}, ConfigError, "triton"),
            ({"max_model_len": CONTEXT + 1}, ConfigError, "max_model_len"),
            ({"dtype": "float16"}, ConfigError, "dtype"),
            ({"num_blocks": 10**12}, InsufficientMemoryError, "num_blocks"),
            ({"num_blocks": 3}, ConfigError, "3 KV blocks were asked for"),
            ({"tpot_objective": 0.1, "enable_chunked_prefill": False}, ConfigError, "tpot_objective"),
            ({"max_prefill_chunk": 8, "enable_chunked_prefill": False}, ConfigError, "max_prefill_chunk"),
        ],
        ids=str,
    )
    def test_of_settings(self, folder: Path, settings: dict[str, object], error: type[Exception], message: str) -> None:
        def progress(done: int, total: int) -> None:
            raise AssertionError("a weight was read")

        for act in (inspect_model, lambda asked: load_engine(asked, progress=progress)):
            with pytest.raises(error, match=message):
                act(options(folder, **settings))

    def test_of_models(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError):
            load_engine(options(tmp_path / "nowhere.gguf"))
        (folder / WEIGHTS).write_bytes(b"\x00" * 100)
        with pytest.raises(ModelFormatError):
            load_engine(options(folder))
        with pytest.raises(UnsupportedModelError, match="XForCausalLM"):
            load_engine(options(write_tiny_folder(tmp_path / "x", architectures=["XForCausalLM"])))

    def test_leave_the_files_closed(self, folder: Path) -> None:
        """A mapping that stays open would keep the deleted file's pages."""
        before = _maps(folder)
        with pytest.raises(ConfigError):
            load_engine(options(folder, max_model_len=CONTEXT + 1))
        inspect_model(options(folder))
        load_engine(options(folder))
        assert _maps(folder) == before == []


def _maps(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def test_the_environment_names_the_cache_folder(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models" / "org--tiny"
    models.parent.mkdir()
    models.symlink_to(tiny_folder, target_is_directory=True)
    asked = EngineOptions.from_flat(model="org/tiny", num_threads=1)
    with pytest.raises(ModelNotFoundError):
        inspect_model(asked)
    monkeypatch.setenv("SLIPSTREAM_CACHE_DIR", str(tmp_path))
    assert inspect_model(asked)[0].config.num_layers == 2
