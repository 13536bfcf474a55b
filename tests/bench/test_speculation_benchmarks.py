"""Arithmetic of the benchmarks of speculation, without a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import domain_shift, speculation, tree_gain

from slipstream.engine.outputs import CompletionStats

pytestmark = pytest.mark.fast

# ---- speculation ----


def spec_answer(tpot: float | None, tokens: tuple[int, ...] = (1, 2, 3), **counts: int) -> speculation.Answer:
    return speculation.Answer(tokens, CompletionStats(4, len(tokens), 0, 0, 0.0, 0.1, tpot, 1.0, **counts))


def test_the_ratio_is_without_over_with_and_its_mean_geometric() -> None:
    drafts = {"num_drafts": 2, "num_draft_tokens": 8, "num_accepted_tokens": 4}
    pairs = [
        speculation.Pair((spec_answer(0.04),), (spec_answer(0.01, **drafts),)),
        speculation.Pair((spec_answer(0.02), spec_answer(None)), (spec_answer(0.02),)),
    ]
    row = speculation.summarise("edit", 1, 0.0, pairs)
    assert row is not None
    assert (row.groups, row.ratio) == (2, pytest.approx(2.0))
    half = 12.706 * np.std(np.log([4.0, 1.0]), ddof=1) / np.sqrt(2)
    assert (row.low, row.high) == pytest.approx((2 * np.exp(-half), 2 * np.exp(half)), rel=1e-3)
    assert (row.acceptance, row.mean_accepted_length, row.drafted_per_token) == (0.5, 3.0, 8 / 6)
    assert row.different == 1
    found = speculation.overall([row, row])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert "1 GROUPS DIFFER" in speculation.table([row])


def test_a_ratio_by_steps_leaves_out_what_slows_single_ones_down() -> None:
    off = [speculation.TimedStep(0, 1, seconds) for seconds in (4.0, 4.0, 90.0)]
    on = [
        *[speculation.TimedStep(2, 3, seconds) for seconds in (6.0, 6.0, 50.0)],
        speculation.TimedStep(0, 1, 4.0),
    ]
    assert speculation.seconds_per_token(off) == 4.0
    assert speculation.seconds_per_token(on) == pytest.approx((3 * 6.0 + 4.0) / 10)
    assert speculation.seconds_per_token([]) is None
    pair = speculation.Pair((spec_answer(4.0),), (spec_answer(3.0),), off, on)
    assert speculation.ratio_by_steps([pair]) is None
    ratio, low, high = speculation.ratio_by_steps([pair, pair, pair]) or (0.0, 0.0, 0.0)
    assert ratio == low == high == pytest.approx(4.0 / 2.2)
    other = replace(pair, on_steps=[speculation.TimedStep(2, 1, 6.0)] * 3)
    found = speculation.ratio_by_steps([pair, pair, other])
    assert found is not None
    assert found[1] < found[0] < found[2]


def test_a_kind_without_a_second_token_has_no_ratio() -> None:
    pair = speculation.Pair((spec_answer(None),), (spec_answer(None),))
    assert speculation.summarise("edit", 1, 0.0, [pair]) is None
    assert speculation.overall([]) is None


def test_every_code_edit_is_one_change_of_one_file() -> None:
    prompts = speculation.code_edits()
    assert len(prompts) == 20
    assert len({prompt[:2] for prompt in prompts}) == 1  # the same example in front of all
    for asked, answered, prompt in prompts:
        assert asked.partition("\n\n")[2].replace("limit = 10", "limit = 20") == answered
        change, _, rest = prompt.partition(" Return the whole file with this one change and nothing else.\n\n")
        name, _, content = rest.partition(":\n")
        assert change.endswith((".", "'"))
        assert "." in name
        assert len(content.splitlines()) > 10


# ---- kinds of prompts ----


def test_kinds_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"category": "qa", "turns": ["Why?"]}) + "\n")
    assert list(speculation.chosen_kinds(None, path, None)) == ["code-edit", "qa"]
    assert speculation.chosen_kinds(["qa"], path, None) == {"qa": ["Why?"]}
    with pytest.raises(SystemExit, match="--kinds: humaneval, maths is not among code-edit, qa"):
        speculation.chosen_kinds(["qa", "humaneval", "maths"], path, None)


# ---- trees ----

A, B, X, Y = 1, 2, 8, 9


def test_candidates_differ_in_their_first_token_longest_match_first() -> None:
    text = tree_gain.Text([5, A, B, X, 3, A, B, Y, 4, A, B, X, 6, 5, A, B])
    assert text.candidates(3) == [(3, [X, 3, A]), (2, [Y, 4, A])]
    assert tree_gain.Text([A, B, A, B]).candidates(4) == [(2, [A, B, A, B])]  # a loop goes on as a loop
    assert tree_gain.Text([A, B]).candidates(2) == tree_gain.Text([A]).candidates(2) == []


def test_positions_know_how_far_each_candidate_is_right() -> None:
    found = tree_gain.positions([A, B, X, 3, A, B, Y, 4, A], [B, X, 3, 7], 5)
    assert [(each.evidence, each.right, each.left) for each in found] == [
        ((2, 2), (0, 2), 3),
        ((2, 0), (1,), 2),
        ((3, 0), (0,), 1),
    ]
    assert tree_gain.count([found]) == tree_gain.Counts(3, 3, 1, 1, 1, 0, 0)
    assert [found[0].kept(shape) for shape in ((0, 0), (3, 0), (1, 1), (1, 2), (1, 4))] == [1, 1, 2, 3, 3]


def test_a_tree_wins_where_the_second_candidate_is_right() -> None:
    both = [tree_gain.Position((2, 2), right, 9) for right in ((0, 2), (2, 0)) * 6]
    answers = [both, both]
    flat = tree_gain.compare("k", answers, lambda n: 1.0, 1, 4)
    assert flat.tree > flat.chain > 1.0
    assert flat.second_tokens > 0.0
    alone = [[tree_gain.Position((2, 0), (2,), 9 - i) for i in range(9)]] * 2
    row = tree_gain.compare("k", alone, lambda n: 1.0 + 0.1 * n, 1, 4)
    assert (row.gain, row.hindsight, row.second_tokens) == (0.0, 0.0, 0.0)
    assert row.chain == pytest.approx(3 / 1.2)
    dear = tree_gain.compare("k", alone, lambda n: 1.0 + 2.0 * n, 1, 4)
    assert (dear.chain, dear.tree) == (1.0, 1.0)


def test_every_chain_is_a_tree() -> None:
    assert tree_gain.shapes(2, tree=False) == [(0, 0), (1, 0), (2, 0)]
    assert tree_gain.shapes(2, tree=True) == [(0, 0), (1, 0), (1, 1), (2, 0)]


# ---- domains that change ----


def test_the_best_fixed_setting_of_a_phase_is_chosen_afterwards() -> None:
    groups = [
        domain_shift.Group({"auto": 0.02, "0": 0.04, "2": 0.01}, same=True),
        domain_shift.Group({"auto": 0.02, "0": 0.01, "2": 0.03}, same=False),
    ]
    phase = domain_shift.summarise(1, "edit", groups)
    assert (phase.best, phase.groups, phase.different, phase.firm) == ("2", 2, 1, True)
    assert phase.share == pytest.approx((0.5 * 1.5) ** 0.5)
    assert phase.low < phase.share < phase.high
    mean = domain_shift.overall([phase, phase])
    assert mean is not None
    assert mean.value == pytest.approx(phase.share)
    assert "1 GROUPS DIFFER" in domain_shift.table([phase])
    assert domain_shift.overall([]) is None
