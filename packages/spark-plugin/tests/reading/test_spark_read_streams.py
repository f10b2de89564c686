import itertools
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reading_driver import Runs, rows_of

from penstock.efo_consumer import InitialPositionError, StreamPositions
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin._reading.initial_positions import initial_positions
from penstock.spark_plugin._reading.stream.query_streams import StreamDiscovery
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin.errors import OffsetError

TRIM = {"initialPosition": "TRIM_HORIZON"}
Make = Callable[[int], Any]


def put_keys(*streams: Any) -> list[tuple[str, str, str]]:
    return sorted((one.name, *key) for one in streams for key in one.put_keys)


def rows(runs: Runs) -> list[tuple[str, str, str]]:
    return sorted(row for batch in runs.batches for row in batch)


def of(*streams: Any, **options: str) -> dict[str, str]:
    """Options for several streams, by their names."""
    found: dict[str, str] = streams[0].options(**options) | {"streamName": ",".join(one.name for one in streams)}
    return found


def arn_of(stream: Any) -> str:
    summary = stream.client.describe_stream_summary(StreamName=stream.name)["StreamDescriptionSummary"]
    return str(summary["StreamARN"])


def test_streams_come_and_go_between_runs(make_stream: Make, caplog: pytest.LogCaptureFixture) -> None:
    """An added stream begins at `initialPosition`, order does not matter, and a missing one is an error or dropped."""
    first, second, third = (make_stream(1) for _ in range(3))
    for one in (first, second, third):
        one.put(10)
    runs = Runs()
    runs.available_now(of(first, second, **TRIM))
    first.put(5)
    runs.available_now(of(third, second, first, **TRIM))
    assert rows(runs) == put_keys(first, second, third)
    assert rows_again(runs, of(third, second, first, **TRIM)) == sorted(runs.batches[-1])
    with pytest.raises(OffsetError, match=f"Read {second.name} again.*failOnDataLoss"):
        runs.available_now(of(first, third, **TRIM))
    second.put(5)
    third.put(5)
    runs.available_now(of(first, third, **TRIM, failOnDataLoss="false"))
    assert f"stream {second.name} is dropped" in caplog.text
    assert rows(runs) == [row for row in put_keys(first, second, third) if row[1:] not in list(second.put_keys)[10:]]


def rows_again(runs: Runs, options: dict[str, str]) -> list[tuple[str, str, str]]:
    """The last micro-batch with rows, planned by a process that comes after a crash in it."""
    return sorted(runs.again(options))


def latest_millis(options: KinesisOptions) -> int:
    """The time at which a query would begin now."""
    [position] = initial_positions(options).streams[options.stream_name[0]].values()
    assert position.timestamp_millis is not None
    return position.timestamp_millis


def test_an_added_stream_begins_where_its_option_says(make_stream: Make, until: Callable[..., None]) -> None:
    """`addedStreamPosition` is only for streams outside of the checkpoint; it is resolved once, and logged."""
    first, second = make_stream(1), make_stream(1)
    first.put(10)
    second.put(10)
    put_millis = time.time() * 1000
    runs = Runs()
    runs.available_now(of(first, **TRIM))
    # LATEST may bring what arrived up to two seconds before.
    latest = KinesisOptions.parse(of(second, initialPosition="LATEST"))
    until(lambda: latest_millis(latest) > put_millis, "LATEST is not behind what was put")
    both = of(first, second, **TRIM, addedStreamPosition="LATEST")
    assert runs.available_now(both) == [0]  # an empty micro-batch writes down where it begins
    second.put(10)
    assert runs.available_now(both) == [10]
    assert rows(runs) == sorted(put_keys(first) + [(second.name, *key) for key in list(second.put_keys)[10:]])


def test_streams_are_found_by_a_pattern(make_stream: Make, kinesis: Any) -> None:
    """All that match as a run begins; one that is made later begins at its oldest record in the next run."""
    prefix = f"fleet-{uuid.uuid4().hex[:6]}"
    client = kinesis.client()

    def make(name: str) -> None:
        client.create_stream(StreamName=name, ShardCount=1)

    def put(name: str) -> None:
        for number in range(4):
            client.put_record(StreamName=name, Data=b"x", PartitionKey=str(number))

    for name in (f"{prefix}-a", f"{prefix}-b", f"other-{prefix}-a"):
        make(name)
        put(name)
    options = make_stream(1).options()
    del options["streamName"]
    options |= {"streamNamePattern": f"{prefix}-[abc]"}
    runs = Runs()
    runs.available_now(options | TRIM)
    assert sorted(runs.streams) == [f"{prefix}-a"] * 4 + [f"{prefix}-b"] * 4
    make(f"{prefix}-c")
    put(f"{prefix}-c")
    runs.available_now(options)
    assert runs.streams.count(f"{prefix}-c") == 4
    reader = KinesisBatchReader(KinesisOptions.parse(options))
    assert {shard.stream_name for one in reader.partitions() for shard in one.shards} == set(runs.streams)  # type: ignore[attr-defined]  # a partition of this reader
    client.delete_stream(StreamName=f"{prefix}-a")
    with pytest.raises(OffsetError, match=f"{prefix}-a again"):
        runs.available_now(options)
    assert runs.available_now(options | {"failOnDataLoss": "false"}) == [0]
    with pytest.raises(InitialPositionError, match="no stream's name matches"):
        runs.available_now(options | {"streamNamePattern": prefix})


