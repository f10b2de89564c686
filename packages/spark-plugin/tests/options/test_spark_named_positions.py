"""Reads that begin behind sequence numbers: what is not named, and what is not there any more."""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from reading_driver import Runs

from penstock.efo_consumer import DataLossError
from penstock.emulator.testing import ManualClock, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin.errors import OptionError
from penstock.spark_plugin.testing import endpoint_options

Keys = list[tuple[str, str]]
FIRST = "shardId-000000000000"


def bounded(options: dict[str, str]) -> Keys:
    reader = KinesisBatchReader(KinesisOptions.parse(options))
    return sorted(
        key
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for key in zip(batch.column("shardId").to_pylist(), batch.column("sequenceNumber").to_pylist(), strict=True)
    )


def test_a_shard_beside_the_named_one_is_read_from_its_beginning(make_stream: Callable[[int], Any]) -> None:
    """Of two children one is named: the other is read, with its children; their parent is over. So in both reads."""
    source = make_stream(1)
    source.split(FIRST)
    source.put(20)
    source.split("shardId-000000000002")
    source.put(20)
    named = next(key for key in source.put_keys if key[0] == "shardId-000000000001")
    begin = source.options(initialPosition=json.dumps(dict([named])))
    wanted = sorted(key for key in source.put_keys if key[0] != named[0] or int(key[1]) > int(named[1]))
    runs = Runs()
    runs.available_now(begin)
    assert sorted(runs.keys) == wanted == bounded(begin)


def test_a_shard_beside_a_named_descendant_is_read_though_an_ancestor_is_named_too(
    make_stream: Callable[[int], Any],
) -> None:
    """Of two that were merged one is named, and the result held nothing: it is over, and its other child begins."""
    source = make_stream(2)
    first = source.client.put_record(StreamName=source.name, Data=b"x", PartitionKey="k", ExplicitHashKey="0")
    source.client.merge_shards(StreamName=source.name, ShardToMerge=FIRST, AdjacentShardToMerge="shardId-000000000001")
    source.split("shardId-000000000002")
    source.put(20)
    named = next(key for key in source.put_keys if key[0] == "shardId-000000000003")
    begin = source.options(initialPosition=json.dumps({FIRST: first["SequenceNumber"], named[0]: named[1]}))
    runs = Runs()
    runs.available_now(begin)
    wanted = sorted(key for key in source.put_keys if key[0] != named[0] or int(key[1]) > int(named[1]))
    assert sorted(runs.keys) == wanted == bounded(begin)


def test_streams_have_positions_of_their_own(make_stream: Callable[[int], Any]) -> None:
    """As Kafka's offsets have them: by stream, by shard; a shard that is named in one is not named in the other."""
    sources = [make_stream(2), make_stream(1)]
    for source in sources:
        source.put(20)
    left = [next(key for key in source.put_keys if key[0] == FIRST) for source in sources]
    begin = sources[0].options(
        streamName=",".join(source.name for source in sources),
        initialPosition=json.dumps({source.name: dict([key]) for source, key in zip(sources, left, strict=True)}),
    )
    wanted = sorted(
        key
        for source, (shard, number) in zip(sources, left, strict=True)
        for key in source.put_keys
        if key[0] != shard or int(key[1]) > int(number)
    )
    runs = Runs()
    runs.available_now(begin)
    assert sorted(runs.keys) == wanted == bounded(begin)
    assert set(runs.streams) == {source.name for source in sources}


