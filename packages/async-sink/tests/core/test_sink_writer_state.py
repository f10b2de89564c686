import asyncio
from collections.abc import Callable
from typing import Any

from penstock.async_sink import BufferedRequestState
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


def entries_of(writer: FakeWriter) -> list[str]:
    return [entry for state in writer.snapshot_state() for entry, _ in state.entries]


async def test_a_snapshot_is_in_the_order_of_writing(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Entries in flight, refused or waiting: a successor writes them in the original order."""
    fake.script = [fake.hold(), fake.hold(fake.fail()), fake.hold(), fake.hold(fake.fail()), fake.hold()]
    async with make_writer(max_in_flight_requests=5) as writer:
        await writer.write_many(str(number) for number in range(57))
        await settle()
        for place in (3, 1):
            fake.requests[place].answer.set()
            await settle()
        assert entries_of(writer) == [str(number) for number in range(57)]
        for place in (4, 0, 2):
            fake.requests[place].answer.set()
        await clock.advance(0.1)


async def test_what_failed_in_flight_is_in_the_snapshot_and_sent_after_a_restore(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """An entry that failed during flush() belongs to the state, ahead of newer entries."""
    fake.script = [fake.hold(fake.fail(4, 7))]
    writer = make_writer()
    async with writer:
        await writer.write_many("0123456789ab")
        await settle()
        fake.requests[0].answer.set()
        await writer.flush()
        states = writer.snapshot_state()
        await writer.close()
    successor = FakeDestination()
    async with make_writer(fake=successor, initial_states=states) as restored:
        await clock.advance(0.1)
        assert successor.accepted == list("47ab")
        assert restored.metrics.records_out == 4


async def test_several_states_merge_into_one_writer(make_writer: MakeWriter, fake: FakeDestination) -> None:
    """After a rescale one writer takes over from several, state by state."""
    states = []
    for word in ("abc", "de"):
        async with make_writer() as writer:
            await writer.write_many(word)
            states += writer.snapshot_state()
            await writer.close()
    async with make_writer(initial_states=states) as merged:
        assert [entry for entry, _ in merged.snapshot_state()[0].entries] == list("abcde")
    assert fake.accepted == list("abcde")


async def test_a_running_writer_can_take_over_a_state(make_writer: MakeWriter, fake: FakeDestination) -> None:
    """restore adds behind what was written so far."""
    async with make_writer() as writer:
        await writer.write("a")
        writer.restore([BufferedRequestState((("b", 1),))])
        await writer.write("c")
    assert fake.accepted == list("abc")


async def test_a_close_that_is_cancelled_loses_nothing(make_writer: Any, fake: FakeDestination) -> None:
    """Entries in flight are in the snapshot, though their request has not ended yet."""
    slow_to_end, cancelled = asyncio.Event(), asyncio.Event()

    async def stubborn(request: FakeRequest) -> None:
        try:
            await request.answer.wait()
        finally:
            cancelled.set()
            await slow_to_end.wait()

    fake.script = [stubborn]
    writer = make_writer()
    await writer.__aenter__()
    await writer.write_many("abcdefghijk")
    await settle()
    closing = asyncio.create_task(writer.close())
    await cancelled.wait()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert [entry for entry, _ in writer.snapshot_state()[0].entries] == list("abcdefghijk")
    slow_to_end.set()
    await settle()


async def test_a_custom_sink_adds_its_state_to_the_snapshot(fake: FakeDestination) -> None:
    """The snapshot has it, with entries and without; a successor finds it in its initial states."""

    class Counting(FakeWriter):
        def __init__(self, fake: FakeDestination, states: list[BufferedRequestState[Any]]) -> None:
            self.offset = sum(int(state.sink_state) for state in states)
            super().__init__(fake, initial_states=states)

        def sink_state(self) -> bytes:
            return str(self.offset).encode() if self.offset else b""

    async with Counting(fake, []) as writer:
        assert writer.snapshot_state() == []
        await writer.write("a")
        writer.offset = 17
        assert writer.snapshot_state() == [BufferedRequestState((("a", 1),), b"17")]
        await writer.flush(end_of_input=True)
        states = writer.snapshot_state()
        assert states == [BufferedRequestState((), b"17")]
    async with Counting(fake, states * 2) as successor:
        assert successor.offset == 34
