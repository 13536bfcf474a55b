from __future__ import annotations

import pytest

from slipstream.config.suggest import did_you_mean, nearest_name

pytestmark = pytest.mark.fast

KNOWN = ["block_size", "num_blocks", "kv_dtype"]


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("blok_size", "block_size"),
        ("Block-Size", "block_size"),
        ("kv_cache_dtype", "kv_dtype"),
        ("qqq", None),
        ("", None),
    ],
)
def test_nearest(unknown: str, nearest: str | None) -> None:
    assert nearest_name(unknown, KNOWN) == nearest


def test_sentences() -> None:
    assert did_you_mean("num_block", KNOWN) == "Did you mean num_blocks?"
    assert did_you_mean("qqq", KNOWN) == "Known names: block_size, kv_dtype, num_blocks."
