from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import Metric, NumberDataPoint

from penstock.async_sink import AsyncSinkConfig
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeWriter


def numbers(metric: Metric) -> list[NumberDataPoint]:
    """The points of a counter or a gauge."""
    return [point for point in metric.data.data_points if isinstance(point, NumberDataPoint)]


class CharacterWriter(FakeWriter):
    """Writes each character of a text, which other writers refuse to take apart."""

    async def write_many(self, elements: Iterable[Any], **options: Any) -> None:
        await super().write_many(list(elements) if isinstance(elements, str) else elements, **options)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def fake() -> FakeDestination:
    return FakeDestination()


@pytest.fixture
def make_writer(clock: FakeClock, fake: FakeDestination) -> Callable[..., FakeWriter]:
    """A writer of batches of 10, 100 bytes each at most, that waits 100 ms; retries wait 50 ms."""

    def make(**options: Any) -> FakeWriter:
        given = {
            "max_batch_size": 10,
            "max_in_flight_requests": 5,
            "max_buffered_requests": 100,
            "max_batch_size_in_bytes": 1_000,
            "max_record_size_in_bytes": 1_000,
            "max_time_in_buffer": timedelta(milliseconds=100),
            "request_timeout": timedelta(seconds=10),
            "retry_backoff_base": timedelta(milliseconds=50),
        }
        names = AsyncSinkConfig.__dataclass_fields__
        config = AsyncSinkConfig(**{**given, **{k: v for k, v in options.items() if k in names}})
        others = {k: v for k, v in options.items() if k not in names}
        others.setdefault("destination", "FakeWriter")
        random = others.pop("random", lambda: 1.0)
        return CharacterWriter(others.pop("fake", fake), config, clock=clock, random=random, **others)

    return make
