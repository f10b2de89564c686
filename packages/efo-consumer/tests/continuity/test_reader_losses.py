"""Positions that the stream has outlived, when a session is opened and while it is followed."""

from __future__ import annotations

import asyncio
import time

import pytest
from reader_homes import read

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    DataLossError,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherType,
    Shard,
    ShardFailedError,
    ShardPosition,
    ShardRange,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer._continuity.lineage import successors
from penstock.efo_consumer._continuity.rule import OldestRecord
from penstock.efo_consumer._model.positions import after_record
from penstock.efo_consumer.errors import RecordPublisherFatalError, StreamRecreatedError
from penstock.efo_consumer.testing import FakeKinesis
from penstock.emulator.testing import running_emulator

NOW = 1_790_000_000
DAY = 86_400


def number_of(second: int, counter: int = 0) -> int:
    """The sequence number of a fake record that arrives at a second."""
    return second * 100 + counter


def kinesis_with(*seconds: int) -> tuple[FakeKinesis, str]:
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    kinesis.shards["s", shard].sequence_numbers = [number_of(second, n) for n, second in enumerate(seconds)]
    kinesis.shards["s", shard].data = [b"row"] * len(seconds)
    kinesis.tip = number_of(NOW, len(seconds))
    return kinesis, shard


def at(shard: str, second: int) -> StreamPositions:
    return StreamPositions({"s": {shard: after_record(str(number_of(second)), second * 1000)}})


def reader_of(kinesis: FakeKinesis, **options: bool) -> LocalShardReader:
    return LocalShardReader(kinesis, ReaderConfig(**options))  # type: ignore[arg-type]  # flags


async def test_opening_at_a_position_that_the_stream_has_outlived_is_an_error() -> None:
    """The shard's oldest record is after the position, which is older than the retention: the error has both."""
    kinesis, shard = kinesis_with(NOW - 60)
    async with reader_of(kinesis) as reader:
        with pytest.raises(DataLossError, match=r"25\.0 h have passed .* keeps records for 24 h") as raised:
            await reader.open(OpenRequest(session_id="q", positions=at(shard, NOW - 25 * 3600)))
    assert (raised.value.stream, raised.value.shard_id) == ("s", shard)


async def test_told_to_go_on_the_reader_counts_the_loss_and_gives_what_is_left() -> None:
    """The session opens, the shard's stats count one loss, and the records that are left come."""
    kinesis, shard = kinesis_with(NOW - 60)
    start = at(shard, NOW - 25 * 3600)
    async with reader_of(kinesis, fail_on_data_loss=False) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        assert (await reader.positions("q", epoch, start, wait_seconds=5)).records == 1
        assert [stats.losses for stats in await reader.stats("q")] == [1]


async def test_an_old_position_is_no_loss_while_the_record_at_it_is_there() -> None:
    """The retention may have been longer than it says now: Kinesis' oldest record decides."""
    kinesis, shard = kinesis_with(NOW - 26 * 3600, NOW - 60)
    start = at(shard, NOW - 25 * 3600)
    async with reader_of(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        assert (await reader.positions("q", epoch, start, wait_seconds=5)).records == 1


async def test_a_position_of_which_nothing_is_known_is_compared_with_what_is_left() -> None:
    """Like positions of version 1: continuous if the record at it is still there, and unproved otherwise."""
    kinesis, shard = kinesis_with(NOW - 120, NOW - 60)
    known = StreamPositions({"s": {shard: ShardPosition.after(str(number_of(NOW - 120)))}})
    older = StreamPositions({"s": {shard: ShardPosition.after(str(number_of(NOW - 300)))}})
    async with reader_of(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=known))
        assert (await reader.positions("q", epoch, known, wait_seconds=5)).records == 1
        with pytest.raises(DataLossError, match="version 1"):
            await reader.open(OpenRequest(session_id="q", positions=older))


