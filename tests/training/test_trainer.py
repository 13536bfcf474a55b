from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.training.acceptance import Acceptance, measure_acceptance
from slipstream.training.checkpoint import load_checkpoint
from slipstream.training.examples import epoch_order
from slipstream.training.features import Stored
from slipstream.training.head_module import DraftHead
from slipstream.training.loss import losses
from slipstream.training.progress import stage
from slipstream.training.ridge import ridge_fc
from slipstream.training.settings import TrainingSettings
from slipstream.training.trainer import learning_rate, new_optimizer, start_values, train_head
from tests.training.heads import (
    CONFIG,
    DRAFTED,
    HIDDEN,
    batches_of,
    random_embedding,
    random_head,
    random_teacher,
    stored_walks,
)

EMBEDDING = random_embedding()


def fresh(seed: int = 0) -> DraftHead:
    head = DraftHead(CONFIG, 64)
    start_values(head, np.zeros((HIDDEN, 2 * HIDDEN), np.float32), random_teacher(EMBEDDING), seed)
    return head


def train(
    head: DraftHead, stored: list[Stored], settings: TrainingSettings, folder: Path, stop_after: int | None = None
) -> None:
    of = batches_of(EMBEDDING)
    with stage("Training", 1, quiet=True) as bar:
        train_head(
            head,
            random_teacher(EMBEDDING),
            [len(each.answer.tokens) for each in stored],
            lambda places: of([stored[place] for place in places]),
            settings,
            checkpoint=folder / "checkpoint.safetensors",
            run="a run",
            begin=lambda total, done: bar,
            stop_after=stop_after,
        )


def test_going_on_gives_what_an_undisturbed_run_gives(tmp_path: Path) -> None:
    stored = stored_walks(tmp_path, EMBEDDING)
    settings = TrainingSettings(epochs=3, batch=64, learning_rate=1e-2, steps_ahead=3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    undisturbed = fresh()
    train(undisturbed, stored, settings, whole)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(fresh(), stored, settings, parts, stop_after=2)
    resumed = fresh(seed=1)  # what it starts from is overwritten
    train(resumed, stored, settings, parts)
    first = fresh().arrays()
    for name, values in undisturbed.arrays().items():
        np.testing.assert_array_equal(resumed.arrays()[name], values)
        assert not np.array_equal(first[name], values), name


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path: Path) -> None:
    stored = stored_walks(tmp_path, EMBEDDING)
    settings = TrainingSettings(epochs=1, batch=64)
    head = fresh()
    train(head, stored, settings, tmp_path)
    path, other = tmp_path / "checkpoint.safetensors", fresh(seed=2)
    before = other.arrays()
    assert load_checkpoint(path, other, new_optimizer(other, settings), "another run") is None
    np.testing.assert_array_equal(other.arrays()["fc.weight"], before["fc.weight"])
    lengths = [len(each.answer.tokens) for each in stored]
    steps = len(epoch_order(lengths, 64, 0, 0))
    assert load_checkpoint(path, other, new_optimizer(other, settings), "a run") == steps
    assert load_checkpoint(tmp_path / "none", other, new_optimizer(other, settings), "a run") is None


def test_loss_falls_where_there_is_little_to_learn(tmp_path: Path) -> None:
    stored = stored_walks(tmp_path, EMBEDDING, count=3)
    batch = batches_of(EMBEDDING)(stored)
    head, teacher = fresh(), random_teacher(EMBEDDING)

    def loss() -> float:
        found = losses(head, teacher, batch, steps=2, feature_weight=0.1, step_decay=0.8)
        return float(found.total.detach())

    before = loss()
    train(head, stored, TrainingSettings(epochs=60, batch=4096, learning_rate=2e-2), tmp_path)
    logits = teacher.logits(torch.from_numpy(batch.wanted[batch.weights > 0]))
    least = float(-(torch.softmax(logits, -1) * torch.log_softmax(logits, -1)).sum(-1).mean())
    assert before - least > 1.0
    assert loss() - least < 0.3 * (before - least)


def test_ridge_finds_a_linear_map_and_beats_random_values(tmp_path: Path) -> None:
    stored = stored_walks(tmp_path, EMBEDDING)
    batches = [batches_of(EMBEDDING)(stored)]
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((HIDDEN, 2 * HIDDEN)).astype(np.float32)
    linear = np.concatenate([batches[0].features, batches[0].embeddings], -1) @ exact.T
    batches[0].wanted[:] = linear
    np.testing.assert_allclose(ridge_fc(batches, 1e-7), exact, atol=2e-2)

    batches = [batches_of(EMBEDDING)(stored)]
    head, teacher = fresh(), random_teacher(EMBEDDING)

    def loss(fc: np.ndarray) -> float:  # type: ignore[type-arg]
        start_values(head, fc, teacher, 0)
        found = losses(head, teacher, batches[0], steps=1, feature_weight=0.1, step_decay=0.8)
        return float(found.total.detach())

    assert loss(ridge_fc(batches)) < 0.8 * loss(0.02 * exact)


