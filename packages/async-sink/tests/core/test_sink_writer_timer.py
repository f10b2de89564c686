from collections.abc import Callable

from penstock.async_sink.testing import FakeClock, FakeDestination, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


async def test_the_timer_flushes_at_100_not_at_99_milliseconds(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """An unfull batch leaves exactly when its first entry has waited for the maximum."""
    async with make_writer() as writer:
        await writer.write("a")
        await clock.advance(0.05)
        await writer.write("b")
        await clock.advance(0.049)
        assert fake.batches == []
        await clock.advance(0.001)
        assert fake.batches == [["a", "b"]]


async def test_the_timer_does_not_wait_for_the_destination(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """With no request allowed, the timer marks what is due and does not block the loop; it leaves when it may."""
    fake.script = [fake.hold()]
    async with make_writer(max_in_flight_requests=1) as writer:
        await writer.write_many("a" * 10 + "bc")
        await clock.advance(0.1)
        assert len(fake.requests) == 1
        fake.requests[0].answer.set()
        await settle()
        assert fake.batches[1] == ["b", "c"]


async def test_the_timer_flushes_all_that_is_pending(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """More than a batch may wait when the timer fires: all of it is sent."""
    fake.script = [fake.hold()]
    async with make_writer(max_in_flight_requests=1) as writer:
        await writer.write_many("a" * 10 + "b" * 10 + "c" * 3)
        await clock.advance(0.1)
        fake.requests[0].answer.set()
        await settle()
        assert [len(batch) for batch in fake.batches] == [10, 10, 3]


async def test_what_is_due_leaves_though_failed_entries_come_back_before_it(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Entries that the timer marked leave at once; those that failed follow when they have backed off."""
    fake.script = [fake.hold(fake.fail())]
    async with make_writer(max_in_flight_requests=1) as writer:
        await writer.write_many("a" * 10 + "bcd")
        await clock.advance(0.1)
        fake.requests[0].answer.set()
        await clock.advance(0.05)
        assert [entry for batch in fake.batches[1:] for entry in batch] == list("bcd" + "a" * 10)
