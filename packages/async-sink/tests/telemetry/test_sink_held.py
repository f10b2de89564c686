"""What keeps a flush waiting is logged within ten seconds, and is visible in gauges and metrics."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock.async_sink import (
    All,
    AsyncSinkConfig,
    CallbackHandler,
    EntryFailure,
    HeldRecord,
    PerShardRateLimitingStrategy,
    aimd_strategy,
)
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


def logged(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Numbers of the records that were logged as held, in order."""
    assert all(isinstance(record.args, tuple) for record in caplog.records)
    return [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]  # type: ignore[misc]


def held_by(writer: FakeWriter) -> HeldRecord:
    held = writer.gauges().held
    assert held is not None
    return held


class Refusing(FakeDestination):
    """Refuses some entries for ever, and accepts the others."""

    def __init__(self, *refused: str, code: str = "InternalFailure", throttled: bool = False) -> None:
        super().__init__()
        self.refused, self.code, self.throttled = set(refused), code, throttled

    async def submit(self, entries: Any, handler: Any) -> None:
        places = [index for index, entry in enumerate(entries) if entry in self.refused]
        request = FakeRequest(list(entries), handler)
        self.requests.append(request)
        if places:
            self.fail(*places, throttled=self.throttled, code=self.code)(request)
        else:
            self.accept(request)


async def test_a_record_that_is_refused_for_ever_is_logged_within_ten_seconds_and_then_less_often(
    make_writer: MakeWriter, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """While other records are accepted, and without a flush: with its number, its attempts and the code."""
    writer = make_writer(fake=Refusing("3"), retry_backoff_maximum=timedelta(seconds=1))
    await writer.__aenter__()
    await writer.write_many(list("0123456789"))
    await clock.advance(9.9)
    assert logged(caplog) == [3]
    held = held_by(writer)
    assert (held.record_number, held.error_code, held.records) == (3, "InternalFailure", 1)
    assert held.attempts >= 10
    for _ in range(300):
        await writer.write_many(list("abcdefghij"))
        await clock.advance(1.0)
    # After 5, 10, 20, 40, 80 and 160 s.
    assert logged(caplog) == [3] * 6
    writer.fake.refused.clear()  # type: ignore[attr-defined]  # the fake of this test
    await writer.flush(end_of_input=False)
    await clock.advance(5.0)
    assert writer.gauges().held is None
    # Nothing is left to look at, so no timer starts again when the request's time is over.
    await clock.advance(writer.config.request_timeout.total_seconds())
    assert clock.pending() == 0
    await writer.close()


@pytest.mark.parametrize("everything", [True, False])
async def test_a_flush_that_waits_for_an_answer_is_logged(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, caplog: pytest.LogCaptureFixture, everything: bool
) -> None:
    """The service is unreachable: the log shows no code and one attempt."""
    fake.script = [fake.hold()]
    writer = make_writer(request_timeout=timedelta(minutes=1))
    await writer.__aenter__()
    await writer.write_many(list("0123456789"))
    flushing = asyncio.create_task(writer.flush(end_of_input=everything))
    await clock.advance(9.9)
    held = held_by(writer)
    assert (held.record_number, held.reason, held.attempts, held.error_code) == (0, "answer", 1, "")
    assert logged(caplog) == [0]
    fake.requests[0].answer.set()
    await settle()
    await flushing
    assert writer.gauges().held is None
    await writer.close()


async def test_only_a_flush_is_logged_when_records_leave_slowly(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten records leave each second: writers that wait for room are slowed down, a flush waits."""

    async def slowly(request: FakeRequest) -> None:
        answered = asyncio.Event()
        clock.call_at(clock.now() + 1.0, answered.set)
        await answered.wait()
        fake.accept(request)

    fake.script = [slowly] * 100
    writer = make_writer(max_in_flight_requests=1, max_buffered_requests=200)
    await writer.__aenter__()
    writing = asyncio.create_task(writer.write_many(["x"] * 500))
    await clock.advance(28.0)
    assert not writing.done()
    assert logged(caplog) == []
    await clock.advance(3.0)
    await writing
    flushing = asyncio.create_task(writer.flush(end_of_input=True))
    await clock.advance(9.0)
    assert len(logged(caplog)) == 1
    assert held_by(writer).records > 0
    await clock.advance(15.0)
    await flushing
    await writer.close()


async def test_a_record_that_waits_for_its_batch_is_logged_only_when_a_flush_waits(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With a long time in the buffer."""

    class Closed:
        is_closed = False

        def register_in_flight_request(self, request: Any) -> None:
            pass

        def register_completed_request(self, result: Any) -> None:
            pass

        def should_block(self, request: Any) -> bool:
            return self.is_closed

        def get_max_batch_size(self) -> int:
            return 10

    strategy = Closed()
    writer = make_writer(max_time_in_buffer=timedelta(minutes=1), strategy=strategy)
    await writer.__aenter__()
    await writer.write("0")
    await clock.advance(40.0)
    assert logged(caplog) == []
    strategy.is_closed = True
    flushing = asyncio.create_task(writer.flush(end_of_input=True))
    await clock.advance(9.9)
    assert logged(caplog) == [0]
    assert (held_by(writer).reason, held_by(writer).attempts) == ("rate", 0)
    strategy.is_closed = False
    await clock.advance(0.2)
    await flushing
    await writer.close()


async def test_a_full_lane_is_logged_with_its_name(
    make_writer: MakeWriter, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A shard has taken nothing for a while: the strategy holds its records back."""

    class Hot(FakeDestination):
        async def submit(self, entries: Any, handler: Any) -> None:
            self.requests.append(FakeRequest(list(entries), handler))
            failures = [EntryFailure(index, "Slow") for index, entry in enumerate(entries) if int(entry) % 2]
            handler.retry_failures(failures, lanes=[f"shard-{int(entry) % 2}" for entry in entries])

    config = AsyncSinkConfig()
    shards = PerShardRateLimitingStrategy(records_per_second=1, hash_key=lambda entry: int(entry) % 2)
    writer = make_writer(
        fake=Hot(), strategy=All(aimd_strategy(config), shards), retry_backoff_maximum=timedelta(milliseconds=50)
    )
    await writer.__aenter__()
    await writer.write_many(list("0123456789"))
    await clock.advance(9.9)
    assert logged(caplog) == [1]
    held = held_by(writer)
    assert (held.record_number, held.error_code, held.lane) == (1, "Slow", "shard-1")
    assert held.reason in {"lane", "back_off"}
    await writer.close()


async def test_a_handler_that_does_not_return_is_logged(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is the handler's, and the flush waits for it."""
    taken = asyncio.Event()

    async def handle(record: Any) -> None:
        await taken.wait()

    fake.script = [fake.fail(4, code="Malformed")]
    writer = make_writer(terminal=CallbackHandler(handle), max_attempts=1)
    await writer.__aenter__()
    await writer.write_many(list("0123456789"))
    flushing = asyncio.create_task(writer.flush(end_of_input=True))
    await clock.advance(9.9)
    held = held_by(writer)
    assert (held.record_number, held.reason, held.error_code) == (4, "terminal_handler", "Malformed")
    assert logged(caplog) == [4]
    taken.set()
    await settle()
    await flushing
    await writer.close()
