import pytest

from slipstream.engine.settings import SchedulerSettings
from slipstream.errors import ConfigError

pytestmark = pytest.mark.fast


def test_the_least_of_everything_is_accepted() -> None:
    settings = SchedulerSettings(
        max_num_batched_tokens=1,
        max_num_seqs=1,
        max_prefill_chunk=1,
        min_prefill_chunk=1,
        max_preemptions=1,
        max_queued=0,
        max_wait=0.0,
    )
    assert (settings.max_queued, settings.watermark, settings.tpot_objective) == (0, 0.01, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", 0),
        ("max_prefill_chunk", 0),
        ("min_prefill_chunk", 0),
        ("max_preemptions", 0),
        ("max_queued", -1),
        ("tpot_objective", 0.0),
        ("tpot_objective", float("nan")),
        ("watermark", 1.0),
        ("watermark", -0.1),
        ("max_wait", float("nan")),
    ],
)
def test_out_of_range(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: must"):
        SchedulerSettings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", [0.1, "auto"])
def test_an_objective_that_could_not_be_kept_is_refused(objective: object) -> None:
    with pytest.raises(ConfigError, match="tpot_objective: has no effect while enable_chunked_prefill is off"):
        SchedulerSettings(tpot_objective=objective, enable_chunked_prefill=False)  # type: ignore[arg-type]
    assert SchedulerSettings(tpot_objective=objective).tpot_objective == objective  # type: ignore[arg-type]
