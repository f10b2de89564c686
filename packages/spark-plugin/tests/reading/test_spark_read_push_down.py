import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
)

from penstock.aws import JsonClient
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.push_down import PushDown
from penstock.spark_plugin._reading.bounded.reader import FilteringBatchReader
from penstock.spark_plugin._reading.planning import default_max_partitions
from penstock.spark_plugin.testing import endpoint_options

HOURS = 10
ARRIVAL = ("approximateArrivalTimestamp",)
Rows = list[dict[str, Any]]


@dataclass
class History:
    """Two streams that were written to for hours, one of them with a reshard in the middle."""

    emulator: RunningEmulator
    clock: ManualClock
    options: dict[str, str]
    rows: Rows = field(default_factory=list)

    def read(
        self, filters: list[Filter], options: Mapping[str, str] = MappingProxyType({}), *, at_once: bool = False
    ) -> tuple[Rows, list[Filter]]:
        """The rows of a bounded read, and the filters that are left for Spark.

        Its tasks run some time after it was planned, or else at once: then they wait until they see the tips of the
        shards as they were when it was planned.
        """
        reader = FilteringBatchReader(KinesisOptions.parse({**self.options, **options}))
        left = list(reader.pushFilters(filters))
        partitions = reader.partitions()
        if not at_once:
            self.clock.advance(5)
        rows = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
        return rows, left


@pytest.fixture(scope="module")
def history() -> Iterator[History]:
    """Hours of a moved clock."""
    clock = ManualClock(time.time() - HOURS * 3600 - 60)
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        client = emulator.client()
        for name in ("flights", "returns"):
            client.create_stream(StreamName=name, ShardCount=2)
        for hour in range(HOURS):
            for name in ("flights", "returns"):
                records = [{"Data": b"x", "PartitionKey": f"{hour} {number}"} for number in range(10)]
                client.put_records(StreamName=name, Records=records)
            if hour == HOURS // 2:
                client.split_shard(
                    StreamName="flights", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
                )
            clock.advance(3600)
        history = History(emulator, clock, endpoint_options(emulator.endpoint_url, "flights,returns"))
        history.rows, _ = history.read([])
        assert len(history.rows) == HOURS * 20
        yield history


def passes(one: Filter, row: dict[str, Any]) -> bool:
    """What Spark makes of a filter on a column without nulls."""
    if isinstance(one, Not):
        return not passes(one.child, row)
    value = row[one.attribute[0]]  # type: ignore[attr-defined]  # all of them have it
    if isinstance(one, IsNull | IsNotNull):
        return isinstance(one, IsNotNull)
    other = one.value  # type: ignore[attr-defined]  # all of them have it
    found: dict[type[Filter], Callable[[], bool]] = {
        EqualTo: lambda: value == other,
        In: lambda: value in other,
        GreaterThan: lambda: value > other,
        GreaterThanOrEqual: lambda: value >= other,
        LessThan: lambda: value < other,
        LessThanOrEqual: lambda: value <= other,
        StringEndsWith: lambda: value.endswith(other),
    }
    return found[type(one)]()


def key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["streamName"], row["shardId"], row["sequenceNumber"]


def calls(
    monkeypatch: pytest.MonkeyPatch,
    history: History,
    filters: list[Filter],
    options: Mapping[str, str] = MappingProxyType({}),
    *,
    at_once: bool = False,
) -> Counter[str]:
    """How often each operation is called for a read."""
    counted: Counter[str] = Counter()
    original = JsonClient.call_raw

    async def count(self: JsonClient, operation: str, body: bytes) -> bytes:
        counted[operation] += 1
        return await original(self, operation, body)

    with monkeypatch.context() as patch:
        patch.setattr(JsonClient, "call_raw", count)
        history.read(filters, options, at_once=at_once)
    return counted


SHARDS = [f"shardId-00000000000{number}" for number in range(5)]


