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


async def test_there_is_exactly_one_timer(make_writer: MakeWriter, clock: FakeClock) -> None:
    """Further entries do not set further timers."""
    async with make_writer() as writer:
        await writer.write_many("abc")
        assert clock.pending(within=0.1) == 1


async def test_the_timer_can_be_set_again(make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock) -> None:
    """After it went off, the next entry into the empty buffer sets it anew."""
    async with make_writer() as writer:
        for letter in "abc":
            await writer.write(letter)
            await clock.advance(0.099)
            assert letter not in fake.accepted
            await clock.advance(0.001)
            assert letter in fake.accepted
    assert fake.batches == [["a"], ["b"], ["c"]]


async def test_an_emptied_buffer_forgets_its_timer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A batch that left because it was full does not make the next entry leave early."""
    async with make_writer() as writer:
        await writer.write_many("abcdefghij")
        await clock.advance(0.06)
        await writer.write("k")
        await clock.advance(0.099)
        assert len(fake.batches) == 1
        await clock.advance(0.001)
        assert fake.batches[1] == ["k"]


async def test_the_timer_does_not_wait_for_the_destination(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """With no request allowed, the timer marks what is due and the loop goes on; it leaves when it may."""
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
    """More than a batch may wait when the timer goes off: all of it leaves."""
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


async def test_a_timer_is_set_for_whatever_stays_behind(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """While anything is in the buffer there is a timer for it, though it went off before and nobody writes any more."""
    fake.script = [fake.hold()]
    async with make_writer(max_in_flight_requests=1) as writer:
        await writer.write_many("a" * 10 + "bcd")
        await clock.advance(0.1)
        assert clock.pending(within=0.1) == 1
        fake.requests[0].answer.set()
