"""How far a consumer is behind, asked of the emulator."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    ShardPosition,
    ShardState,
    StreamPositions,
    measure_lag,
)
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