def filters(rows: Rows) -> st.SearchStrategy[Filter]:
    """Filters on all columns that may be pushed, at the very times of records and between them."""
    arrivals = [row["approximateArrivalTimestamp"] for row in rows]
    times = st.sampled_from(sorted(set(arrivals))).flatmap(
        lambda at: st.sampled_from([-1, 0, 1, 1000]).map(lambda micros: at + timedelta(microseconds=micros))
    )
    comparisons = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
    by_time: st.SearchStrategy[Filter] = st.builds(lambda kind, at: kind(ARRIVAL, at), comparisons, times)
    shard = st.sampled_from(SHARDS)
    by_shard: st.SearchStrategy[Filter] = st.one_of(
        st.builds(lambda one: EqualTo(("shardId",), one), shard),
        st.builds(lambda some: In(("shardId",), tuple(some)), st.lists(shard, max_size=3)),
        st.builds(lambda one: GreaterThan(("shardId",), one), shard),
        st.builds(lambda one: Not(EqualTo(("shardId",), one)), shard),
        st.just(StringEndsWith(("shardId",), "1")),
    )
    by_stream: st.SearchStrategy[Filter] = st.sampled_from(
        [EqualTo(("streamName",), "flights"), In(("streamName",), ("returns", "other")), IsNotNull(("streamName",))]
    )
    return st.one_of(by_time, by_shard, by_stream, st.just(IsNotNull(("partitionKey",))))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_rows_are_the_same_with_and_without_push_down(history: History, data: st.DataObject) -> None:
    """Whatever is pushed: what is read, through the filters that are left, is what all filters leave of everything."""
    chosen = data.draw(st.lists(filters(history.rows), min_size=1, max_size=4))
    rows, left = history.read(chosen)
    assert sorted(key(row) for row in rows if all(passes(one, row) for one in left)) == sorted(
        key(row) for row in history.rows if all(passes(one, row) for one in chosen)
    )


def test_fewer_calls_are_made(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is read alone, a time without what came before and after it, and nothing without any call."""
    everything = calls(monkeypatch, history, [])
    tasks = default_max_partitions()
    # The planner and each task ask for the service's time by a ListShards call. Each task looks at its end whether the
    # shards of both streams are open.
    assert 2 + 1 + tasks < everything["ListShards"] <= 2 + 1 + tasks + 2 * tasks
    assert everything["GetShardIterator"] == 6
    alone: list[Filter] = [EqualTo(("streamName",), "flights"), EqualTo(("shardId",), "shardId-000000000001")]
    one = calls(monkeypatch, history, alone)
    assert (one["ListShards"], one["GetShardIterator"]) == (1 + 1 + 1 + 1, 1)
    assert one["GetRecords"] < everything["GetRecords"]
    # The tip of a shard that is open is looked at again.
    assert calls(monkeypatch, history, alone, at_once=True)["GetShardIterator"] == 1 + 1
    late = datetime.now(UTC) - timedelta(hours=2, minutes=30)
    since = calls(monkeypatch, history, [GreaterThan(ARRIVAL, late)])
    assert since["GetShardIterator"] == 5  # not of the shard that was closed hours before
    assert calls(monkeypatch, history, [IsNull(ARRIVAL)]).total() == 0
    nothing = [GreaterThan(ARRIVAL, late), LessThan(ARRIVAL, late - timedelta(hours=1))]
    assert calls(monkeypatch, history, nothing)["GetRecords"] == 0


def test_a_time_bounds_what_is_read(history: History) -> None:
    """Of hours only the one that is asked for comes over the network, and a margin of seconds."""
    middle = datetime.now(UTC) - timedelta(hours=HOURS / 2)
    wanted: list[Filter] = [GreaterThanOrEqual(ARRIVAL, middle), LessThan(ARRIVAL, middle + timedelta(hours=1))]
    rows, left = history.read(wanted)
    assert left == wanted
    assert len(rows) == 20


def test_a_time_beyond_a_shards_end_does_not_move_that(history: History) -> None:
    """Records between an end in sequence numbers and a time that the filters name are not read, wherever they lie."""
    returns = [row for row in history.rows if row["streamName"] == "returns"]
    arrivals = sorted({row["approximateArrivalTimestamp"] for row in returns})
    ends = {
        shard: max(
            int(row["sequenceNumber"])
            for row in returns
            if row["shardId"] == shard and row["approximateArrivalTimestamp"] <= arrivals[4]
        )
        for shard in SHARDS[:2]
    }
    ending = json.dumps({shard: str(number) for shard, number in ends.items()})
    wanted = sorted(key(row) for row in returns if int(row["sequenceNumber"]) <= ends[row["shardId"]])
    # With its margin the time ends just behind the records of an hour, or hours away from any.
    for margin in (timedelta(seconds=9.5), timedelta(minutes=30)):
        rows, _ = history.read(
            [LessThanOrEqual(ARRIVAL, arrivals[7] - margin)], {"streamName": "returns", "endingPosition": ending}
        )
        assert sorted(map(key, rows)) == wanted


def test_what_cannot_be_told_is_left_to_spark() -> None:
    """Nulls, other columns, nested ones, and times without a zone."""
    unknown: list[Filter] = [
        EqualTo(("data",), b"x"),
        EqualTo(("shardId",), None),
        In(("shardId",), ("a", None)),
        EqualTo(("shardId", "nested"), "a"),
        Not(GreaterThan(ARRIVAL, datetime.now(UTC))),
        LessThan(ARRIVAL, datetime(2026, 1, 1)),  # a time without a zone is what this is about
    ]
    assert PushDown.of(unknown) == (PushDown(), unknown)
