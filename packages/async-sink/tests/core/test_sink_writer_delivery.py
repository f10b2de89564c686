import asyncio
from collections.abc import Callable

import pytest

from penstock.async_sink.errors import RecordError, SinkError
from penstock.async_sink.testing import FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


async def test_a_full_batch_leaves_at_once_and_an_unfull_one_waits(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """Nine of ten entries wait; the tenth sends them all."""
    async with make_writer() as writer:
        await writer.write_many("abcdefghi")
        await settle()
        assert fake.batches == []
        await writer.write("j")
        await settle()
        assert fake.batches == [list("abcdefghij")]


async def test_the_number_and_the_bytes_limit_batches_together(make_writer: MakeWriter, fake: FakeDestination) -> None:
    """Whichever limit is reached first cuts the batch."""
    async with make_writer(max_batch_size=3, max_batch_size_in_bytes=1_000) as writer:
        await writer.write_many([10, 10, 10, 500, 500, 10, 10, 10])
    assert fake.batches == [[10, 10, 10], [500, 500], [10, 10, 10]]


async def test_flush_at_the_end_sends_the_rest_without_the_timer(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """No time passes, and an unfull batch leaves."""
    async with make_writer() as writer:
        await writer.write_many("abc")
        await writer.flush(end_of_input=True)
        assert fake.accepted == list("abc")
        assert writer.buffered_entries == 0


async def test_flush_in_between_waits_for_what_is_in_flight_only(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """flush() returns when the requests in flight are answered; the unfull batch stays."""
    fake.script = [fake.hold()]
    async with make_writer() as writer:
        await writer.write_many("abcdefghijkl")
        flushing = asyncio.create_task(writer.flush())
        await settle()
        assert not flushing.done()
        fake.requests[0].answer.set()
        await flushing
        assert fake.accepted == list("abcdefghij")
        assert writer.buffered_entries == 2


async def test_leaving_the_block_by_an_exception_sends_nothing_more(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """The caller's exception passes through, and the entries stay for the snapshot."""
    writer = make_writer()

    async def write_and_stumble() -> None:
        async with writer:
            await writer.write_many("abc")
            raise KeyError

    with pytest.raises(KeyError):
        await write_and_stumble()
    assert fake.batches == []
    assert [entry for entry, _ in writer.snapshot_state()[0].entries] == list("abc")


async def test_an_exception_in_submit_reaches_the_caller_and_earlier_batches_stay(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """The error ends the writer; what was accepted before it is counted, the rest is in the snapshot."""
    fake.script = [fake.accept, fake.hold(fake.explode(ZeroDivisionError("as told")))]
    writer = make_writer(max_in_flight_requests=1)
    async with writer:
        await writer.write_many("a" * 10 + "b" * 10 + "c" * 5)
        await settle()
        fake.requests[1].answer.set()
        with pytest.raises(ZeroDivisionError, match="as told"):
            await writer.flush(end_of_input=True)
    assert fake.accepted == list("a" * 10)
    assert writer.metrics.records_out == 10
    assert [entry for entry, _ in writer.snapshot_state()[0].entries] == list("b" * 10 + "c" * 5)


async def test_an_oversize_element_raises_on_write_and_the_writer_continues(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """The error names the record, its size and the limit."""
    async with make_writer(max_record_size_in_bytes=100) as writer:
        await writer.write(100)
        with pytest.raises(RecordError) as caught:
            await writer.write(101)
        await writer.write(1)
    assert (caught.value.record_number, caught.value.size_in_bytes, caught.value.limit_in_bytes) == (1, 101, 100)
    assert fake.accepted == [100, 1]


async def test_a_submission_that_answers_nothing_is_an_error(make_writer: MakeWriter, fake: FakeDestination) -> None:
    """A destination that forgets its result handler raises instead of hanging."""

    def forget(request: FakeRequest) -> None:
        pass

    fake.script = [forget]
    with pytest.raises(SinkError, match="UNANSWERED_REQUEST"):
        async with make_writer() as writer:
            await writer.write("a")


async def test_a_writer_outside_of_its_block_is_an_error(make_writer: MakeWriter) -> None:
    """Before entering and after leaving, writing raises."""
    writer = make_writer()
    with pytest.raises(SinkError, match="WRITER_CLOSED"):
        await writer.write("a")
    async with writer:
        pass
    with pytest.raises(SinkError, match="WRITER_CLOSED"):
        await writer.write("a")


async def test_a_full_buffer_holds_the_caller_until_there_is_room(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """What waits counts, beside what is in flight; an answer lets the next request leave, which makes room."""
    fake.script = [fake.hold(), fake.hold()]
    async with make_writer(max_batch_size=10, max_buffered_requests=20, max_in_flight_requests=2) as writer:
        await writer.write_many("x" * 40)
        writing = asyncio.create_task(writer.write("y"))
        await settle()
        assert not writing.done()
        fake.requests[0].answer.set()
        await writing
        fake.requests[1].answer.set()
    assert len(fake.accepted) == 41


async def test_a_cancelled_write_is_not_written(make_writer: MakeWriter, fake: FakeDestination) -> None:
    """Cancelled while it waits for room, the element is nowhere."""
    fake.script = [fake.hold(), fake.hold()]
    async with make_writer(max_buffered_requests=20, max_in_flight_requests=2) as writer:
        await writer.write_many("x" * 40)
        writing = asyncio.create_task(writer.write("y"))
        await settle()
        writing.cancel()
        await settle()
        for request in fake.requests:
            request.answer.set()
    assert fake.accepted == list("x" * 40)
