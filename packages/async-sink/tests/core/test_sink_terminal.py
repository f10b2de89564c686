"""Records that cannot be written do not poison the others."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock.async_sink import (
    CallbackHandler,
    DeadLetterHandler,
    DropHandler,
    EntryFailure,
    TerminalReason,
    TerminalRecord,
)
from penstock.async_sink.errors import RecordsRejectedError, SinkError
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
    """Refuse these permanently."""

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


async def test_an_old_record_is_not_sent_again(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """When its time to live is over it expires, however many attempts it has left."""
    fake.script = [fake.fail(0)] * 50
    told: list[TerminalRecord[Any]] = []
    handler = CallbackHandler(told.append)
    async with make_writer(terminal=handler, time_to_live=timedelta(seconds=0.2)) as writer:
        await writer.write_many("0123456789")
        await clock.advance(0.5)
        await writer.flush(end_of_input=True)
    assert [(each.entry, each.reason) for each in told] == [("0", TerminalReason.EXPIRED)]
    assert (writer.metrics.expired, writer.metrics.rejected) == (1, 0)


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
    with pytest.raises(SinkError, match="WRITER_CLOSED"):
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


async def test_a_handler_without_takes_many_raises_when_the_writer_opens(make_writer: MakeWriter) -> None:
    """Not when the first record is abandoned, which may be much later."""
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


async def test_a_handler_that_is_cancelled_ends_the_writer_and_loses_nothing(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """The handler's awaitable was cancelled, not the writer closed: the writer does not wait for it forever."""

    async def cancelled(record: TerminalRecord[Any]) -> None:
        raise asyncio.CancelledError

    fake.script = [refuse(4)]
    writer = make_writer(terminal=CallbackHandler(cancelled))
    await writer.__aenter__()
    await writer.write_many("0123456789")
    with pytest.raises(SinkError) as caught:
        await writer.flush(end_of_input=True)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert [state.entries for state in writer.snapshot_state()] == [(("4", 1),)]
    await writer.close()
