from __future__ import annotations

import pytest

from slipstream.spec.acceptance import WINDOW, AcceptanceModel, AcceptanceWindow

pytestmark = pytest.mark.fast


def test_chances_begin_at_the_prior() -> None:
    assert AcceptanceModel(prior=0.5).chances(3, 3) == [0.5, 0.25, 0.125]


def test_only_judged_positions_count() -> None:
    model = AcceptanceModel(prior=0.5, strength=2.0, keep=1.0)
    model.observe(1, proposed=4, accepted=1)
    # Position 0: 1 + 1 right of 2 + 1. Position 1 began at those 2 / 3 and was wrong once: 4 / 3 of 3. Positions
    # 2 and 3 were never judged and are thought of as position 1.
    assert model.chances(1, 4) == pytest.approx([2 / 3, 2 / 3 * 4 / 9, 2 / 3 * (4 / 9) ** 2, 2 / 3 * (4 / 9) ** 3])


def test_a_whole_accepted_draft_judges_all_its_positions() -> None:
    model = AcceptanceModel(prior=0.5, strength=2.0, keep=1.0)
    model.observe(1, proposed=2, accepted=2)
    # Position 1 began at 2 / 3 of 2 and was right once.
    assert model.chances(1, 3) == pytest.approx([2 / 3, 2 / 3 * 7 / 9, 2 / 3 * (7 / 9) ** 2])


def test_classes_of_evidence_are_apart() -> None:
    model = AcceptanceModel(keep=1.0)
    model.observe(5, 1, 1)
    assert model.chances(4, 1) == [0.5]
    assert model.chances(5, 1)[0] > 0.5


def test_it_follows_a_change() -> None:
    model = AcceptanceModel()
    for _ in range(400):
        model.observe(1, 1, 1)
    assert model.chances(1, 1)[0] > 0.97
    for _ in range(300):
        model.observe(1, 1, 0)
    assert model.chances(1, 1)[0] < 0.08


def test_late_positions_share_an_estimate() -> None:
    model = AcceptanceModel(positions=2, keep=1.0)
    for _ in range(50):
        model.observe(1, 8, 8)
    first, second, third = model.chances(1, 3)
    assert second / first == pytest.approx(third / second)


@pytest.mark.parametrize(("proposed", "accepted"), [(1, 2), (2, -1)])
def test_impossible_results(proposed: int, accepted: int) -> None:
    with pytest.raises(ValueError, match="accepted"):
        AcceptanceModel().observe(1, proposed, accepted)


def test_the_window_forgets_the_oldest_proposal() -> None:
    window = AcceptanceWindow()
    assert window.rate is None
    window.observe(4, 4)
    for _ in range(WINDOW - 1):
        window.observe(2, 1)
    assert window.rate == (4 + WINDOW - 1) / (4 + 2 * (WINDOW - 1))
    window.observe(2, 1)
    assert window.rate == 0.5
    assert len(window) == WINDOW


def test_a_sequence_begins_where_all_sequences_are_and_goes_its_own_way() -> None:
    everyone = AcceptanceModel(keep=1.0)
    for _ in range(96):
        everyone.observe(1, 1, 1)
    one = everyone.child()
    assert one.chances(1, 2) == everyone.chances(1, 2)
    for _ in range(30):
        one.observe(1, 1, 0)
    assert one.chances(1, 1)[0] == pytest.approx(0.98 * 8 / 38)
    assert everyone.chances(1, 1)[0] == pytest.approx((2 + 96) / (4 + 96 + 30))
    assert everyone.child().chances(1, 1) == everyone.chances(1, 1)


def test_a_kind_of_evidence_may_have_a_prior_of_its_own() -> None:
    model = AcceptanceModel(prior=0.5, strength=4.0, keep=1.0, priors={-1: 0.75})
    assert model.chances(-1, 2) == [0.75, 0.75**2]
    assert model.child().chances(-1, 1) == [0.75]
    assert model.chances(1, 1) == [0.5]
    model.observe(-1, proposed=1, accepted=0)
    assert model.chances(-1, 1) == [3 / 5]
