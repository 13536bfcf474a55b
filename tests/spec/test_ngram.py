from __future__ import annotations

import pytest

from slipstream.errors import ConfigError
from slipstream.spec.ngram import NgramOptions, NgramProposer
from slipstream.spec.proposer import NOTHING, Draft

pytestmark = pytest.mark.fast


def test_what_followed_last_time_is_proposed() -> None:
    proposer = NgramProposer()
    proposer.open("a", [5, 6, 7, 8, 9, 1, 5, 6])
    assert proposer.propose([("a", 3)]) == [Draft((7, 8, 9), (2).bit_length())]
    proposer.extend("a", [7])
    assert proposer.propose([("a", 1)]) == [Draft((8,), (3).bit_length())]


def test_no_match_no_room_no_draft() -> None:
    proposer = NgramProposer()
    proposer.open("a", [1, 2, 3])
    proposer.open("b", [1, 2, 1, 2])
    assert proposer.propose([("a", 4), ("b", 0)]) == [NOTHING, NOTHING]


def test_sequences_do_not_see_each_other() -> None:
    proposer = NgramProposer()
    proposer.open("a", [1, 2, 3, 4])
    proposer.open("b", [1, 2])
    assert proposer.propose([("b", 2)]) == [NOTHING]


def test_a_key_may_be_used_again_after_its_end() -> None:
    proposer = NgramProposer()
    proposer.open("a", [1, 2, 3, 1, 2])
    with pytest.raises(ValueError, match="open already"):
        proposer.open("a", [1])
    proposer.close("a")
    proposer.close("a")
    proposer.open("a", [1, 2])
    assert proposer.propose([("a", 2)]) == [NOTHING]


def test_candidates_have_different_first_tokens() -> None:
    proposer = NgramProposer(NgramOptions(min_match=1))
    proposer.open("a", [1, 2, 3, 7, 2, 3, 8, 3, 9, 1, 2, 3])
    drafts = proposer.candidates("a", 1, 3)
    assert [draft.tokens for draft in drafts] == [(7,), (8,), (9,)]
    assert [draft.tokens for draft in proposer.candidates("a", 1, 2)] == [(7,), (8,)]


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3)])
def test_senseless_limits(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match="make no sense"):
        NgramOptions(low, high)