@pytest.mark.parametrize("fail", [True, False])
async def test_a_position_that_kinesis_refuses_is_told_or_passed_over(fail: bool) -> None:
    """The loss is raised; with fail_on_data_loss=False the shard is read from its oldest record."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    numbers = kinesis.put("s", shard, 3)
    start = StreamPositions({"s": {shard: after_record("500", 5000)}})
    kinesis.pass_day()
    refusal = RecordPublisherFatalError("old", stream="s", shard_id=shard, code="InvalidArgumentException")
    kinesis.fail("s", shard, refusal)
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=fail)) as reader:
        if fail:
            with pytest.raises(DataLossError, match="the oldest record left is 1003"):
                await reader.open(OpenRequest(session_id="q", positions=start))
            return
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        found = await reader.positions("q", epoch, start, wait_seconds=5)
        assert await read(reader, start, found.positions) == numbers
        assert [stats.losses for stats in await reader.stats("q")] == [1]


class ExpiringKinesis(FakeKinesis):
    """A stream whose first shard expires while somebody looks for its oldest record."""

    async def oldest_record(self, stream_name: str, shard_id: str) -> OldestRecord | None:
        if shard_id != "shardId-000000000000":
            return await super().oldest_record(stream_name, shard_id)
        self.shards[stream_name, shard_id].gone = True
        code = "ResourceNotFoundException"
        raise RecordPublisherFatalError("gone", stream=stream_name, shard_id=shard_id, code=code, resource="shard")


async def test_a_shard_that_expires_after_its_position_was_refused_is_a_loss() -> None:
    """Not a shard that cannot be read: between two calls its last record may expire, and it with that."""
    kinesis = ExpiringKinesis()
    (shard,) = kinesis.create_stream("s")
    numbers = kinesis.put("s", shard, 3)
    start = StreamPositions({"s": {shard: after_record(str(numbers[0]), numbers[0] * 10)}})
    children = kinesis.reshard("s", [shard], 2)
    kept = kinesis.put("s", children[0], 2)
    refusal = RecordPublisherFatalError("old", stream="s", shard_id=shard, code="InvalidArgumentException")
    kinesis.fail("s", shard, refusal)
    kinesis.pass_day()
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=False)) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        found = await reader.positions("q", epoch, start, wait_seconds=5)
        assert found.records == len(kept)
        assert {stats.losses for stats in await reader.stats("q") if stats.shard_id == shard} == {1}


@pytest.mark.parametrize("fail", [True, False])
async def test_a_shard_that_is_gone_is_told_or_left_for_its_children(fail: bool) -> None:
    """An expired shard ends where it stood; its children begin with what they still hold."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    numbers = kinesis.put("s", shard, 3)
    start = StreamPositions({"s": {shard: after_record(str(numbers[0]), numbers[0] * 10)}})
    children = kinesis.reshard("s", [shard], 2)
    kept = kinesis.put("s", children[0], 2)
    kinesis.expire("s", shard)
    gone = RecordPublisherFatalError("gone", stream="s", shard_id=shard, code="ResourceNotFoundException")
    kinesis.fail("s", shard, gone)
    async with LocalShardReader(kinesis, ReaderConfig(fail_on_data_loss=fail)) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        if fail:
            with pytest.raises(DataLossError, match="the shard is gone"):
                await reader.positions("q", epoch, start, wait_seconds=5)
            return
        found = await reader.positions("q", epoch, start, wait_seconds=5)
        assert await read(reader, start, found.positions) == kept


