"""How far a consumer is behind, asked of the emulator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    ShardPosition,
    ShardState,
    StreamPositions,
    StreamRecreatedError,
    measure_lag,
)
from penstock.efo_consumer.errors import RecordPublisherRetriesError
from penstock.emulator.testing import RunningEmulator, running_emulator

SHARDS = [f"shardId-{number:012d}" for number in range(4)]


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(enforce_limits=False) as running:
        running.client().create_stream(StreamName="orders", ShardCount=1)
        yield running


async def lags(emulator: RunningEmulator, position: ShardPosition, ahead: float = 100) -> dict[str, float | None]:
    backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
    try:
        positions = StreamPositions({"orders": {SHARDS[0]: position}})
        found = await measure_lag(backend, positions, time.time() + ahead)
    finally:
        await backend.aclose()
    return {shard.shard_id: shard.seconds for shard in found}


def put(emulator: RunningEmulator) -> ShardPosition:
    answer = emulator.client().put_record(StreamName="orders", Data=b"row", PartitionKey="k")
    return ShardPosition.after(answer["SequenceNumber"])


@pytest.mark.kind_kinesis
async def test_what_waits_in_the_children_of_a_shard_that_was_read_to_its_end_counts(
    emulator: RunningEmulator,
) -> None:
    """A consumer that stopped before a reshard is behind by the records of the children, and of theirs."""
    last = put(emulator)
    assert await lags(emulator, last) == {SHARDS[0]: 0}
    client = emulator.client()
    client.split_shard(StreamName="orders", ShardToSplit=SHARDS[0], NewStartingHashKey=str(2**127))
    assert await lags(emulator, last) == {SHARDS[0]: 0}
    client.merge_shards(StreamName="orders", ShardToMerge=SHARDS[1], AdjacentShardToMerge=SHARDS[2])
    put(emulator)
    lag = (await lags(emulator, last))[SHARDS[0]]
    assert lag is not None
    assert 90 < lag < 130


@pytest.mark.kind_kinesis
async def test_what_follows_a_position_at_the_end_of_a_shard_counts(emulator: RunningEmulator) -> None:
    """Unless it has a position of its own, or was read before: nothing else is behind that shard."""
    client = emulator.client()
    client.split_shard(StreamName="orders", ShardToSplit=SHARDS[0], NewStartingHashKey=str(2**127))
    end, begin = ShardPosition.shard_end(), ShardPosition.trim_horizon()

    async def states(**shards: ShardPosition) -> list[tuple[bool, ShardState]]:
        backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
        positions = {SHARDS[int(name[1:])]: position for name, position in shards.items()}
        try:
            found = await measure_lag(backend, StreamPositions({"orders": positions}), time.time() + 100)
        finally:
            await backend.aclose()
        return [(bool(shard.seconds), shard.condition.state) for shard in found]

    assert await states(_0=end) == [(False, ShardState.ENDED)]
    put(emulator)
    assert await states(_0=end) == [(True, ShardState.READING)]
    assert await states(_0=end, _1=begin, _2=begin) == [
        (False, ShardState.ENDED),
        (False, ShardState.CAUGHT_UP),
        (True, ShardState.READING),
    ]
    client.merge_shards(StreamName="orders", ShardToMerge=SHARDS[1], AdjacentShardToMerge=SHARDS[2])
    put(emulator)
    assert await states(_1=end, _2=end) == [(True, ShardState.READING)] * 2
    assert await states(_0=end, _3=begin) == [(False, ShardState.ENDED), (True, ShardState.READING)]


async def test_positions_of_a_stream_that_was_made_anew_are_an_error_that_says_so(emulator: RunningEmulator) -> None:
    """As for a consumer that goes on from them; the service's answer to them may be anything."""
    last = put(emulator)
    client = emulator.client()
    facts = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    created = round(facts["StreamCreationTimestamp"].timestamp() * 1000)
    client.delete_stream(StreamName="orders")
    client.get_waiter("stream_not_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
    client.create_stream(StreamName="orders", ShardCount=1)
    backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
    try:
        with pytest.raises(StreamRecreatedError):
            await measure_lag(backend, StreamPositions({"orders": {SHARDS[0]: last}}, {"orders": created}))
    finally:
        await backend.aclose()


async def test_a_shard_that_is_throttled_is_told_with_what_is_known(emulator: RunningEmulator) -> None:
    """Since when its position was known to be complete; nobody waits for minutes, and nobody reads 0."""
    last = put(emulator)
    emulator.faults.add("throttle", operation="GetRecords")
    backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
    now = time.time()
    known = replace(last, caught_up_millis=int(now * 1000) - 60_000)
    try:
        (found,) = await measure_lag(backend, StreamPositions({"orders": {SHARDS[0]: known}}), now)
        (unknown,) = await measure_lag(backend, StreamPositions({"orders": {SHARDS[0]: last}}), now)
        assert found.seconds == pytest.approx(60, abs=1)
        assert unknown.seconds is None
        assert {found.condition.state, unknown.condition.state} == {ShardState.THROTTLED}
        emulator.faults.clear()
        (found,) = await measure_lag(backend, StreamPositions({"orders": {SHARDS[0]: last}}))
        assert (found.seconds, found.condition.state) == (0, ShardState.CAUGHT_UP)
        for operation in ("GetRecords", "GetShardIterator"):
            emulator.faults.add("error", operation=operation, code="InternalFailure")
        with pytest.raises(RecordPublisherRetriesError):
            await measure_lag(backend, StreamPositions({"orders": {SHARDS[0]: last}}))
    finally:
        await backend.aclose()


@pytest.mark.kind_kinesis  # an answer that is empty beside records leaves them for the next read, in an hour
async def test_a_shard_that_is_polled_rarely_is_well_between_two_reads(
    emulator: RunningEmulator, caplog: pytest.LogCaptureFixture
) -> None:
    """An interval of an hour is not a silence; an answer that is overdue after it is."""
    put(emulator)
    later = 0.0
    config = RecordPublisherConfig(get_records_interval=timedelta(hours=1))
    session = AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))
    reader = LocalShardReader(
        KinesisBackend(session, config), ReaderConfig(publisher=config), clock=lambda: time.monotonic() + later
    )
    start = StreamPositions({"orders": {SHARDS[0]: ShardPosition.trim_horizon()}})
    async with reader:
        request = OpenRequest(session_id="q", positions=start, record_publisher=RecordPublisherType.POLLING)
        epoch = await reader.open(request)
        assert (await reader.positions("q", epoch, start, wait_seconds=10)).records == 1
        for seconds, is_well in [(60.0, True), (3500.0, True), (3700.0, False)]:
            later = seconds
            await reader.warn()
            (shard,) = await reader.stats("q")
            assert shard.condition.is_well == is_well
            assert ("no answer has come since then" in caplog.text) is not is_well
