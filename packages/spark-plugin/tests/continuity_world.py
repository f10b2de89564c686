"""A stream of one shard whose clock a test moves on, and a query that reads it by the calls that Spark makes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from penstock.emulator import Behaviour
from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisDataSource
from penstock.spark_plugin.testing import endpoint_options

Keys = list[tuple[str, str]]
HOUR = 3600.0
ROOT = "shardId-000000000000"
PUBLISHERS = pytest.mark.parametrize("publisher", ["polling", "efo"])
PROFILES = pytest.mark.parametrize("profile", ["kind", "hostile"])
FAILS = pytest.mark.parametrize("fail", [True, False])


class World:
    """The stream, and what was put into it."""

    def __init__(self, emulator: RunningEmulator, clock: OtherClock) -> None:
        self.emulator = emulator
        self.client: Any = emulator.client()
        self.clock = clock
        self.client.create_stream(StreamName="flights", ShardCount=1)
        arn = self.client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]
        answer = self.client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")
        self.consumer_arn: str = answer["Consumer"]["ConsumerARN"]
        self._count = 0

    def put(self, count: int, *, size: int = 1) -> Keys:
        """Put records over all open shards; give the shard and sequence number of each."""
        found = []
        for _ in range(count):
            self._count += 1
            answer = self.client.put_record(StreamName="flights", Data=b"x" * size, PartitionKey=str(self._count))
            found.append((answer["ShardId"], answer["SequenceNumber"]))
        return found

    def pass_hours(self, hours: float) -> None:
        """Let time pass, by the service's clock."""
        self.clock.advance(hours * HOUR)

    def options(self, publisher: str, *, fail: bool = True, **options: str) -> dict[str, str]:
        """Options of the data source, for a query that begins with what there is."""
        options = {"initialPosition": "TRIM_HORIZON", "recordPublisher": publisher, **options}
        options["failOnDataLoss"] = str(fail).lower()
        if publisher == "efo":
            options |= {"efoRegistration": "none", "efoConsumerArn.flights": self.consumer_arn}
            options |= {"subscribeTransport": "http1"}
        return endpoint_options(self.emulator.endpoint_url, "flights", **options)


@contextmanager
def world_of(behaviour: Behaviour | str) -> Iterator[World]:
    """A world that answers so, or as a profile does. A call looks through hours, as days pass within a test."""
    if isinstance(behaviour, str):
        behaviour = Behaviour.profile(behaviour, seed=1)
    if behaviour.page_span is not None:
        behaviour = replace(behaviour, page_span=timedelta(hours=8))
    clock = OtherClock(0.0)
    with running_emulator(
        clock=clock,
        behaviour=behaviour,
        enforce_limits=False,
        consumer_creation_delay=timedelta(0),
        resubscribe_interval=timedelta(0),
        idle_event_interval=timedelta(seconds=0.2),
    ) as emulator:
        yield World(emulator, clock)


@dataclass
class Query:
    """A query that follows a stream, by the calls that Spark makes; its log outlives its processes."""

    options: dict[str, str]
    log: list[dict[str, Any]] = field(default_factory=list)
    """Where it began, and the ends of its micro-batches, as they came back from JSON."""
    keys: Keys = field(default_factory=list)
    """Shard and sequence number of all rows."""

    @contextmanager
    def running(self, **options: str) -> Iterator[Any]:
        """A process of the query; gives its reader."""
        source = KinesisDataSource(self.options | options)
        self.reader: Any = source.streamReader(source.schema())
        try:
            if not self.log:
                self.log.append(_logged(self.reader.initialOffset()))
            yield self.reader
        finally:
            self.reader.stop()

    def next_offset(self) -> dict[str, Any]:
        """The end of the next micro-batch, once there is one; not logged yet."""
        while True:
            end = _logged(self.reader.latestOffset(self.log[-1], self.reader.getDefaultReadLimit()))
            if end != self.log[-1]:
                return end

    def read(self, count: int) -> Keys:
        """Micro-batches until so many rows have come."""
        found: Keys = []
        while len(found) < count:
            end = self.next_offset()
            self.log.append(end)
            found += self.rows()
            self.reader.commit(self.log[-2])
        self.keys += found
        return found

    def rows(self) -> Keys:
        """The last micro-batch, planned and read."""
        return [
            key
            for partition in self.reader.partitions(*self.log[-2:])
            for batch in self.reader.read(partition)
            for key in zip(*(batch.column(name).to_pylist() for name in ("shardId", "sequenceNumber")), strict=True)
        ]

    def again(self, **options: str) -> Keys:
        """The last micro-batch, by a process that has begun after a crash in it."""
        with self.running(**options):
            if len(self.log) == 2:
                self.log[0] = _logged(self.reader.initialOffset())  # Spark has not logged it
            return self.rows()


def _logged(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
