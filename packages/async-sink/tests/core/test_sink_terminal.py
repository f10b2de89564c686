"""Records that cannot be written do not poison the others."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from penstock.async_sink import (
    CallbackHandler,
    DeadLetterHandler,
    DropHandler,
    EntryFailure,
    TerminalReason,
    TerminalRecord,
)
from penstock.async_sink.errors import RecordsRejectedError, SinkError, SinkOptionError, WriterClosedError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


class Poisoned(FakeDestination):
    """Refuses every request that holds one of the poisonous entries, without a word which."""

    def __init__(self, *poison: str) -> None:
        super().__init__()
        self.poison = set(poison)

    async def submit(self, entries: Any, handler: Any) -> None:
        self.requests.append(request := FakeRequest(list(entries), handler))
        if self.poison.intersection(entries):
            handler.reject_request(code="ValidationException", message="one of them is wrong")
        else:
            self.accept(request)


def refuse(*positions: int) -> Callable[[FakeRequest], None]:
    """Refuse these for good."""

    def behave(request: FakeRequest) -> None:
        request.handler.retry_failures(
            [EntryFailure(index, "Malformed", "no", throttled=False, final=True) for index in positions]
        )

    return behave


async def test_a_rejected_request_is_bisected_to_its_poison(make_writer: MakeWriter, clock: FakeClock) -> None:
    """All but the poisonous records arrive, in few requests, and each culprit is named."""
    fake, told = Poisoned("3", "7"), list[TerminalRecord[Any]]()
    async with make_writer(fake=fake, terminal=CallbackHandler(told.append), max_attempts=2) as writer:
        await writer.write_many("0123456789")
        await settle()
        assert sorted(fake.accepted) == list("01245689")
        assert writer.metrics.dead_lettered == 2
    assert [(each.entry, each.reason, each.error_code) for each in sorted(told, key=lambda each: each.entry)] == [
        ("3", TerminalReason.POISON, "ValidationException"),
        ("7", TerminalReason.POISON, "ValidationException"),
    ]
    assert len(fake.requests) <= 15
    assert writer.metrics.flush_reasons["bisected"] == len(fake.requests) - 1


async def test_neighbours_of_poison_are_not_charged_for_it(make_writer: MakeWriter, clock: FakeClock) -> None:
    """With one attempt allowed, the records that were sent along with a poisonous one are still written."""
    fake, drop = Poisoned("5"), DropHandler()
    async with make_writer(fake=fake, terminal=drop, max_attempts=1) as writer:
        await writer.write_many("0123456789")
    assert len(fake.accepted) == 9
    assert drop.dropped == 1


async def test_the_attempts_of_neighbours_count_from_their_own_failures(
    make_writer: MakeWriter, clock: FakeClock
) -> None:
    """Two attempts are allowed: a record that went along with a poisonous one three times still has both of them."""

    class FailingOnce(Poisoned):
        failed: ClassVar[set[str]] = set()

        async def submit(self, entries: Any, handler: Any) -> None:
            once = [index for index, entry in enumerate(entries) if entry not in self.failed]
            if self.poison.intersection(entries) or not once:
                await super().submit(entries, handler)
                return
            self.requests.append(request := FakeRequest(list(entries), handler))
            self.failed.update(entries)
            self.fail(*once)(request)

    fake, told = FailingOnce("5"), list[TerminalRecord[Any]]()
    async with make_writer(fake=fake, terminal=CallbackHandler(told.append), max_attempts=2) as writer:
        await writer.write_many("0123456789")
        await clock.advance(1.0)
    assert sorted(fake.accepted) == list("012346789")
    assert [(each.entry, each.reason) for each in told] == [("5", TerminalReason.POISON)]


async def test_without_a_handler_poison_ends_the_writer_and_stays_in_its_snapshot(make_writer: MakeWriter) -> None:
    """The error names the record; what was not sent yet is in the snapshot too."""
    writer = make_writer(fake=Poisoned("3"))
    await writer.__aenter__()
    await writer.write_many("0123456789")
    with pytest.raises(RecordsRejectedError) as caught:
        await writer.flush(end_of_input=True)
    assert [record.record_number for record in caught.value.records] == [3]
    kept = [entry for state in writer.snapshot_state() for entry, _ in state.entries]
    assert sorted(writer.fake.accepted + kept) == list("0123456789")
    assert "3" in kept
    await writer.close()


async def test_a_record_that_fails_too_often_is_handed_over_with_its_history(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Each failure is there with its time since the record was written, its code and the destination's words."""
    fake.script = [fake.fail(0, code="First"), fake.fail(0, code="Second")]
    told: list[TerminalRecord[Any]] = []
    async with make_writer(terminal=CallbackHandler(told.append), max_attempts=2) as writer:
        await writer.write_many("0123456789")
        await clock.advance(0.1)
        await writer.flush(end_of_input=True)
    (record,) = told
    assert (record.entry, record.record_number, record.attempts, record.size_in_bytes) == ("0", 0, 2, 1)
    assert (record.reason, record.destination) == (TerminalReason.ATTEMPTS, "FakeWriter")
    assert [(each.error_code, each.error_message) for each in record.history] == [
        ("First", "as told"),
        ("Second", "as told"),
    ]
    assert [each.seconds for each in record.history] == [pytest.approx(0.0), pytest.approx(0.05)]
    assert writer.metrics.records_out == 9
    assert dict(writer.metrics.attempts) == {1: 9}