@pytest.mark.parametrize("publisher", ["efo"])
def test_a_running_query_reads_streams_that_come_to_match_its_pattern(
    make_stream: Make, kinesis: Any, tmp_path: Path, publisher: str
) -> None:
    """From their oldest record, each record once, also after a crash; the progress names them and keeps counting."""
    prefix = f"fleet-{uuid.uuid4().hex[:6]}"
    client = kinesis.client()

    def make(letter: str) -> None:
        client.create_stream(StreamName=f"{prefix}-{letter}", ShardCount=1)
        put(letter, "early")

    def put(letter: str, *keys: str) -> None:
        for key in keys:
            client.put_record(StreamName=f"{prefix}-{letter}", Data=b"x", PartitionKey=key)

    make("a")
    options = make_stream(1).options(**TRIM, recordPublisher=publisher, streamDiscoveryInterval="1s")
    del options["streamName"]
    options |= {"streamNamePattern": f"{prefix}-[abc]"}
    if publisher == "efo":
        options["registryStore"] = str(tmp_path / "registry.db")
    reader = KinesisStreamReader(KinesisOptions.parse(options))
    log = [reader.initialOffset()]
    rows: list[tuple[str, str, str]] = []

    def go_on(reader: KinesisStreamReader, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(rows) < count:
            assert time.monotonic() < deadline, (rows, reader.reportLatestOffset())
            end = json.loads(json.dumps(reader.latestOffset(log[-1], reader.getDefaultReadLimit())))
            if end != log[-1]:
                log.append(end)
                rows.extend(rows_of(reader, *log[-2:]))
                reader.commit(log[-2])

    go_on(reader, 1)
    make("b")
    go_on(reader, 2)
    assert (reader.reportLatestOffset() or {})["streams"] == [f"{prefix}-a", f"{prefix}-b"]
    put("a", "1", "2")
    put("b", "1", "2")
    go_on(reader, 6)
    assert (reader.reportLatestOffset() or {})["records"] == 6
    last = rows[:]
    reader.stop()
    assert (
        client.list_stream_consumers(StreamARN=arn_of(SimpleNamespace(client=client, name=f"{prefix}-b")))["Consumers"]
        == []
    )
    again = KinesisStreamReader(KinesisOptions.parse(options))
    try:
        assert set(rows_of(again, *log[-2:])) <= set(last)
        make("c")
        put("b", "3")
        go_on(again, 8)
        assert len(set(rows)) == len(rows)
        assert {stream for stream, _, _ in rows[6:]} == {f"{prefix}-b", f"{prefix}-c"}
    finally:
        again.stop()


def test_failed_search_for_streams_is_reported_and_repeated() -> None:
    """The query continues meanwhile; streams that are found later are read once."""
    answers: list[Any] = [OSError("ListStreams is away"), {"new": StreamPositions({"new": {}})}]
    prepared: list[Any] = []
    now = itertools.count()

    def look() -> Any:
        answer = answers.pop(0) if answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    discovery = StreamDiscovery(look, prepared.append, 1, clock=lambda: next(now))
    found: list[Any] = []
    failures = set()
    deadline = time.monotonic() + 60
    while not found:
        assert time.monotonic() < deadline
        found += discovery.news()
        failures.add(discovery.failure)
    assert failures == {"", "OSError: ListStreams is away"}
    assert (found, prepared, discovery.failure) == (["new"], [("new",)], "")
    discovery.close()


@pytest.mark.parametrize("publisher", ["efo"])
def test_streams_are_read_by_their_arns(make_stream: Make, tmp_path: Path, publisher: str) -> None:
    """Rows and offsets have names: a query may change from names to ARNs and back, and reads the same."""
    first, second = make_stream(2), make_stream(1)
    first.put(10)
    second.put(10)
    efo = {"recordPublisher": "efo", "efoConsumerName": "mine", "registryStore": str(tmp_path / "registry.db")}
    common = first.options(**TRIM, **(efo if publisher == "efo" else {}))
    del common["streamName"], common["region"]
    by_arn = common | {"streamArn": f"{arn_of(first)},{arn_of(second)}"}
    runs = Runs()
    runs.available_now(by_arn)
    assert rows(runs) == put_keys(first, second)
    assert set(StreamPositions.from_json(runs.log[-1]).streams) == {first.name, second.name}
    first.put(5)
    runs.available_now(of(first, second, **TRIM))
    first.split("shardId-000000000000")
    first.put(5)
    runs.available_now(by_arn)
    assert rows(runs) == put_keys(first, second)
    reader = KinesisBatchReader(KinesisOptions.parse({name: text for name, text in by_arn.items() if name not in efo}))
    read = [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]
    assert sorted((row["streamName"], row["shardId"], row["sequenceNumber"]) for row in read) == rows(runs)
