"""Where partition keys come from."""

import pickle
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
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


def test_values_of_any_type_make_the_same_key_of_a_row_and_of_an_element() -> None:
    """Else records of one key would be in two shards, by how they were written."""
    values = [True, 1.5, 1e20, 1e-07, -7, 2**63 - 1, b"x", Decimal("1.10"), datetime(2024, 1, 2, 3), date(2024, 1, 2)]
    key = PartitionKey.from_column("k")
    for value in values:
        assert key.of_rows(pa.record_batch({"k": [value]})).to_pylist() == [key.of_element({"k": value})]


async def test_an_element_without_a_key_is_refused(emulator: RunningEmulator) -> None:
    """A null is not a key, and not the key "None"; an item that is not there, or makes no text, is named."""
    converter = KinesisElementConverter(lambda row: b"data", PartitionKey.from_column("airport"))
    async with sink(emulator, converter=converter).create_writer() as writer:
        await writer.write({"airport": "LHR"})
        with pytest.raises(RecordError, match="record 1: its partition key is NoneType"):
            await writer.write({"airport": None})
        for element in ({}, {"airport": ["LHR"]}, {"airport": object()}):
            with pytest.raises(SinkOptionError, match="airport"):
                await writer.write(element)
    assert written(emulator) == [("LHR", b"data")]


@pytest.mark.parametrize(("key", "error"), [(None, RecordError), (7, SinkOptionError), ("", RecordError)])
def test_a_function_that_gives_no_key_is_refused(emulator: RunningEmulator, key: Any, error: type[Exception]) -> None:
    """By an error of the sink, before any row of the batch is written."""
    with pytest.raises(error, match=r"artition_?\s?[kK]ey"):
        write_batches(sink(emulator, partition_key=PartitionKey.from_function(lambda row: key)), [ROWS])
    assert written(emulator) == []


def test_random_keys_differ(emulator: RunningEmulator) -> None:
    """Each record has one of its own, so that all shards get their share."""
    write_batches(sink(emulator, partition_key=PartitionKey.random()), [ROWS, ROWS])
    assert len({key for key, _ in written(emulator)}) == 6


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


def test_keys_can_be_pickled_with_their_sink(emulator: RunningEmulator) -> None:
    """As a Spark driver sends it to its tasks."""
    copy = pickle.loads(pickle.dumps(sink(emulator, partition_key=PartitionKey.from_column("airport"))))
    assert write_batches(copy, [ROWS]).records == 3