async def test_a_consumer_that_is_gone_is_no_loss() -> None:
    """ResourceNotFound has two meanings: the shard is still listed, so it is the consumer."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    gone = RecordPublisherFatalError("gone", stream="s", shard_id=shard, code="ResourceNotFoundException")
    kinesis.fail("s", shard, gone)
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        with pytest.raises(ShardFailedError, match="gone"):
            await reader.positions("q", epoch, start, wait_seconds=5)


def test_what_goes_on_after_an_expired_shard_is_what_nobody_reads() -> None:
    """Its children; or, when they are gone too, the oldest shards that are not read, nor are their descendants."""
    listed = [Shard("c", ("a",)), Shard("d", ("a",)), Shard("x", ("gone",)), Shard("y", ("x",))]
    assert [shard.shard_id for shard in successors("a", listed, {"a", "y"})] == ["c", "d"]
    late = successors("z", listed, {"z", "y"})
    assert late == (
        Shard("c", ("z",)),
        Shard("d", ("z",)),
    )


def test_of_a_child_that_is_gone_too_its_own_children_go_on() -> None:
    """Beside the other child; what is older than the shard, or was never part of another, is not a child of it."""
    listed = [Shard("a"), Shard("b", ("0",)), Shard("e", ("c",)), Shard("f", ("d",)), Shard("g")]
    found = successors("c", listed, {"c"})
    assert [(shard.shard_id, shard.parent_shard_ids) for shard in found] == [("e", ("c",)), ("f", ("c",))]
    assert [shard.shard_id for shard in successors("c", listed, {"c", "f"})] == ["e"]


@pytest.mark.parametrize("publisher", list(RecordPublisherType)[1:])
@pytest.mark.parametrize("fail", [True, False])
async def test_the_emulator_refuses_what_it_trimmed(publisher: RecordPublisherType, fail: bool) -> None:
    """Over sockets: a position from before the retention is an error, or the records that are left come."""
    with running_emulator() as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=1)
        first = client.put_record(StreamName="s", Data=b"first", PartitionKey="k")
        shard = first["ShardId"]
        old = str(int(first["SequenceNumber"]) - (2 * DAY << 36))
        start = StreamPositions({"s": {shard: ShardPosition.after(old)}})
        session = AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))
        config = ReaderConfig(fail_on_data_loss=fail)
        async with LocalShardReader(KinesisBackend(session), config) as reader:
            request = OpenRequest(session_id="q", positions=start, record_publisher=publisher)
            whole = ShardRange("s", shard, start.streams["s"][shard], ShardPosition.after(first["SequenceNumber"]))
            if fail:
                with pytest.raises(DataLossError):
                    await reader.open(request)
                with pytest.raises(DataLossError):
                    await anext(reader.read_range("q", [whole]))
                return
            epoch = await reader.open(request)
            async with asyncio.timeout(120):
                found = await reader.positions("q", epoch, start, wait_seconds=15)
            assert found.records == 1
            assert (await anext(reader.read_range("other", [whole]))).column("data").to_pylist() == [b"first"]


@pytest.mark.parametrize("fail", [True, False])
async def test_records_that_expire_while_buffers_are_full_are_no_silent_loss(fail: bool) -> None:
    """A caller that paused for a day gets an error when it continues, though Kinesis skips the gap silently."""
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    read = kinesis.put("s", shard, 3, size=10_000)
    lost = kinesis.put("s", shard, 1, size=10_000)
    start = kinesis.trim_horizon("s")
    config = ReaderConfig(buffer_bytes_per_shard=30_000, buffer_bytes=30_000, fail_on_data_loss=fail)
    async with LocalShardReader(kinesis, config) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        async with asyncio.timeout(10):
            while kinesis.events_taken < 3:  # noqa: ASYNC110  # what is awaited is in the reader's state
                await asyncio.sleep(0)
        found = await reader.positions("q", epoch, start)
        # What was behind these has expired.
        kinesis.trim("s", shard, lost[0])
        left = kinesis.put("s", shard, 1)[0]
        kinesis.shards["s", shard].sequence_numbers[3] = left - 1
        async for _ in reader.read_range("q", ranges_between(start, found.positions)):
            pass
        assert read[-1] <= found.positions.streams["s"][shard].rank[1]
        if fail:
            with pytest.raises(DataLossError, match=r"25\.0 h have passed .* keeps records for 24 h"):
                await reader.positions("q", epoch, found.positions, wait_seconds=5)
            return
        further = await reader.positions("q", epoch, found.positions, wait_seconds=5)
        assert further.positions.streams["s"][shard].rank >= (1, left - 1)
        assert [stats.losses for stats in await reader.stats("q")] == [1]


async def test_a_stream_that_was_made_again_while_its_shard_stood_still_is_another_one() -> None:
    """After a minute an iterator may have been replaced by one of the other stream, which no call refuses."""
    kinesis, later = FakeKinesis(), 0.0
    (shard,) = kinesis.create_stream("s")
    kinesis.created["s"] = 1000
    kinesis.put("s", shard, 1)
    start = kinesis.trim_horizon("s")
    async with LocalShardReader(kinesis, clock=lambda: time.monotonic() + later) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        end = (await reader.positions("q", epoch, start, wait_seconds=60)).positions
        kinesis.created["s"] = 2000
        later = 61.0
        kinesis.put("s", shard, 1)
        with pytest.raises(StreamRecreatedError):
            await reader.positions("q", epoch, end, wait_seconds=60)
