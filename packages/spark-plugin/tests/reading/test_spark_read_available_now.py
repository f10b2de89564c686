import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from reading_driver import Runs

from penstock.efo_consumer import (
    WIRE_SCHEMA,
    DataLossError,
    PositionsSnapshot,
    Shard,
    ShardEvent,
    ShardPosition,
    ShardStats,
    StreamPositions,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError, ShardFailedError
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream import reader as stream_reader
from penstock.spark_plugin._reading.stream.available_now import Target, find_target
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin.testing import FakeReadingSession

TRIM = {"initialPosition": "TRIM_HORIZON"}


def test_it_ends_under_a_steady_producer(make_stream: Callable[[int], Any]) -> None:
    """What was there at the beginning is read, what came later is left; the next run continues from there."""
    source = make_stream(2)
    source.put(200)
    there = set(source.put_keys)
    stopped = threading.Event()

    def produce() -> None:
        while not stopped.is_set():
            source.put(20)
            stopped.wait(0.01)

    producer = threading.Thread(target=produce)

    def start_once(runs: Runs) -> None:
        if not runs.batches:
            producer.start()

    runs = Runs(before_batch=start_once)
    try:
        sizes = runs.available_now(source.options(**TRIM, maxRecordsPerBatch="60"))
    finally:
        stopped.set()
        producer.join()
    assert set(runs.keys) == there
    assert len(runs.keys) == 200
    assert max(sizes) <= 60
    runs.available_now(source.options(**TRIM))
    assert sorted(runs.keys) == sorted(source.put_keys)


def test_reshards_before_and_during_it(make_stream: Callable[[int], Any]) -> None:
    """Children that were there at the beginning are read, after their parents; those that came later are not."""
    source = make_stream(2)
    source.put(60)
    source.split("shardId-000000000000")
    source.put(60)
    there = set(source.put_keys)

    def reshard(runs: Runs) -> None:
        if len(runs.batches) == 1:
            source.split("shardId-000000000001")
            source.put(60)

    runs = Runs(before_batch=reshard)
    runs.available_now(source.options(**TRIM, maxRecordsPerBatch="25"))
    assert set(runs.keys) == there
    shards = [shard for shard, _ in runs.keys]
    parent, child = "shardId-000000000000", "shardId-000000000002"
    assert max(index for index, one in enumerate(shards) if one == parent) < shards.index(child)
    runs.available_now(source.options(**TRIM))
    assert sorted(runs.keys) == sorted(source.put_keys)


@pytest.mark.parametrize("position", ["TRIM_HORIZON", "LATEST"])
def test_it_ends_at_once_where_there_is_nothing(
    make_stream: Callable[[int], Any], position: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Streams that are empty, idle, or read to their end, closed shards among them, delay no run."""
    source = make_stream(3)
    source.split("shardId-000000000000")
    runs = Runs()
    assert runs.available_now(source.options(initialPosition=position)) == []
    source.put(10)
    assert sum(runs.available_now(source.options(**TRIM))) == 10
    assert runs.available_now(source.options(**TRIM)) == []
    # A run that waits for what does not come looks whether that has expired, and says so.
    assert "expired" not in caplog.text


def event(*numbers: int, arrived: int, is_end: bool = False) -> ShardEvent:
    """Records of these numbers that arrived at a second."""
    at = datetime.fromtimestamp(arrived, UTC)
    rows = [
        {"data": b"", "partitionKey": "k", "sequenceNumber": str(one), "approximateArrivalTimestamp": at}
        for one in numbers
    ]
    records = pa.RecordBatch.from_pylist(rows, schema=WIRE_SCHEMA)
    children = (Shard("child", ("s",), "0", "9"),) if is_end else ()
    return ShardEvent(records, None if is_end else str(numbers[-1]), 0, children, 0)


def find(
    start: dict[str, ShardPosition],
    listed: list[Shard],
    shards: dict[str, list[ShardEvent]],
    *refused: str,
    asked: list[ShardPosition] | None = None,
    later: list[Shard] | None = None,
) -> Target:
    """The target of a run that began at second 1000; `asked` gets the positions from which shards were read.

    `later` is what a second list shows. A shard's first event at a tip ends a read only where it is taken for open.
    """
    lists = [listed, listed if later is None else later]

    async def list_shards(_: str) -> list[Shard]:
        return lists.pop(0) if len(lists) > 1 else lists[0]

    async def read_once(
        stream: str, shard: str, begin: ShardPosition, /, *, is_open: bool
    ) -> AsyncGenerator[ShardEvent, None]:
        if asked is not None:
            asked.append(begin)
        if begin.sequence_number in refused:
            raise RecordPublisherFatalError("too old", stream=stream, shard_id=shard, code="InvalidArgumentException")
        if shard not in shards:
            raise RecordPublisherFatalError("gone", stream=stream, shard_id=shard, code="ResourceNotFoundException")
        for one in shards[shard]:
            arrivals = one.records.column("approximateArrivalTimestamp").to_pylist()
            if not arrivals or arrivals[-1].timestamp() * 1000 >= (begin.timestamp_millis or 0):
                yield one
                if is_open and not arrivals and one.millis_behind_latest == 0:
                    return

    return asyncio.run(find_target(StreamPositions({"f": start}), 1_000_000, list_shards, read_once))


def idle(millis_behind_latest: int = 0) -> ShardEvent:
    """A poll that finds no record."""
    records = pa.RecordBatch.from_pylist([], schema=WIRE_SCHEMA)
    return ShardEvent(records, "5", millis_behind_latest, (), 0)


def test_answers_of_a_closed_shard_that_look_like_a_tip_are_read_over() -> None:
    """By a look at an idle shard as well. Its children belong to the run."""
    closed, child = Shard("s", ending_sequence_number="9"), Shard("child", ("s",))
    end = [idle(), idle(), event(5, 6, arrived=200), idle(), event(arrived=0, is_end=True)]
    shards = {"s": end, "child": [event(7, arrived=300)]}
    found = find({"s": ShardPosition.after("1")}, [closed, child], shards)
    assert found.bounds == {"f": {"s": ShardPosition.shard_end(), "child": ShardPosition.after("7")}}
    assert found.needed == {("f", "s"): 6, ("f", "child"): 7}


def test_a_merged_shard_is_left_while_one_of_its_parents_goes_on() -> None:
    """The merge came after the run had begun: what the other parent held then is not all of it."""
    listed = [Shard("a"), Shard("b"), Shard("child", ("a", "b"))]
    parents = {"a": [event(5, arrived=200, is_end=True)], "b": [event(6, arrived=200), event(8, arrived=1001)]}
    start = {"a": ShardPosition.trim_horizon(), "b": ShardPosition.trim_horizon()}
    found = find(start, listed, {**parents, "child": [event(9, arrived=1002)]})
    assert found.bounds == {"f": {"a": ShardPosition.shard_end(), "b": ShardPosition.after("6")}}


def test_shards_that_are_not_listed_yet_are_bounded_like_others() -> None:
    """One that can be read has not expired: its own children follow it, and not the oldest shards of the stream."""
    shards = {
        "s": [event(arrived=0, is_end=True)],
        "child": [event(7, arrived=300)],
        "t": [event(5, arrived=200), event(8, arrived=1001)],
        "root": [event(2, arrived=100)],
    }
    start = {"s": ShardPosition.shard_end(), "t": ShardPosition.after("1")}
    found = find(start, [Shard("root")], shards)
    ends = {"s": ShardPosition.shard_end(), "t": ShardPosition.after("5"), "child": ShardPosition.after("7")}
    assert found.bounds == {"f": ends}
    assert found.needed == {("f", "t"): 5, ("f", "child"): 7}


def waiting_reader(
    monkeypatch: pytest.MonkeyPatch, lags: dict[str, int], *, is_expired: bool = False, **given: Any
) -> tuple[KinesisStreamReader, list[StreamPositions]]:
    """A run that waits for a record of `s1`, while `s0`, which has reached its end, has more at each look."""
    monkeypatch.setattr(stream_reader, "_QUIET_SECONDS", 0.2)
    options = KinesisOptions(stream_name=("f",), latest_offset_wait=0.01, **given)
    session, looks = FakeReadingSession(), list[StreamPositions]()

    class Ending:
        def __init__(self, _: KinesisOptions) -> None:
            self.found = Target(
                {"f": {"s0": ShardPosition.after("5"), "s1": ShardPosition.after("9")}}, {("f", "s1"): 9}
            )

        def target(self, start: StreamPositions) -> Target:
            return self.found

        def expired(self, needed: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
            return set(needed) if is_expired else set()

    def positions(start: StreamPositions, **_: object) -> PositionsSnapshot:
        looks.append(start)
        assert len(looks) < 100, "it looks again and again, without a pause and without an end"
        moved = {**start.streams["f"], "s0": ShardPosition.after(str(10 + len(looks)))}
        return PositionsSnapshot(StreamPositions({"f": moved}), 1, 1, max(lags.values()))

    session.reader.positions = positions  # type: ignore[method-assign]  # a producer that never rests
    session.reader.stats = lambda: [  # type: ignore[method-assign]  # lags of their own
        ShardStats("f", shard, lag, 1, 1, 1, 0, 0, 0) for shard, lag in lags.items()
    ]
    source = KinesisStreamReader(options, session_factory=session.open, available_now=Ending)
    source.prepareForTriggerAvailableNow()
    return source, looks


BEFORE_END = StreamPositions({"f": {"s0": ShardPosition.after("5"), "s1": ShardPosition.after("7")}}).to_json()


@pytest.mark.parametrize("fail", [True, False])
def test_a_record_that_has_expired_since_the_run_began_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    """The oldest record that is left proves it, whatever comes of other shards, which are not asked without pause."""
    lags = {"s0": 700, "s1": 0}
    source, looks = waiting_reader(monkeypatch, lags, is_expired=True, fail_on_data_loss=fail)
    if fail:
        with pytest.raises(DataLossError) as caught:
            source.latestOffset(BEFORE_END, source.getDefaultReadLimit())
        assert (caught.value.stream, caught.value.shard_id) == ("f", "s1")
    else:
        assert source.latestOffset(BEFORE_END, source.getDefaultReadLimit()) == BEFORE_END
        assert "expired" in caplog.text
    assert 1 < len(looks) < 20


def test_a_run_does_not_end_before_a_record_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for as long as the patience lasts, and then names the shard and the position."""
    source, _ = waiting_reader(monkeypatch, {"s0": 700, "s1": 0}, retry_patience=0.5)
    with pytest.raises(ShardFailedError) as caught:
        source.latestOffset(BEFORE_END, source.getDefaultReadLimit())
    assert (caught.value.stream, caught.value.shard_id, caught.value.code) == ("f", "s1", "RecordNotGiven")
    assert str(ShardPosition.after("7")) in str(caught.value)


def test_a_shard_that_is_closed_while_it_is_looked_at_is_looked_at_again() -> None:
    """A second list shows that it is closed: the answer that seemed to be its tip does not count."""
    later = [Shard("s", ending_sequence_number="9"), Shard("t"), Shard("child", ("s",))]
    end = [idle(), event(5, 6, arrived=200), event(arrived=0, is_end=True)]
    shards = {"s": end, "t": [event(8, arrived=200), idle()], "child": [event(7, arrived=300), idle()]}
    start = {"s": ShardPosition.after("1"), "t": ShardPosition.after("2")}
    found = find(start, [Shard("s"), Shard("t")], shards, later=later)
    ends = {"s": ShardPosition.shard_end(), "t": ShardPosition.after("8"), "child": ShardPosition.after("7")}
    assert found.bounds == {"f": ends}
    assert found.needed == {("f", "s"): 6, ("f", "t"): 8, ("f", "child"): 7}
