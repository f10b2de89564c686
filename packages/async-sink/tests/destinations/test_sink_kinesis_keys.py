"""Where partition keys come from."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.async_sink import KinesisElementConverter, KinesisStreamsSink, PartitionKey, write_batches
from penstock.async_sink.errors import RecordError, SinkOptionError
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


def sink(emulator: RunningEmulator, **options: Any) -> KinesisStreamsSink:
    return KinesisStreamsSink(emulator_options(emulator.endpoint_url), "flights", **options)


def written(emulator: RunningEmulator) -> list[tuple[str, bytes]]:
    shard = emulator.kinesis.streams["flights"].shards[0]
    return sorted((record.partition_key, bytes(record.data)) for record in shard.records)


ROWS = pa.record_batch({"data": [b"a", b"b", b"c"], "airport": ["LHR", "ORY", "ключ"], "gate": [7, 8, 9]})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (PartitionKey.from_column("airport"), ["LHR", "ORY", "ключ"]),
        (PartitionKey.from_column("gate"), ["7", "8", "9"]),
        (PartitionKey.from_function(lambda row: row["airport"][:1] + str(row["gate"])), ["L7", "O8", "к9"]),
        (PartitionKey.fixed("all"), ["all", "all", "all"]),
    ],
)
async def test_keys_of_rows_and_of_elements_are_the_same(
    emulator: RunningEmulator, key: PartitionKey, expected: list[str]
) -> None:
    """From a column, a function, or one for all: rows and dictionaries get the same keys."""
    converter = KinesisElementConverter(lambda row: row["data"], key)
    async with sink(emulator, partition_key=key, converter=converter).create_writer() as writer:
        await writer.write_many(ROWS)
        await writer.write_many(ROWS.to_pylist())
    assert written(emulator) == sorted(zip(expected * 2, [b"a", b"b", b"c"] * 2, strict=True))


@pytest.mark.parametrize(("key", "error"), [(None, RecordError), (7, SinkOptionError), ("", RecordError)])
def test_a_function_that_gives_no_key_is_refused(emulator: RunningEmulator, key: Any, error: type[Exception]) -> None:
    """By an error of the sink, before any row of the batch is written."""
    with pytest.raises(error, match=r"artition_?\s?[kK]ey"):
        write_batches(sink(emulator, partition_key=PartitionKey.from_function(lambda row: key)), [ROWS])
    assert written(emulator) == []


async def test_a_converter_may_give_an_explicit_hash_key(emulator: RunningEmulator) -> None:
    """It picks the shard instead of the partition key."""
    converter = KinesisElementConverter(
        lambda number: b"%d" % number, PartitionKey.random(), lambda number: str(number * 2**100)
    )
    async with sink(emulator, converter=converter).create_writer() as writer:
        await writer.write_many(range(3))
    assert [data for _, data in sorted(written(emulator), key=lambda each: each[1])] == [b"0", b"1", b"2"]


def test_a_missing_column_and_a_key_that_is_too_long_are_refused(emulator: RunningEmulator) -> None:
    """By errors that name the column, and the option."""
    with pytest.raises(SinkOptionError, match="nowhere"):
        write_batches(sink(emulator, partition_key=PartitionKey.from_column("nowhere")), [ROWS])
    for wrong in ("", "x" * 257):
        with pytest.raises(SinkOptionError, match="partition_key"):
            PartitionKey.fixed(wrong)
