"""How fast Kinesis is asked."""

from collections.abc import Sequence

import pytest

from penstock.registration._registrar import CallPace


def moments(operation: str, streams: Sequence[str], count: int) -> list[float]:
    """When each of `count` calls per stream goes out, all of them wanted at once."""
    pace = CallPace()
    return sorted(pace.reserve(operation, stream, 100.0) for _ in range(count) for stream in streams)


def most_within_a_second(times: Sequence[float]) -> int:
    return max(sum(first <= moment < first + 1 for moment in times) for first in times)


def test_an_account_registers_at_most_five_a_second() -> None:
    """Over all of its streams."""
    times = moments("register_stream_consumer", ["a", "b"], 20)
    assert most_within_a_second(times) <= 5
    assert times[-1] < 10


def test_a_stream_is_described_at_most_twenty_times_a_second() -> None:
    """Each for itself: another stream does not wait."""
    times = moments("describe_stream_consumer", ["a"], 100)
    assert most_within_a_second(times[4:]) <= 20
    assert moments("describe_stream_consumer", ["a", "b", "c"], 4) == pytest.approx([0.0] * 12)


def test_a_single_caller_does_not_wait() -> None:
    """A quarter of a second later there is room for the next de-registration."""
    pace = CallPace()
    assert [pace.reserve("deregister_stream_consumer", "a", now) for now in (1.0, 1.25, 1.5)] == [0.0] * 3
