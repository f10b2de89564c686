"""What a writer does when it is full, and what it says of itself."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sink_fixtures import numbers

from penstock.async_sink.errors import BufferFullError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


async def fill(writer: FakeWriter, entries: list[int | str]) -> None:
    """Open it and write; those that fill requests are on their way then."""
    await writer.__aenter__()
    await writer.write_many(entries)
    await settle()


@pytest.mark.parametrize(("entry", "reason", "waiting"), [("x", "records", 100), (100, "bytes", 10)])
async def test_a_full_buffer_is_an_error_at_once_if_set_so(
    make_writer: MakeWriter, fake: FakeDestination, entry: int | str, reason: str, waiting: int
) -> None:
    """The error says which limit was reached; the record is not written, and the writer continues."""
    fake.script = [fake.hold()] * 3
    writer = make_writer(max_block_time=timedelta(0), max_buffered_bytes=1_000, max_in_flight_requests=3)
    await fill(writer, [entry] * (30 + waiting))
    with pytest.raises(BufferFullError) as caught:
        await writer.write(entry)
    assert (caught.value.reason, caught.value.buffered_entries) == (reason, waiting)
    await settle()
    fake.script.clear()
    for request in fake.requests:
        request.answer.set()
    await settle()
    await writer.write(entry)
    await writer.flush(end_of_input=True)
    assert len(fake.accepted) == 30 + waiting + 1
    await writer.close()


async def test_a_write_waits_for_room_so_long_and_no_longer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """It waits until the time is over and then raises; the wait is counted by its reason."""
    fake.script = [fake.hold()] * 20
    writer = make_writer(max_block_time=timedelta(seconds=2), max_in_flight_requests=3)
    await fill(writer, ["x"] * 130)
    writing = asyncio.create_task(writer.write("y"))
    await clock.advance(1.99)
    assert not writing.done()
    await clock.advance(0.01)
    with pytest.raises(BufferFullError):
        writing.result()
    assert writer.metrics.blocked_seconds["buffer_records"] == pytest.approx(2.0)
    await writer.close()


async def test_the_gauges_show_the_writer_at_this_moment(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Waiting entries and their age, entries in flight, and the limit; OpenTelemetry gets the same."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    fake.script = [fake.hold()]
    writer = make_writer(max_in_flight_requests=1, meter_provider=provider, destination="flights")
    await fill(writer, ["xy"] * 13)
    await clock.advance(0.06)
    gauges = writer.gauges()
    assert (gauges.buffer_records, gauges.buffer_bytes, gauges.in_flight_requests) == (3, 6, 1)
    assert (gauges.in_flight_messages, gauges.limit) == (10, 10)
    assert gauges.buffer_age_seconds == pytest.approx(0.06)
    data = reader.get_metrics_data()
    assert data is not None
    points = {one.name: numbers(one)[0] for one in data.resource_metrics[0].scope_metrics[0].metrics if numbers(one)}
    assert (points["bufferedrecords"].value, points["inflightmessages"].value, points["ratelimit"].value) == (3, 10, 10)
    assert points["bufferage"].value == pytest.approx(0.06)
    await writer.close()
    provider.shutdown()


async def test_requests_are_counted_by_why_they_left_and_how_full_they_were(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A full one, one by the timer, one by a flush, one that failed before."""
    fake.script = [fake.fail(0)]
    async with make_writer() as writer:
        await writer.write_many("0123456789")
        await clock.advance(0.1)
        await writer.write("a")
        await clock.advance(0.1)
        await writer.write("b")
    assert dict(writer.metrics.flush_reasons) == {"size": 1, "retry": 1, "time": 1, "flush": 1}
    assert writer.metrics.fill_ratio == pytest.approx(13 / 40)
    assert dict(writer.metrics.attempts) == {1: 11, 2: 1}
