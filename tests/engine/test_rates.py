import pytest

from slipstream.engine.rates import QueueRates

pytestmark = pytest.mark.fast


def test_unknown_until_a_queue_has_been_seen() -> None:
    rates = QueueRates()
    assert rates.seconds_for(1) is None
    rates.observe(1.0, 3, 300, waiting=0)
    rates.observe(9.0, 3, 300, waiting=0)
    assert rates.seconds_for(1) is None


def test_requests_and_tokens_that_leave_per_second() -> None:
    rates = QueueRates()
    for second in range(11):
        rates.observe(float(second), 2, 100, waiting=5)
    assert rates.seconds_for(4) == pytest.approx(2.0, rel=0.02)
    assert rates.seconds_for(0, 1000) == pytest.approx(10.0, rel=0.02)
    assert rates.seconds_for(4, 1000) == pytest.approx(10.0, rel=0.02)


def test_time_without_a_queue_does_not_count() -> None:
    rates = QueueRates()
    rates.observe(0.0, 0, 0, waiting=1)
    rates.observe(1.0, 1, 10, waiting=0)
    rates.observe(1000.0, 0, 0, waiting=1)
    rates.observe(1001.0, 1, 10, waiting=0)
    assert rates.seconds_for(1) == pytest.approx(1.0, rel=0.02)


def test_before_the_first_start_the_wait_so_far_is_the_best_estimate() -> None:
    rates = QueueRates()
    rates.observe(0.0, 0, 0, waiting=1)
    rates.observe(7.0, 0, 0, waiting=1)
    assert rates.seconds_for(1) == pytest.approx(7.0)


def test_old_measurements_fade_and_nobody_is_told_more_than_an_hour() -> None:
    rates = QueueRates()
    for second in range(100):
        rates.observe(float(second), 10, 10, waiting=5)
    for second in range(100, 300):
        rates.observe(float(second), 1, 1, waiting=5)
    assert rates.seconds_for(1) == pytest.approx(1.0, rel=0.15)
    assert rates.seconds_for(10**9) == 3600.0
