"""What the sink and other producers pack into aggregates, the consumer takes apart."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator

from penstock.async_sink import AggregationConfig, KinesisRequestEntry, KinesisStreamsSink
from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    Consumer,
    KinesisBackend,
    LocalShardReader,
    ReaderConfig,
    ShardPosition,
    ShardRange,
)
from penstock.emulator.testing import RunningEmulator, UserRecord, aggregate, partition_keys_in, running_emulator

HOWS = pytest.mark.parametrize("how", [{"name": "billing"}, {"efo": "billing"}], ids=["polling", "fan-out"])


@HOWS
async def test_every_user_record_is_read_once_with_its_key(tmp_path: Path, how: dict[str, Any]) -> None:
    """Over several shards, with keys of any script and explicit hash keys, one aggregate holds hundreds of them."""
    random = Random(3)
    entries = [
        KinesisRequestEntry(
            b"row %d" % number,
            random.choice(["LHR", "ключ", "東京", f"k{number % 50}"]),
            str(random.randrange(2**128)) if number % 7 == 0 else None,
        )
        for number in range(5_000)
    ]
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=4)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        aws = emulator_options(emulator.endpoint_url)
        async with KinesisStreamsSink(aws, "flights", aggregation=AggregationConfig()).create_writer() as writer:
            await writer.write_many(entries)
        put = emulator.call(lambda: sum(len(shard.records) for shard in emulator.kinesis.streams["flights"].shards))
        assert put < 50
        read: Counter[tuple[bytes, str]] = Counter()
        options: dict[str, Any] = {"aws": aws, "start": "TRIM_HORIZON", "checkpoints": tmp_path / "c.db", **how}
        if "efo" in how:
            options["registry"] = tmp_path / "r.db"
        async with asyncio.timeout(30), Consumer("flights", **options) as consumer:
            async for batch in consumer:
                columns = [batch.records.column(name).to_pylist() for name in ("data", "partitionKey")]
                read.update(zip(*columns, strict=True))
                if read.total() >= len(entries):
                    break
    assert read == Counter((entry.data, entry.partition_key) for entry in entries)


@contextmanager
def stream(shards: int) -> Iterator[RunningEmulator]:
    """A stream of its own, `flights`."""
    with running_emulator(tls=False, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=shards)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


@asynccontextmanager
async def consumer(
    emulator: RunningEmulator, folder: Path, how: dict[str, Any], config: ReaderConfig | None = None
) -> AsyncIterator[Consumer]:
    options: dict[str, Any] = {"checkpoints": folder / "c.db", "config": config, **how}
    if "efo" in how:
        options["registry"] = folder / "r.db"
    aws = emulator_options(emulator.endpoint_url)
    async with asyncio.timeout(60), Consumer("flights", aws=aws, start="TRIM_HORIZON", **options) as found:
        yield found


async def read_up_to_the_marks(found: Consumer, marks: int) -> Counter[bytes]:
    """The data that came before the last of some records `mark`: what is missing then does not come any more."""
    read: Counter[bytes] = Counter()
    async for batch in found:
        read.update(batch.records.column("data").to_pylist())
        if read[b"mark"] >= marks:
            break
    del read[b"mark"]
    return read


async def replayed(emulator: RunningEmulator, shard: str, number: str) -> list[tuple[int, bytes]]:
    """The user records up to a sequence number, by a reader that knows nothing but the range."""
    backend = KinesisBackend(AwsSession(emulator_options(emulator.endpoint_url)))
    upto = ShardRange("flights", shard, ShardPosition.trim_horizon(), ShardPosition.after(number))
    rows: list[tuple[int, bytes]] = []
    async with LocalShardReader(backend) as reader:
        async for batch in reader.read_range("none", [upto]):
            columns = (batch.column(name).to_pylist() for name in ("subSequenceNumber", "data"))
            rows += zip(*columns, strict=True)
    return rows


def mark(client: Any) -> int:
    """Put a record into each open shard, and give their number."""
    shards = client.list_shards(StreamName="flights")["Shards"]
    keys = [
        one["HashKeyRange"]["StartingHashKey"]
        for one in shards
        if "EndingSequenceNumber" not in one["SequenceNumberRange"]
    ]
    for key in keys:
        client.put_record(StreamName="flights", Data=b"mark", PartitionKey="mark", ExplicitHashKey=key)
    return len(keys)


@HOWS
async def test_user_records_that_no_producer_sends_again_are_delivered(tmp_path: Path, how: dict[str, Any]) -> None:
    """AWS's own aggregator packs any keys together: a stream of two shards loses none of them, nor does a replay."""
    data = [b"row %d" % number for number in range(1_000)]
    with stream(2) as emulator:
        client = emulator.client()
        packed = RecordAggregator()
        for number, row in enumerate(data):
            assert not packed.add_user_record(f"key {number}", row)
        key, _, blob = packed.clear_and_get().get_contents()
        put = client.put_record(StreamName="flights", PartitionKey=key, Data=bytes(blob))
        marks = mark(client)
        async with consumer(emulator, tmp_path, how) as found:
            assert await read_up_to_the_marks(found, marks) == Counter(data)
            counts = {one.shard_id: one.user_records_outside_shard for one in await found.stats()}
        assert await replayed(emulator, put["ShardId"], put["SequenceNumber"]) == [*enumerate(data)]
    halves = Counter(hashlib.md5(b"key %d" % number).digest()[0] < 128 for number in range(1_000))
    is_lower = put["ShardId"].endswith("0")
    assert sorted(counts.values()) == [0, halves[not is_lower]]