async def test_the_history_of_a_record_is_bounded(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A record that fails for days does not grow for days: the latest twenty failures are kept."""
    fake.script = [fake.fail(0, code=f"Failure{number}") for number in range(30)]
    told: list[TerminalRecord[Any]] = []
    async with make_writer(terminal=CallbackHandler(told.append), max_attempts=30) as writer:
        await writer.write_many("0123456789")
        await clock.advance(60.0)
        await writer.flush(end_of_input=True)
    (record,) = told
    assert record.attempts == 30
    assert [each.error_code for each in record.history] == [f"Failure{number}" for number in range(10, 30)]


async def test_an_old_record_is_not_sent_again(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """When its time to live is over it is given up as expired, however many attempts it has left."""
    fake.script = [fake.fail(0)] * 50
    told: list[TerminalRecord[Any]] = []
    handler = CallbackHandler(told.append)
    async with make_writer(terminal=handler, time_to_live=timedelta(seconds=0.2)) as writer:
        await writer.write_many("0123456789")
        await clock.advance(0.5)
        await writer.flush(end_of_input=True)
    assert [(each.entry, each.reason) for each in told] == [("0", TerminalReason.EXPIRED)]
    assert (writer.metrics.expired, writer.metrics.rejected) == (1, 0)


async def test_a_record_that_expires_before_it_leaves_is_not_sent_at_all(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """One request is stuck; what waits behind it for too long is given up when its turn comes."""
    fake.script = [fake.hold()]
    drop = DropHandler()
    options = {"time_to_live": timedelta(seconds=1), "max_in_flight_requests": 1, "terminal": drop}
    async with make_writer(**options) as writer:
        await writer.write_many("0123456789" + "abc")
        await clock.advance(2.0)
        fake.requests[0].answer.set()
        await settle()
        await writer.flush(end_of_input=True)
    assert fake.accepted == list("0123456789")
    assert (drop.dropped, writer.metrics.dead_lettered) == (3, 3)


@pytest.mark.parametrize("end_of_input", [False, True])
async def test_dead_letters_count_when_their_sink_has_them(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, end_of_input: bool
) -> None:
    """Until then they are in the snapshot and hold the flush; then they have record, error and history."""
    letters = FakeDestination()
    letters.script = [letters.hold()]
    made: list[FakeWriter] = []

    def dead_letters() -> FakeWriter:
        made.append(FakeWriter(letters, converter=lambda record: (record.entry, record.error_code), clock=clock))
        return made[0]

    fake.script = [refuse(4)]
    async with make_writer(terminal=DeadLetterHandler(dead_letters)) as writer:
        await writer.write_many("0123456789")
        await settle()
        assert [state.entries for state in writer.snapshot_state()] == [(("4", 1),)]
        flushing = asyncio.create_task(writer.flush(end_of_input))
        await settle()
        assert not flushing.done()
        letters.requests[0].answer.set()
        await flushing
        assert writer.snapshot_state() == []
    assert letters.accepted == [("4", "Malformed")]
    assert made[0].metrics.records_out == 1
    with pytest.raises(WriterClosedError):
        await made[0].write("closed with the writer whose dead letters it took")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_handler_that_fails_ends_the_writer_and_loses_nothing(
    make_writer: MakeWriter, fake: FakeDestination, asynchronous: bool
) -> None:
    """The records that it did not take are in the snapshot."""

    def synchronous(record: TerminalRecord[Any]) -> None:
        raise OSError("disk full")

    async def later(record: TerminalRecord[Any]) -> None:
        raise OSError("disk full")

    fake.script = [refuse(4, 5)]
    writer = make_writer(terminal=CallbackHandler(later if asynchronous else synchronous))
    await writer.__aenter__()
    await writer.write_many("0123456789")
    with pytest.raises(OSError, match="disk full"):
        await writer.flush(end_of_input=True)
    assert [state.entries for state in writer.snapshot_state()] == [(("4", 1), ("5", 1))]
    await writer.close()


async def test_a_handler_that_is_cancelled_ends_the_writer_and_loses_nothing(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """What it awaits was cancelled, not the writer closed: nobody waits for it for ever."""

    async def cancelled(record: TerminalRecord[Any]) -> None:
        raise asyncio.CancelledError

    fake.script = [refuse(4)]
    writer = make_writer(terminal=CallbackHandler(cancelled))
    await writer.__aenter__()
    await writer.write_many("0123456789")
    with pytest.raises(SinkError, match="handler was cancelled"):
        await writer.flush(end_of_input=True)
    assert [state.entries for state in writer.snapshot_state()] == [(("4", 1),)]
    await writer.close()


async def test_a_dead_letter_sink_that_cannot_be_opened_leaves_nothing_open(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """The destination that was opened before it is closed again; the error is that of the dead letters' sink."""
    events: list[str] = []

    class Watched(FakeWriter):
        async def open_destination(self) -> None:
            events.append(f"open {self.destination}")
            if self.destination == "letters":
                raise OSError("no such table")

        async def close_destination(self) -> None:
            events.append(f"close {self.destination}")

    handler = DeadLetterHandler(lambda: Watched(FakeDestination(), destination="letters"))
    with pytest.raises(OSError, match="no such table"):
        async with Watched(fake, destination="flights", terminal=handler):
            pass
    assert events == ["open flights", "open letters", "close flights"]


def test_wrong_bounds_are_errors(make_writer: MakeWriter) -> None:
    """Time to live is more than 0, and no write waits for a negative time."""
    for option in ({"time_to_live": timedelta(0)}, {"max_block_time": timedelta(seconds=-1)}):
        with pytest.raises(SinkOptionError) as caught:
            make_writer(**option)
        assert caught.value.option == next(iter(option))


async def test_a_flush_that_finds_an_entry_too_old_says_so(make_writer: Any, clock: FakeClock) -> None:
    """Nobody takes it: the flush raises at once, and does not wait for an answer that cannot come."""
    writer = make_writer(time_to_live=timedelta(milliseconds=50))
    await writer.__aenter__()
    await writer.write("old")
    await clock.advance(0.06)
    with pytest.raises(RecordsRejectedError):
        async with asyncio.timeout(60):
            await writer.flush(end_of_input=True)
    await writer.close()


@pytest.mark.parametrize(("takes_many", "calls"), [(False, [["a"], ["b"]]), (True, [["a", "b"]])])
async def test_a_handler_of_ones_own_gets_as_many_records_as_it_takes(
    make_writer: MakeWriter, clock: FakeClock, takes_many: bool, calls: list[list[str]]
) -> None:
    """In a call; it says so itself, as the protocol asks."""
    own = Own(takes_many)
    async with make_writer(fake=FakeDestination(refuse(0, 1)), terminal=own) as writer:
        await writer.write_many("abc")
    assert own.calls == calls


async def test_a_handler_that_does_not_say_is_told_as_the_writer_is_opened(make_writer: MakeWriter) -> None:
    """And not as the first record is given up, which may be much later."""
    own: Any = Own(takes_many=False)
    del own.takes_many
    with pytest.raises(AttributeError, match="takes_many"):
        await make_writer(fake=FakeDestination(), terminal=own).__aenter__()


class Own:
    def __init__(self, takes_many: bool) -> None:
        self.takes_many = takes_many
        self.calls: list[list[str]] = []

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def handle(self, records: Any) -> None:
        self.calls.append([each.entry for each in records])


async def test_a_write_goes_on_in_the_room_of_what_is_too_old(make_writer: Any, clock: FakeClock, fake: Any) -> None:
    """The handler took it in the very moment in which the writer looked for room: nothing else would wake it."""
    drop = DropHandler()
    options = {"time_to_live": timedelta(seconds=1), "max_time_in_buffer": timedelta(seconds=10)}
    async with make_writer(terminal=drop, max_buffered_bytes=1_000, **options) as writer:
        await writer.write(600)
        await clock.advance(2)
        await asyncio.wait_for(writer.write(601), 5)
        assert drop.dropped == 1
    assert fake.accepted == [601]
