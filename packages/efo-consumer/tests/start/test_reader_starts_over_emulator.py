"""Where reading begins, and in which order it continues, over the emulator's sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    InitialPosition,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    RecordPublisherType,
    Shard,
    ShardPosition,
    StreamConsumer,
    StreamPositions,
    list_shards,
    ranges_between,
    resolve_initial_positions,
    resolve_named_shards,
)
from penstock.efo_consumer._start import initial
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator

ROOT = "shardId-000000000000"
PUBLISHERS = pytest.mark.parametrize("publisher", list(RecordPublisherType))


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        yield running


def session_of(emulator: RunningEmulator) -> AwsSession:
    return AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))


def consumer(client: Any, stream: str) -> StreamConsumer:
    arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    found = client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]["ConsumerARN"]
    deadline = time.monotonic() + 10
    while client.describe_stream_consumer(ConsumerARN=found)["ConsumerDescription"]["ConsumerStatus"] != "ACTIVE":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return StreamConsumer(stream, found)


def put(client: Any, stream: str, *names: str) -> list[str]:
    """Write records one by one; give their sequence numbers."""
    return [
        client.put_record(StreamName=stream, Data=name.encode(), PartitionKey=name)["SequenceNumber"] for name in names
    ]


async def read_all(
    emulator: RunningEmulator,
    start: StreamPositions,
    publisher: RecordPublisherType,
    count: int,
    max_records: int = 0,
) -> tuple[list[tuple[str, str, str]], StreamPositions]:
    """Read until `count` records came; give stream, shard and data of each, and where that leads to."""
    client = emulator.client()
    efo = publisher is RecordPublisherType.EFO
    consumers = tuple(consumer(client, stream) for stream in start.streams) if efo else ()
    rows: list[tuple[str, str, str]] = []
    async with LocalShardReader(KinesisBackend(session_of(emulator))) as reader, asyncio.timeout(120):
        request = OpenRequest(session_id="q", positions=start, record_publisher=publisher, consumers=consumers)
        epoch, position = await reader.open(request), start
        while len(rows) < count:
            found = await reader.positions("q", epoch, position, max_records=max_records, wait_seconds=1)
            async for batch in reader.read_range("q", ranges_between(position, found.positions)):
                columns = [batch.column(name).to_pylist() for name in ("streamName", "shardId", "data")]
                rows += [(stream, shard, data.decode()) for stream, shard, data in zip(*columns, strict=True)]
            position = found.positions
    return rows, position


@pytest.mark.kind_kinesis
@PUBLISHERS
async def test_a_time_in_milliseconds_divides_the_records(
    emulator: RunningEmulator, publisher: RecordPublisherType
) -> None:
    """Records that arrived at the time or later come; both spellings of it are the same start."""
    client = emulator.client()
    client.create_stream(StreamName="s", ShardCount=1)
    numbers = []
    for n in range(4):
        numbers += put(client, "s", f"row-{n}")
        await asyncio.sleep(0.01)
    iterator = client.get_shard_iterator(StreamName="s", ShardId=ROOT, ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    then = records[2]["ApproximateArrivalTimestamp"]
    millis = InitialPosition.parse("AT_TIMESTAMP", str(round(then.timestamp() * 1000)))
    assert InitialPosition.parse("AT_TIMESTAMP", then.isoformat()) == millis
    start = await asyncio.to_thread(resolve_initial_positions, session_of(emulator), ["s"], millis)
    rows, _ = await read_all(emulator, start, publisher, 2)
    assert [data for _, _, data in rows] == ["row-2", "row-3"]


@pytest.mark.parametrize("start", ["LATEST", "AT_TIMESTAMP"])
def test_a_start_right_after_a_reshard_begins_in_its_children(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ListShards shows none of them yet, or one alone: the other would never be found."""
    with running_emulator(behaviour=Behaviour(late_children=timedelta(hours=1))) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=1)
        client.split_shard(StreamName="s", ShardToSplit=ROOT, NewStartingHashKey=str(2**127))
        assert [shard["ShardId"] for shard in client.list_shards(StreamName="s")["Shards"]] == [ROOT]
        position: InitialPosition | str = start
        if start == "AT_TIMESTAMP":
            position = InitialPosition.parse(start, str(int(time.time() * 1000)))
        found = resolve_initial_positions(session_of(emulator), ["s"], position)
        children = {"shardId-000000000001", "shardId-000000000002"}
        assert found.streams["s"].keys() == children
        emulator.behaviour = Behaviour()

        async def hide_one(*arguments: Any, **options: Any) -> list[Shard]:
            return [one for one in await list_shards(*arguments, **options) if one.shard_id != "shardId-000000000002"]

        monkeypatch.setattr(initial, "list_shards", hide_one)
        found = resolve_initial_positions(session_of(emulator), ["s"], position)
        assert found.streams["s"].keys() == children