def test_offset_of_the_aws_connector_is_continued(make_stream: Callable[[int], Any]) -> None:
    """An offset of that connector's checkpoint, whose shards are at records, at their beginning, or ended."""
    source = make_stream(3)
    source.put(40)
    named = next(key for key in source.put_keys if key[0] == FIRST)
    over, new = "shardId-000000000001", "shardId-000000000002"
    offset = {
        "metadata": {"streamName": source.name, "batchId": "7"},
        FIRST: {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": named[1], "isLast": "true"},
        over: {"iteratorType": "SHARD_END", "iteratorPosition": ""},
        new: {"iteratorType": "TRIM_HORIZON", "iteratorPosition": ""},
    }
    begin = source.options(initialPosition=json.dumps(offset))
    wanted = sorted(
        key for key in source.put_keys if key[0] == new or (key[0] == FIRST and int(key[1]) > int(named[1]))
    )
    runs = Runs()
    runs.available_now(begin)
    assert wanted
    assert sorted(runs.keys) == wanted == bounded(begin)


def test_a_position_that_has_expired_fails_a_bounded_read_or_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """As it does in a stream: the error names shard, range and option; without it what is left is read."""
    clock = ManualClock(float(int(time.time() - 48 * 3600)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)

        def put() -> str:
            answer = client.put_record(StreamName="flights", Data=b"x", PartitionKey="k")
            return str(answer["SequenceNumber"])

        gone = put()
        clock.advance(30 * 3600)
        left = [(FIRST, put()), (FIRST, put())]
        options = endpoint_options(emulator.endpoint_url, "flights", startingPosition=json.dumps({FIRST: gone}))
        with pytest.raises(DataLossError, match="failOnDataLoss") as caught:
            bounded(options)
        assert (caught.value.stream, caught.value.shard_id) == ("flights", FIRST)
        assert gone in caught.value.after
        with caplog.at_level(logging.WARNING):
            assert bounded(options | {"failOnDataLoss": "false"}) == left
        assert f"flights/{FIRST}: the range" in caplog.text


def test_a_shard_begins_at_a_time_of_its_own() -> None:
    """Beside one that begins at its oldest record; by a stream that is followed and by a bounded read."""
    clock = ManualClock(float(int(time.time() - 3600)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=2)
        shards = client.list_shards(StreamName="flights")["Shards"]
        put = []
        for _ in range(2):
            for shard in shards:
                key = shard["HashKeyRange"]["StartingHashKey"]
                answer = client.put_record(StreamName="flights", Data=b"x", PartitionKey="k", ExplicitHashKey=key)
                put.append((answer["ShardId"], answer["SequenceNumber"]))
            clock.advance(60)
        moment = datetime.fromtimestamp(clock.time() - 90, UTC).isoformat()
        position = {shards[0]["ShardId"]: f"AT_TIMESTAMP {moment}", shards[1]["ShardId"]: "TRIM_HORIZON"}
        options = endpoint_options(emulator.endpoint_url, "flights", initialPosition=json.dumps(position))
        runs = Runs()
        runs.available_now(options)
        assert sorted(runs.keys) == sorted(put[1:])
        assert bounded(options) == sorted(put[1:])


def _put_over_time(clock: ManualClock, client: Any, names: tuple[str, ...]) -> dict[str, Keys]:
    """Two records a stream, into each of its shards: an hour ago, and half an hour ago."""
    put: dict[str, Keys] = {name: [] for name in names}
    for _ in range(2):
        for name in names:
            for shard in client.list_shards(StreamName=name)["Shards"]:
                key = shard["HashKeyRange"]["StartingHashKey"]
                answer = client.put_record(StreamName=name, Data=b"x", PartitionKey="k", ExplicitHashKey=key)
                put[name].append((answer["ShardId"], answer["SequenceNumber"]))
        clock.advance(1800)
    return put


def test_each_stream_begins_at_a_position_of_its_own() -> None:
    """At its oldest record, at a time, at the tip, or by shard; in a stream that is followed and in a bounded read."""
    clock = ManualClock(float(int(time.time() - 3600)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        names = ("flights", "trains", "ships", "buses")
        for name in names:
            client.create_stream(StreamName=name, ShardCount=1)
        put = _put_over_time(clock, client, names)
        moment = datetime.fromtimestamp(clock.time() - 2700, UTC).isoformat()
        position = {
            "flights": "TRIM_HORIZON",
            "trains": moment,
            "ships": "latest",
            "buses": {FIRST: f"AT_TIMESTAMP {moment}"},
        }
        options = endpoint_options(
            emulator.endpoint_url, ",".join(names), startingPosition=json.dumps(position), addedStreamPosition="LATEST"
        )
        wanted = sorted([*put["flights"], put["trains"][1], put["buses"][1]])
        runs = Runs()
        runs.available_now(options)
        assert sorted(runs.keys) == wanted == bounded(options)
        assert runs.streams.count("flights") == 2
        assert "ships" not in runs.streams
        ship = client.put_record(StreamName="ships", Data=b"x", PartitionKey="k")
        runs.available_now(options)
        assert sorted(runs.keys) == sorted([*wanted, (FIRST, ship["SequenceNumber"])])


def test_a_stream_that_the_checkpoint_does_not_know_begins_at_its_own_position() -> None:
    """It begins at `initialPosition`, because no position is given for added streams."""
    clock = ManualClock(float(int(time.time() - 3600)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        for name in ("flights", "trains"):
            client.create_stream(StreamName=name, ShardCount=1)
        put = _put_over_time(clock, client, ("flights", "trains"))
        runs = Runs()
        runs.available_now(endpoint_options(emulator.endpoint_url, "flights", initialPosition="TRIM_HORIZON"))
        position = {"flights": "LATEST", "trains": {FIRST: put["trains"][0][1]}}
        both = endpoint_options(emulator.endpoint_url, "flights,trains", initialPosition=json.dumps(position))
        runs.available_now(both)
        assert sorted(runs.keys) == sorted([*put["flights"], put["trains"][1]])


@pytest.mark.parametrize(
    ("oldest", "tip", "since"),
    [
        pytest.param(-2, -1, "AT_TIMESTAMP {iso}", id="kafka"),
        pytest.param("earliest", "latest", "{iso}", id="words"),
        pytest.param(
            {"iteratorType": "TRIM_HORIZON", "iteratorPosition": ""},
            {"iteratorType": "LATEST", "iteratorPosition": ""},
            {"iteratorType": "AT_TIMESTAMP", "iteratorPosition": "{millis}"},
            id="aws",
        ),
    ],
)
def test_shards_begin_at_words_and_times_in_the_shapes_of_others(oldest: Any, tip: Any, since: Any) -> None:
    """Kafka's numbers for the earliest and the latest, and the AWS connector's kinds of iterators."""
    clock = ManualClock(float(int(time.time() - 3600)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=3)
        put = _put_over_time(clock, client, ("flights",))["flights"]
        shards = [shard["ShardId"] for shard in client.list_shards(StreamName="flights")["Shards"]]
        moment = clock.time() - 2700
        iso, millis = datetime.fromtimestamp(moment, UTC).isoformat(), int(moment * 1000)
        begin = dict(zip(shards, (oldest, tip, since), strict=True))
        text = json.dumps({"flights": begin}).replace("{iso}", iso).replace("{millis}", str(millis))
        options = endpoint_options(emulator.endpoint_url, "flights", initialPosition=text)
        wanted = sorted(
            key for at, key in enumerate(put) if key[0] == shards[0] or (key[0] == shards[2] and at >= len(shards))
        )
        runs = Runs()
        runs.available_now(options)
        assert sorted(runs.keys) == wanted == bounded(options)


def test_a_read_that_ends_before_one_of_its_streams_begins_names_the_stream() -> None:
    """The others would be read, and the user would not know which position is wrong."""
    with running_emulator(enforce_limits=False) as emulator:
        for name in ("flights", "trains"):
            emulator.client().create_stream(StreamName=name, ShardCount=1)
        position = {"flights": "2026-01-01", "trains": "2026-01-03"}
        options = endpoint_options(
            emulator.endpoint_url, "flights,trains", initialPosition=json.dumps(position), endingPosition="2026-01-02"
        )
        with pytest.raises(
            OptionError, match=r"CONTRADICTORY_OPTIONS.*the read of trains ends 86400\.000 s before it begins"
        ):
            bounded(options)


@pytest.mark.parametrize("start", ["LATEST", "AT_TIMESTAMP"])
def test_a_closed_shard_begins_at_a_time_in_the_shards_that_it_became(start: str) -> None:
    """What its children held before is left out, however long ago it ended; what comes is read."""
    clock = ManualClock(float(int(time.time() - 7200)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)

        def put() -> Keys:
            keys = [
                client.put_record(StreamName="flights", Data=b"x", PartitionKey="k", ExplicitHashKey=key)
                for key in ("0", str(2**128 - 1))
            ]
            return [(key["ShardId"], key["SequenceNumber"]) for key in keys]

        put()
        client.split_shard(StreamName="flights", ShardToSplit=FIRST, NewStartingHashKey=str(2**127))
        put()
        clock.advance(3600)
        moment = datetime.fromtimestamp(clock.time() - 60, UTC).isoformat()
        begin = start if start == "LATEST" else f"{start} {moment}"
        runs = Runs()
        options = endpoint_options(emulator.endpoint_url, "flights", initialPosition=json.dumps({FIRST: begin}))
        runs.available_now(options)
        assert runs.keys == []
        wanted = put()
        runs.available_now(options)
        assert sorted(runs.keys) == sorted(wanted)


def test_a_shard_that_was_merged_into_one_from_the_tip_leaves_that_to_the_other_parent() -> None:
    """The other one begins at its beginning, and continues in the shard that both became, which is read whole."""
    clock = ManualClock(float(int(time.time() - 7200)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=2)
        put: Keys = []

        def put_all() -> None:
            for key in ("0", str(2**128 - 1)):
                answer = client.put_record(StreamName="flights", Data=b"x", PartitionKey="k", ExplicitHashKey=key)
                put.append((answer["ShardId"], answer["SequenceNumber"]))

        put_all()
        other = "shardId-000000000001"
        client.merge_shards(StreamName="flights", ShardToMerge=FIRST, AdjacentShardToMerge=other)
        put_all()
        clock.advance(3600)
        runs = Runs()
        options = endpoint_options(emulator.endpoint_url, "flights", initialPosition=json.dumps({FIRST: "LATEST"}))
        runs.available_now(options)
        put_all()
        runs.available_now(options)
        assert runs.keys == put[1:]
