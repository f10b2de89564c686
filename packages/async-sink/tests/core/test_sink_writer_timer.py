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


async def test_the_timer_counts_from_the_first_entry_after_the_buffer_was_empty(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Entries that left in a full batch do not shorten the time of later ones."""
    async with make_writer() as writer:
        await writer.write_many("a" * 10)
        await clock.advance(0.06)
        await writer.write("b")
        await clock.advance(0.099)
        assert fake.batches == [["a"] * 10]
        await clock.advance(0.001)
        assert fake.batches == [["a"] * 10, ["b"]]


async def test_each_request_has_its_own_time_out(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Ten seconds after it was sent, whenever the requests before it were sent, and whether they were answered."""
    fake.script = [fake.accept, fake.hold(), fake.hold()]
    async with make_writer() as writer:
        await writer.write_many("a" * 10)
        await clock.advance(4.0)
        await writer.write_many("b" * 10)
        await clock.advance(2.0)
        await writer.write_many("c" * 10)
        timed_out = []
        for seconds in (7.9, 0.1, 1.9, 0.1):
            await clock.advance(seconds)
            timed_out.append(writer.metrics.timed_out)
        assert timed_out == [0, 1, 1, 2]
        # Requests that timed out are sent again after their back-off.
        await clock.advance(1.0)
    assert sorted(fake.accepted) == sorted("a" * 10 + "b" * 10 + "c" * 10)
