import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.async_sink import EntryFailure, FatalExceptionClassifier, RequestInfo, ResultInfo
from penstock.async_sink.errors import RecordsRejectedError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


async def test_a_small_failed_remainder_does_not_wait_for_the_timer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """It is sent after its back-off, however few entries it has."""
    fake.script = [fake.fail(0)]
    async with make_writer(max_time_in_buffer=timedelta(hours=1)) as writer:
        await writer.write_many("0123456789")
        await clock.advance(0.05)
        assert fake.batches[1] == ["0"]


async def test_there_is_a_growing_back_off_between_attempts(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """The bound of the wait doubles with each attempt of an entry, up to its maximum."""
    fake.script = [fake.fail(throttled=False) for _ in range(4)]
    async with make_writer(retry_backoff_maximum=timedelta(milliseconds=150)) as writer:
        await writer.write_many("0123456789")
        for attempt, delay in enumerate((0.05, 0.1, 0.15, 0.15), start=1):
            await clock.advance(delay - 0.001)
            assert len(fake.requests) == attempt
            await clock.advance(0.001)
            assert len(fake.requests) == attempt + 1
    assert fake.accepted == list("0123456789")


async def test_requests_that_all_fail_do_not_overfill_the_writer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Never more is held than fits into the buffer and into the requests in flight, whatever comes back."""
    fake.script = [fake.hold(fake.fail()) for _ in range(3)]
    async with make_writer(max_buffered_requests=30, max_in_flight_requests=3) as writer:
        writing = asyncio.create_task(writer.write_many("x" * 100))
        await settle()
        assert (writer.in_flight_messages, writer.buffered_entries) == (30, 30)
        for request in fake.requests:
            request.answer.set()
        held = []
        while not writing.done():
            await clock.advance(0.01)
            held.append(writer.in_flight_messages + writer.buffered_entries)
        assert max(held) <= 60
    assert len(fake.accepted) == 100


async def test_an_exception_that_is_not_fatal_is_tried_again(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """The classifier decides, and looks through chains of causes."""

    def wrapped(request: FakeRequest) -> None:
        try:
            raise PermissionError("not yours")
        except PermissionError as error:
            raise RuntimeError("it went wrong") from error

    classifier = FatalExceptionClassifier.of_types(PermissionError)
    fake.script = [fake.explode(ConnectionError()), wrapped]
    async with make_writer(classifier=classifier) as writer:
        await writer.write_many("0123456789")
        await settle()
        assert writer.failure is None
        await clock.advance(0.05)
        with pytest.raises(PermissionError, match="not yours"):
            await writer.flush()


async def test_with_fail_on_error_the_first_failure_ends_the_writer(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """The error names the record, its attempts and the destination's words; the record is in the snapshot."""
    fake.script = [fake.fail(3, code="Poison")]
    async with make_writer(fail_on_error=True) as writer:
        await writer.write_many("0123456789")
        await settle()
        with pytest.raises(RecordsRejectedError) as caught:
            await writer.flush()
        assert [entry for entry, _ in writer.snapshot_state()[0].entries] == ["3"]
    (record,) = caught.value.records
    assert (record.record_number, record.attempts, record.error_code) == (3, 1, "Poison")


async def test_a_request_without_an_answer_is_sent_again(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """At the time-out its entries return to the head of the buffer."""
    fake.script = [fake.hold()]
    async with make_writer() as writer:
        await writer.write_many("0123456789")
        await clock.advance(9.99)
        assert len(fake.requests) == 1
        await clock.advance(0.01 + 0.05)
        assert fake.batches == [list("0123456789")] * 2
    assert writer.metrics.timed_out == 1


async def test_an_answer_after_the_time_out_is_ignored(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """The entries are in the buffer again: a late answer neither completes nor duplicates them."""
    fake.script = [fake.hold()]
    async with make_writer() as writer:
        await writer.write_many("0123456789")
        await clock.advance(10.0)
        fake.requests[0].handler.complete()
        fake.requests[0].handler.complete_exceptionally(RuntimeError())
        assert writer.metrics.records_out == 0
        assert writer.buffered_entries == 10
        await clock.advance(0.05)
        assert writer.metrics.records_out == 10
    assert len(fake.requests) == 2


@pytest.mark.parametrize("places", [[10], [-1], [3, 3]])
async def test_places_that_are_not_in_the_request_are_an_error(
    make_writer: MakeWriter, fake: FakeDestination, places: list[int]
) -> None:
    """An answer about other entries must not acknowledge these."""

    def misplace(request: FakeRequest) -> None:
        request.handler.retry_failures([EntryFailure(place) for place in places])

    fake.script = [misplace]
    async with make_writer() as writer:
        await writer.write_many("0123456789")
        await settle()
        with pytest.raises(ValueError, match="not distinct places"):
            await writer.flush()
    assert writer.metrics.records_out == 0


class Gate:
    """A strategy that opens at a time, with nothing in flight to wake it."""

    def __init__(self, opens_at: float, says_when: bool) -> None:
        self.opens_at = opens_at
        self.says_when = says_when
        self.asked: list[int] = []

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self.registered = request

    def register_completed_request(self, result: ResultInfo) -> None:
        self.completed = result

    def should_block(self, request: RequestInfo) -> bool:
        self.asked.append(request.batch_size)
        return request.now < self.opens_at

    def get_max_batch_size(self) -> int:
        return 1_000

    def ask_again_after(self, request: RequestInfo) -> float | None:
        return self.opens_at - request.now if self.says_when else None


@pytest.mark.parametrize(("says_when", "within"), [(True, 0.0), (False, 0.1)])
async def test_a_strategy_that_blocks_on_time_wakes_up_with_nothing_in_flight(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, says_when: bool, within: float
) -> None:
    """It is asked again when it said so, and soon when it did not."""
    gate = Gate(clock.now() + 3.0, says_when)
    async with make_writer(strategy=gate) as writer:
        await writer.write_many("0123456789")
        await clock.advance(2.999)
        assert fake.requests == []
        await clock.advance(0.001 + within)
        assert len(fake.requests) == 1
