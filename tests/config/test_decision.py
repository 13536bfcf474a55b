from __future__ import annotations

import pytest

from slipstream.config.decision import Decision

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("asked", "effective", "overruled", "text"),
    [
        (None, 64, False, "x = 64: why"),
        (64, 64, False, "x = 64: why"),
        (65, 64, True, "x = 64 (asked: 65): why"),
        (0, None, True, "x = None (asked: 0): why"),
        (None, None, False, "x = None: why"),
    ],
)
def test_decision(asked: int | None, effective: int | None, overruled: bool, text: str) -> None:
    decision = Decision("x", asked, effective, "why")
    assert decision.overruled is overruled
    assert str(decision) == text