@pytest.mark.fast
def test_learning_rate() -> None:
    settings = TrainingSettings(learning_rate=1.0, warm_up=0.1)
    rates = [learning_rate(step, 100, settings) for step in range(100)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    assert rates[10] == 1.0
    assert (np.diff(rates[10:]) < 0).all()
    assert 0.1 < rates[-1] < 0.101
    assert learning_rate(0, 1, settings) == 1.0


@pytest.mark.fast
def test_order_of_an_epoch() -> None:
    lengths = np.random.default_rng(0).integers(5, 90, 300).tolist()
    batches = epoch_order(lengths, 256, 3, 1)
    assert sorted(place for batch in batches for place in batch) == list(range(300))
    assert all(len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= 256 for batch in batches)
    assert batches == epoch_order(lengths, 256, 3, 1)
    assert batches != epoch_order(lengths, 256, 3, 2)
    assert batches != epoch_order(lengths, 256, 4, 1)
    assert len(batches) < 300 / 3


@pytest.mark.fast
def test_loss_is_what_it_says(tmp_path: Path) -> None:
    """Against NumPy, with a prompt's lower weight and a step that has no draft at the first position."""
    stored = stored_walks(tmp_path, EMBEDDING, count=2)
    batch = batches_of(EMBEDDING)(stored)
    head, teacher = random_head(), random_teacher(EMBEDDING)
    found = losses(head, teacher, batch, steps=2, feature_weight=0.25, step_decay=0.5)
    with torch.no_grad():
        outputs = head(torch.from_numpy(batch.features), torch.from_numpy(batch.embeddings), 2)

    def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    rows = EMBEDDING[:DRAFTED]
    total, expected, agreement = 0.0, 0.0, []
    for step, output in enumerate(outputs):
        weights = batch.weights.copy()
        weights[:, :step] = 0
        made = output.numpy()
        right = normed(batch.wanted, np.ones(HIDDEN)) @ rows.T
        logits = normed(made, head.arrays()["norm.weight"]) @ rows.T
        right, logits = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (right, logits))
        entropy = -(np.exp(right) * logits).sum(-1)
        size = np.sqrt((batch.wanted**2).mean(-1, keepdims=True)) + 1e-12
        gap = np.abs(made - batch.wanted) / size
        distance = np.where(gap < 1, gap**2 / 2, gap - 0.5).mean(-1)
        expected += 0.5**step * (weights * (entropy + 0.25 * distance)).sum() / weights.sum()
        agreement.append((weights * (right.argmax(-1) == logits.argmax(-1))).sum() / weights.sum())
        total += 0.5**step
    assert float(found.total.detach()) == pytest.approx(expected / total, rel=1e-4)
    assert found.agreement == pytest.approx(agreement, abs=1e-5)


@pytest.mark.fast
def test_acceptance_counts_chains() -> None:
    right = np.zeros((4, 5), np.bool_)
    right[0] = [True, True, False, True, True]
    right[1] = [False, True, True, False, True]
    right[2] = [False, False, True, False, True]
    found = Acceptance()
    found.add(right)
    # Drafts from 0, 1, 3 and 4 have a right first token; the one from 4 ends there, the one from 3 one later.
    assert found.tried == [5, 3, 2, 1]
    assert found.right == [4, 3, 1, 0]


@pytest.mark.fast
def test_a_head_that_gives_the_targets_features_is_always_right(tmp_path: Path) -> None:
    """Greedy and with noise: the answers are made of what the target draws."""
    from slipstream.sampling.rng import gumbel

    stored = stored_walks(tmp_path, EMBEDDING, count=4)
    teacher = random_teacher(EMBEDDING)
    ids = np.arange(DRAFTED, dtype=np.int32)

    class Seer(torch.nn.Module):
        def forward(self, features: torch.Tensor, embeddings: torch.Tensor, steps: int) -> list[torch.Tensor]:
            return [torch.cat([features[:, 1:], features[:, -1:]], 1)] * steps

        def normed(self, output: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(output, (HIDDEN,), teacher.norm, 1e-5)

    for each in stored:
        logits = teacher.logits(torch.from_numpy(each.read())).numpy()
        for place in range(each.answer.prompt_length, len(each.answer.tokens)):
            noise = gumbel(each.answer.seed, place, ids) if each.answer.temperature else 0.0
            each.answer.tokens[place] = int(np.argmax(logits[place - 1] + noise))
    seer: DraftHead = Seer()  # type: ignore[assignment]
    found = measure_acceptance(seer, teacher, ids, stored, batches_of(EMBEDDING))
    for mode in ("greedy", "temperature_1"):
        known = found[mode]["all"]
        # The last position's own feature stands in for the one behind it, which is not looked at.
        assert known.right == known.tried
        assert known.tried[3] > 0
    assert set(found["greedy"]) == {"all", "even"}
    assert set(found["temperature_1"]) == {"all", "odd"}
