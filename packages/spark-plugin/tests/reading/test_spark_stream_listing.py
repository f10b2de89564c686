"""Which streams and shards there are as a run begins: Kinesis throttles, and streams of a checkpoint are gone."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from reading_driver import Runs

from penstock.efo_consumer.errors import RecordPublisherRetriesError
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream.query_streams import QueryStreams
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin.testing import endpoint_options

Make = Callable[[int], Any]
ROOT = "shardId-000000000000"


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """With two streams."""
    with running_emulator() as running:
        for name in ("flights", "returns"):
            running.client().create_stream(StreamName=name, ShardCount=1)
        yield running


def of(*streams: Any, **options: str) -> dict[str, str]:
    """Options for several streams, by their names."""
    found: dict[str, str] = streams[0].options(**options) | {"streamName": ",".join(one.name for one in streams)}
    return found


AT_START = [
    ("ListStreams", {"streamNamePattern": "flights|returns"}),
    ("DescribeStreamSummary", {"streamName": "flights,returns", "failOnDataLoss": "false"}),
    ("ListShards", {"streamName": "flights", "initialPosition": '{"shardId-000000000000": "12"}'}),
]


@pytest.mark.parametrize(("operation", "options"), AT_START)
def test_a_throttle_does_not_fail_a_query_as_it_begins(
    emulator: RunningEmulator, operation: str, options: dict[str, str]
) -> None:
    """An account has 5 ListStreams a second, for 500 names, and 20 DescribeStreamSummary: they are asked again."""
    given = endpoint_options(emulator.endpoint_url, "") | options
    if "streamNamePattern" in options:
        del given["streamName"]
    emulator.faults.add("throttle", operation=operation, count=2)
    try:
        begin = QueryStreams(KinesisOptions.parse(given)).initial()
    finally:
        emulator.faults.clear()
    assert begin.streams.keys() == set(options.get("streamName", "flights,returns").split(","))


@pytest.mark.parametrize(("operation", "options"), AT_START)
def test_a_start_gives_up_after_its_patience(
    emulator: RunningEmulator, operation: str, options: dict[str, str]
) -> None:
    """Not after a number of attempts; the error has since when, and what to do."""
    given = endpoint_options(emulator.endpoint_url, "") | options | {"retryPatience": "1s"}
    if "streamNamePattern" in options:
        del given["streamName"]
    emulator.faults.add("throttle", operation=operation)
    try:
        with pytest.raises(RecordPublisherRetriesError, match=rf": {operation}: .* since 2.*retryPatience.*To cure it"):
            QueryStreams(KinesisOptions.parse(given)).initial()
    finally:
        emulator.faults.clear()


def test_a_start_in_named_shards_waits_until_they_are_listed() -> None:
    """Right after a reshard the list is of before it, and their parent would seem unread: it would come again."""
    with running_emulator(behaviour=Behaviour(late_children=timedelta(seconds=3))) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.split_shard(StreamName="flights", ShardToSplit=ROOT, NewStartingHashKey=str(2**127))
        children = ["shardId-000000000001", "shardId-000000000002"]
        given = {"initialPosition": json.dumps(dict.fromkeys(children, "1"))}
        reader = KinesisStreamReader(KinesisOptions.parse(endpoint_options(emulator.endpoint_url, "flights") | given))
        try:
            assert [*reader.initialOffset()["streams"]["flights"]] == children
        finally:
            reader.stop()


def test_a_start_in_a_shard_that_is_gone_does_not_wait_for_it(emulator: RunningEmulator) -> None:
    """Nothing will list it; whether records of it are lost, the reader says."""
    given = {"initialPosition": '{"shardId-000000000009": "1"}'}
    reader = KinesisStreamReader(KinesisOptions.parse(endpoint_options(emulator.endpoint_url, "flights") | given))
    try:
        assert [*reader.initialOffset()["streams"]["flights"]] == [ROOT, "shardId-000000000009"]
    finally:
        reader.stop()


def test_a_deleted_stream_is_dropped_though_the_options_have_a_position_in_it(make_stream: Make) -> None:
    """A query that began behind sequence numbers of both keeps its options."""
    first, second = make_stream(1), make_stream(1)
    begin = {one.name: {"shardId-000000000000": {"type": "TRIM_HORIZON"}} for one in (first, second)}
    options = of(first, second, initialPosition=json.dumps({"version": 1, "streams": begin}))
    first.put(5)
    runs = Runs()
    runs.available_now(options)
    second.client.delete_stream(StreamName=second.name)
    first.put(5)
    runs.available_now(options | {"failOnDataLoss": "false"})
    assert sorted(runs.keys) == sorted(first.put_keys)


def test_a_stream_that_is_being_created_is_left_to_the_next_run(caplog: pytest.LogCaptureFixture) -> None:
    """A pattern finds it, and it has no shards yet: that keeps no query from beginning, which says so."""
    clock = ManualClock()
    with running_emulator(clock=clock, stream_creation_delay=timedelta(minutes=1)) as running:
        client = running.client()
        client.create_stream(StreamName="fleet-a", ShardCount=1)
        clock.advance(60)
        client.create_stream(StreamName="fleet-b", ShardCount=1)
        given = endpoint_options(running.endpoint_url, "", streamNamePattern="fleet-.")
        del given["streamName"]
        parsed = KinesisOptions.parse(given)
        with caplog.at_level(logging.INFO):
            assert QueryStreams(parsed).initial().streams.keys() == {"fleet-a"}
        assert "stream fleet-b is CREATING, and left to the next run" in caplog.text
        clock.advance(60)
        assert QueryStreams(parsed).initial().streams.keys() == {"fleet-a", "fleet-b"}