@PUBLISHERS
async def test_latest_right_after_a_merge_reads_the_child_after_both_parents(publisher: RecordPublisherType) -> None:
    """One parent has ended before that moment, the other one has records since: the child's wait for these."""
    with running_emulator(behaviour=Behaviour(late_children=timedelta(hours=1))) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=2)
        before, after = ([f"{name}-{n}" for n in range(5)] for name in ("before", "after"))
        top = {"StreamName": "s", "PartitionKey": "k", "ExplicitHashKey": str(2**128 - 1)}
        for name in before:
            client.put_record(Data=name.encode(), **top)
        client.merge_shards(StreamName="s", ShardToMerge=ROOT, AdjacentShardToMerge="shardId-000000000001")
        for name in after:
            client.put_record(Data=name.encode(), **top)
        start = await asyncio.to_thread(resolve_initial_positions, session_of(emulator), ["s"], "LATEST")
        assert [*start.streams["s"]] == ["shardId-000000000001"]
        rows, end = await read_all(emulator, start, publisher, 10, max_records=3)
        assert [data for _, _, data in rows] == before + after
        assert end.get("s", "shardId-000000000002") is not None


def test_a_named_shard_that_ended_before_its_time_is_left_to_what_it_became() -> None:
    """From that time on, over generations; what follows a shard that is read too, or has a position, stays as it is."""
    clock = ManualClock()
    with running_emulator(clock=clock) as emulator:
        client, session = emulator.client(), session_of(emulator)
        client.create_stream(StreamName="s", ShardCount=2)
        ids = [f"shardId-{number:012d}" for number in range(6)]
        times = []
        reshards: list[Callable[[], Any]] = [
            lambda: client.split_shard(StreamName="s", ShardToSplit=ROOT, NewStartingHashKey=str(2**126)),
            lambda: client.merge_shards(StreamName="s", ShardToMerge=ids[3], AdjacentShardToMerge=ids[1]),
        ]
        for reshard in reshards:
            times.append(int(clock.time() * 1000) + 1000)
            clock.advance(3600)
            reshard()
        times.append(int(clock.time() * 1000) + 1000)
        clock.advance(3600)
        at = [ShardPosition.at_timestamp(millis) for millis in times]
        after, horizon = ShardPosition.after("7"), ShardPosition.trim_horizon()

        def resolve(*named: tuple[int, ShardPosition]) -> list[tuple[int, ShardPosition]]:
            found = resolve_named_shards(session, "s", {ids[number]: position for number, position in named})
            return sorted(((ids.index(shard), position) for shard, position in found.items()), key=lambda one: one[0])

        assert resolve((0, at[0])) == [(0, at[0])]
        assert resolve((0, at[1])) == [(2, at[1]), (3, at[1])]
        assert resolve((0, at[2])) == [(2, at[2]), (4, at[2])]
        assert resolve((3, at[2])) == [(4, at[2])]
        assert resolve((2, at[0])) == [(2, at[0])]
        assert resolve((0, at[2]), (1, after)) == [(1, after), (2, at[2])]
        assert resolve((3, at[2]), (1, horizon)) == [(1, horizon)]
        assert resolve((3, at[2]), (1, at[1])) == [(1, at[1])]
        assert resolve((0, at[1]), (2, after)) == [(2, after), (3, at[1])]
        assert resolve((0, after), (2, at[2])) == [(0, after), (2, at[2])]
        assert resolve((0, at[1]), (2, at[2])) == [(2, at[2]), (3, at[1])]
        assert resolve((5, at[1])) == [(5, at[1])], "not listed: its reader says what that means"
