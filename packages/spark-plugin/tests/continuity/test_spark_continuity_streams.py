"""What a query's offsets say beside positions: facts that prove continuity, and which stream it was."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from reading_driver import Runs

from penstock.efo_consumer import PositionsSnapshot, ShardPosition, StreamPositions
from penstock.efo_consumer.errors import StreamRecreatedError
from penstock.emulator import Behaviour
from penstock.emulator.testing import OtherClock, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream.offsets import default_limit
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin.testing import FakeReadingSession, endpoint_options

OPTIONS = KinesisOptions(stream_name=("flights",), latest_offset_wait=0.01)
EVERYTHING = default_limit(None, None)


class World:
    """Streams whose times of creation a test knows."""

    def __init__(self, client: Any, clock: OtherClock, endpoint_url: str) -> None:
        self.client = client
        self.clock = clock
        self.endpoint_url = endpoint_url

    def create(self, name: str, shards: int = 1) -> int:
        """Create a stream; give its time of creation in milliseconds, as Kinesis tells it."""
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self.clock.advance(60)
        summary = self.client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        return int(summary["StreamCreationTimestamp"].timestamp() * 1000)

    def delete(self, name: str) -> None:
        self.client.delete_stream(StreamName=name)
        self.clock.advance(60)

    def put(self, name: str, count: int) -> None:
        for number in range(count):
            self.client.put_record(StreamName=name, Data=b"x", PartitionKey=str(number))
        self.clock.advance(3)

    def options(self, name: str, **options: str) -> dict[str, str]:
        return endpoint_options(self.endpoint_url, name, initialPosition="TRIM_HORIZON", **options)


@pytest.fixture(params=["kind", "hostile"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    clock = OtherClock(0.0)
    behaviour = Behaviour.profile(request.param, seed=1)
    with running_emulator(clock=clock, behaviour=behaviour, enforce_limits=False) as emulator:
        yield World(emulator.client(), clock, emulator.endpoint_url)


def iso(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat()[:19]


def test_offsets_say_when_their_streams_were_created(world: World) -> None:
    """From the first offset on, and for each of several streams."""
    created = {name: world.create(name) for name in ("orders", "returns")}
    options = world.options("orders,returns")
    assert KinesisStreamReader(KinesisOptions.parse(options)).initialOffset()["created"] == created
    world.put("orders", 3)
    runs = Runs()
    runs.available_now(options)
    assert runs.log[-1]["created"] == created


def check(error: StreamRecreatedError, before: int, after: int) -> None:
    assert (error.stream, error.created_millis, error.current_millis) == ("orders", before, after)
    for words in ("stream orders", iso(before), iso(after), "new checkpoint"):
        assert words in str(error)


@pytest.mark.parametrize("publisher", ["efo"])
def test_a_query_does_not_go_on_with_another_stream_of_the_same_name(
    world: World, publisher: str, tmp_path: Path
) -> None:
    """Stopped, its stream deleted and made again, restarted: the error says which stream is which, and the cure."""
    options = world.options("orders", recordPublisher=publisher)
    if publisher == "efo":
        options |= {"efoConsumerName": "reader", "registryStore": str(tmp_path / "registry.db")}
        options |= {"subscribeTransport": "http1"}
    before = world.create("orders")
    world.put("orders", 3)
    runs = Runs()
    runs.available_now(options)
    assert len(runs.keys) == 3
    world.delete("orders")
    after = world.create("orders")
    world.put("orders", 5)
    for failing in ("true", "false"):
        reader = KinesisStreamReader(KinesisOptions.parse({**options, "failOnDataLoss": failing}))
        try:
            with pytest.raises(StreamRecreatedError) as caught:
                reader.latestOffset(runs.log[-1], EVERYTHING)
            check(caught.value, before, after)
        finally:
            reader.stop()


def test_a_running_query_does_not_go_on_with_another_stream_of_the_same_name(world: World) -> None:
    """Deleted and made again while the query reads it."""
    before = world.create("orders")
    world.put("orders", 3)
    reader = KinesisStreamReader(KinesisOptions.parse(world.options("orders", getRecordsInterval="200")))
    try:
        offset = reader.latestOffset(reader.initialOffset(), EVERYTHING)

        def read_on(offset: dict[str, Any]) -> None:
            for _ in range(100):
                offset = reader.latestOffset(offset, EVERYTHING)

        world.delete("orders")
        after = world.create("orders")
        world.put("orders", 5)
        with pytest.raises(StreamRecreatedError) as caught:
            read_on(offset)
        check(caught.value, before, after)
    finally:
        reader.stop()


@pytest.mark.parametrize("world", ["kind"], indirect=True)
def test_runs_over_a_stream_that_is_idle_for_days_prove_that_nothing_was_lost(world: World) -> None:
    """Twice a day with AvailableNow: each run logs how far it looked, so what comes after days is read."""
    world.create("orders")
    world.put("orders", 2)
    options = world.options("orders", recordPublisher="polling")
    runs = Runs()
    runs.available_now(options)
    for _ in range(3):
        world.clock.advance(12 * 3600)
        assert runs.available_now(options) == [0]
    world.put("orders", 3)
    assert sum(runs.available_now(options)) == 3
    assert len(runs.keys) == 5


def told(**facts: Any) -> StreamPositions:
    position = replace(ShardPosition.after("7"), record="7", arrived_millis=1000)
    return StreamPositions({"flights": {"s0": replace(position, **facts)}}, {"flights": 1})


def test_newer_facts_about_an_idle_shard_are_logged_when_the_reader_tells_them() -> None:
    """They prove later that nothing was lost since; the same facts make no micro-batch."""
    session = FakeReadingSession()
    source = KinesisStreamReader(OPTIONS, session_factory=session.open)
    answers = [told(), told(caught_up_millis=5000), told(caught_up_millis=5000), told(caught_up_millis=9000)]

    def positions(start: StreamPositions, **_: object) -> PositionsSnapshot:
        return PositionsSnapshot(answers.pop(0), 0, 0, 0)

    session.reader.positions = positions  # type: ignore[method-assign]  # facts of its own
    start = told().to_json()
    assert source.latestOffset(start, EVERYTHING) is start
    newer = source.latestOffset(start, EVERYTHING)
    assert newer == told(caught_up_millis=5000).to_json()
    assert source.partitions(start, newer) == []
    assert source.latestOffset(newer, EVERYTHING) is newer
    assert source.latestOffset(newer, EVERYTHING) == told(caught_up_millis=9000).to_json()