@HOWS
async def test_one_faulty_entry_costs_one_user_record(tmp_path: Path, how: dict[str, Any]) -> None:
    """Entries of an aggregate's tables matter only to the records that refer to them."""
    records = [
        UserRecord(b"1", "a"),
        UserRecord(b"2", "k" * 300),
        UserRecord(b"3", "b", "x"),
        UserRecord(b"4", "c", "7"),
    ]
    with stream(1) as emulator:
        client = emulator.client()
        client.put_record(StreamName="flights", PartitionKey="a", Data=aggregate(records))
        unused = aggregate([UserRecord(b"5", "a")], unused_keys=["k" * 300, b"\xff"], unused_hash_keys=["x", "9" * 40])
        put = client.put_record(StreamName="flights", PartitionKey="a", Data=unused)
        marks = mark(client)
        async with consumer(emulator, tmp_path, how) as found:
            assert await read_up_to_the_marks(found, marks) == Counter([b"1", b"2", b"3", b"4", b"5"])
        rows = [(0, b"1"), (1, b"2"), (2, b"3"), (3, b"4"), (0, b"5")]
        assert await replayed(emulator, put["ShardId"], put["SequenceNumber"]) == rows


@HOWS
@pytest.mark.parametrize("deaggregate", [True, "all"])
async def test_user_records_that_a_producer_sends_again_after_a_split_come_once(
    tmp_path: Path, how: dict[str, Any], deaggregate: Any
) -> None:
    """The Kinesis Producer Library has an old list of shards when a shard is split; with `all` they come twice."""
    lower, upper = partition_keys_in(0, 2**127 - 1, 5), partition_keys_in(2**127, 2**128 - 1, 7)
    records = [UserRecord(key.encode(), key) for key in (*lower, *upper)]
    with stream(1) as emulator:
        client = emulator.client()
        (parent,) = client.list_shards(StreamName="flights")["Shards"]
        client.split_shard(StreamName="flights", ShardToSplit=parent["ShardId"], NewStartingHashKey=str(2**127))
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        # The aggregate goes to the lower child by the key of its first record: the producer sends the rest again.
        for part in (records, records[len(lower) :]):
            key = str(part[0].hash_key)
            client.put_record(StreamName="flights", PartitionKey="a", ExplicitHashKey=key, Data=aggregate(part))
        marks = mark(client)
        config = ReaderConfig(deaggregate=deaggregate)
        async with consumer(emulator, tmp_path, how, config) as found:
            read = await read_up_to_the_marks(found, marks)
            dropped = sum(one.user_records_of_siblings for one in await found.stats())
    times = {key: 2 if deaggregate == "all" and key in upper else 1 for key in (*lower, *upper)}
    assert read == Counter({key.encode(): number for key, number in times.items()})
    assert dropped == (0 if deaggregate == "all" else len(upper))
