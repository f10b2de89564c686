"""Reads that end by themselves, of shards that are closed: their end is what Kinesis calls one, or the read fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from reading_driver import Runs

from penstock.efo_consumer.errors import RecordPublisherRetriesError
from penstock.emulator import Behaviour
from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin.testing import endpoint_options

Keys = list[tuple[str, str]]
TRIM = {"initialPosition": "TRIM_HORIZON"}
ROOT, OTHER = "shardId-000000000000", "shardId-000000000001"
SILENT = 10**6


class Source:
    """A stream of two shards, and the shard and sequence number of each record."""

    def __init__(self, emulator: RunningEmulator) -> None:
        self.emulator = emulator
        self.client: Any = emulator.client()
        self.keys: Keys = []
        self.client.create_stream(StreamName="flights", ShardCount=2)

    def put(self, count: int) -> None:
        for _ in range(count):
            key = str(len(self.keys))
            answer = self.client.put_record(StreamName="flights", Data=key.encode(), PartitionKey=key)
            self.keys.append((answer["ShardId"], answer["SequenceNumber"]))

    def split(self) -> None:
        self.client.split_shard(StreamName="flights", ShardToSplit=ROOT, NewStartingHashKey=str(2**126))

    def options(self, **options: str) -> dict[str, str]:
        return endpoint_options(self.emulator.endpoint_url, "flights", **TRIM, **options)


@contextmanager
def source_of(empty_answers: int) -> Iterator[Source]:
    behaviour = Behaviour(empty_answers=empty_answers)
    with running_emulator(clock=OtherClock(0.0), behaviour=behaviour, enforce_limits=False) as emulator:
        yield Source(emulator)


def read(reader: KinesisBatchReader, partitions: Any) -> Keys:
    found: Keys = []
    for partition in partitions:
        for batch in reader.read(partition):
            found += zip(*(batch.column(name).to_pylist() for name in ("shardId", "sequenceNumber")), strict=True)
    return found


def test_a_bounded_read_reads_over_answers_that_look_like_a_tip() -> None:
    """Twenty of a closed shard before its records, and twenty before its end."""
    with source_of(20) as source:
        source.put(10)
        source.split()
        source.put(10)
        reader = KinesisBatchReader(KinesisOptions.parse(source.options()))
        assert sorted(read(reader, reader.partitions())) == sorted(source.keys)


def test_a_shard_that_is_closed_after_the_read_was_planned_is_read_to_its_end() -> None:
    """It was open in the plan. A list at the end of the task shows that its tip was none."""
    with source_of(20) as source:
        source.put(10)
        reader = KinesisBatchReader(KinesisOptions.parse(source.options()))
        partitions = reader.partitions()
        source.split()
        assert sorted(read(reader, partitions)) == sorted(source.keys)


def test_a_run_up_to_now_reads_over_answers_that_look_like_a_tip() -> None:
    """And the next one on the same checkpoint has what came since."""
    with source_of(20) as source:
        runs = Runs()
        for _ in range(2):
            source.put(10)
            if len(source.keys) == 10:
                source.split()
                source.put(10)
            runs.available_now(source.options())
            assert sorted(runs.keys) == sorted(source.keys)


@pytest.mark.parametrize("way", ["bounded", "available-now"])
def test_a_read_that_would_end_on_a_guess_fails(way: str) -> None:
    """A closed shard that gives neither records nor its end is an error, which names the shard."""
    with source_of(SILENT) as source:
        source.put(4)
        source.split()
        options = source.options(retryPatience="2s")
        reader = KinesisBatchReader(KinesisOptions.parse(options))
        partitions = reader.partitions()
        with pytest.raises(RecordPublisherRetriesError) as caught:
            _ = read(reader, partitions) if way == "bounded" else Runs().available_now(options)
        assert (caught.value.code, caught.value.shard_id) == ("ShardEndMissing", ROOT)
