import itertools
import pickle
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer import (
    PositionsSnapshot,
    ShardCondition,
    ShardPosition,
    ShardRange,
    ShardState,
    ShardStats,
    StreamPositions,
)
from penstock.rpc import ClientSecurity
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream.available_now import Target
from penstock.spark_plugin._reading.stream.offsets import (
    BatchLimit,
    KnownTips,
    LeastRecords,
    batch_limit,
    default_limit,
    group_ranges,
)
from penstock.spark_plugin._reading.stream.partition import KinesisPartition
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._spark import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from penstock.spark_plugin.errors import LeaseLostError, OffsetError
from penstock.spark_plugin.testing import FakeReadingSession


def at(**shards: ShardPosition) -> StreamPositions:
    return StreamPositions({"flights": shards})


def after(number: int) -> ShardPosition:
    return ShardPosition.after(str(number))


def reader(session: FakeReadingSession, **options: object) -> KinesisStreamReader:
    return KinesisStreamReader(
        KinesisOptions(stream_name=("flights",), latest_offset_wait=0.01, **options),  # type: ignore[arg-type]  # fields
        session_factory=session.open,
    )


OPTIONS = KinesisOptions(stream_name=("flights",), latest_offset_wait=0.01)
EVERYTHING = default_limit(None, None)


@pytest.fixture
def latest_moments() -> Callable[[KinesisOptions], StreamPositions]:
    """LATEST, which is another moment each time that it is resolved."""
    moments = itertools.count(1000, 1000)
    return lambda _: at(s0=ShardPosition.at_timestamp(next(moments)))


def test_the_offset_is_what_the_buffers_hold() -> None:
    """The next offset is the reader's reach, in versioned JSON."""
    session = FakeReadingSession()
    session.reader.reaches, session.reader.rows = {"flights": {"s0": after(7)}}, 3
    start = at(s0=after(1)).to_json()
    assert reader(session).latestOffset(start, EVERYTHING) == at(s0=after(7)).to_json()


def test_the_name_that_a_checkpoint_gives_to_a_consumer_is_in_the_progress() -> None:
    """It is made of the query's name in the offsets, also if the job has a name."""
    session = FakeReadingSession()
    session.reader.reaches, session.reader.rows = {"flights": {"s0": after(7)}}, 3
    source = reader(session, record_publisher="efo", job_id="job")
    end = source.latestOffset(at(s0=after(1)).to_json(), EVERYTHING)
    report = source.reportLatestOffset()
    assert report is not None
    assert report["efoConsumerName"] == f"penstock-{end['query']}"
    again = reader(FakeReadingSession(), record_publisher="efo", job_id="job")
    again.partitions(end, end)
    assert (again.reportLatestOffset() or {})["efoConsumerName"] == report["efoConsumerName"]


def test_after_a_crash_the_session_opens_at_the_end_of_the_logged_range() -> None:
    """Spark asks for the partitions of a logged range first; the range itself is read again."""
    session = FakeReadingSession()
    partitions = reader(session).partitions(at(s0=after(1)).to_json(), at(s0=after(9)).to_json())
    assert session.reader.opened_at == [at(s0=after(9))]
    assert [one.ranges for one in partitions if isinstance(one, KinesisPartition)] == [
        (ShardRange("flights", "s0", after(1), after(9)),)
    ]


def test_latest_is_one_moment(latest_moments: Callable[[KinesisOptions], StreamPositions]) -> None:
    """Spark asks for the initial offset twice: an idle query's first micro-batch is empty, not backwards."""
    source = KinesisStreamReader(OPTIONS, session_factory=FakeReadingSession().open, resolve=latest_moments)
    initial = source.initialOffset()
    assert source.latestOffset(initial, EVERYTHING) == initial
    assert source.partitions(source.initialOffset(), initial) == []


def test_a_crash_in_the_first_micro_batch_does_not_move_its_start(
    latest_moments: Callable[[KinesisOptions], StreamPositions],
) -> None:
    """Spark does not log where a query began: the end of its first micro-batch says it, also after LATEST has moved."""
    session = FakeReadingSession()
    first = KinesisStreamReader(OPTIONS, session_factory=session.open, resolve=latest_moments)
    initial = first.initialOffset()
    session.reader.reaches, session.reader.rows = {"flights": {"s0": after(7)}}, 3
    end = first.latestOffset(initial, EVERYTHING)

    again = FakeReadingSession()
    second = KinesisStreamReader(OPTIONS, session_factory=again.open, resolve=latest_moments)
    (partition,) = second.partitions(second.initialOffset(), end)
    assert isinstance(partition, KinesisPartition)
    assert partition.ranges == (ShardRange("flights", "s0", ShardPosition.at_timestamp(1000), after(7)),)
    assert again.reader.opened_at == [at(s0=after(7))]
    again.reader.reaches, again.reader.rows = {"flights": {"s0": after(9)}}, 1
    assert second.latestOffset(end, EVERYTHING) == at(s0=after(9)).to_json()


def test_partitions_are_few_and_balanced_by_bytes() -> None:
    """Many shards share few partitions, the heavy ones apart."""
    session = FakeReadingSession()
    names = [f"s{number}" for number in range(6)]
    session.reader.reaches = {"flights": {name: after(9) for name in names}}
    session.reader.buffered_bytes = {("flights", "s0"): 1000, ("flights", "s1"): 900}
    planned = reader(session, max_partitions=2).partitions(
        at(**{name: after(1) for name in names}).to_json(), at(**{name: after(9) for name in names}).to_json()
    )
    shards = [{one.shard_id for one in part.ranges} for part in planned if isinstance(part, KinesisPartition)]
    assert sorted(name for group in shards for name in group) == names
    assert len(shards) == 2
    assert not any({"s0", "s1"} <= group for group in shards)


@pytest.mark.parametrize(
    ("nbytes", "least", "expected"), [(1, None, 1), (100_000, None, 2), (10**9, None, 4), (1, 3, 3)]
)
def test_a_micro_batch_has_no_more_partitions_than_its_bytes_are_worth(
    nbytes: int, least: int | None, expected: int
) -> None:
    """A few bytes go in one partition, many in as many as there may be; what a restart finds logged does too."""
    session = FakeReadingSession()
    names = [f"s{number}" for number in range(6)]
    start, end = at(**{name: after(1) for name in names}), at(**{name: after(9) for name in names})
    source = reader(session, max_partitions=4, min_partitions=least)
    assert len(source.partitions(start.to_json(), end.to_json())) == 4

    def positions(start: StreamPositions, **_: object) -> PositionsSnapshot:
        return PositionsSnapshot(end, 1, nbytes, 0)

    session.reader.positions = positions  # type: ignore[method-assign]  # a size of its own
    latest = source.latestOffset(start.to_json(), EVERYTHING)
    assert len(source.partitions(start.to_json(), latest)) == expected


def test_a_pickled_reader_has_no_session() -> None:
    """Readers travel into tasks, where only their partitions count."""
    session = FakeReadingSession()
    original = reader(session)
    original.latestOffset(at(s0=after(1)).to_json(), EVERYTHING)
    copy = pickle.loads(pickle.dumps(original))
    assert copy.reportLatestOffset() is None
    assert original.reportLatestOffset() is not None


def test_a_partition_does_not_show_its_token() -> None:
    """Partitions are printed in errors and logs."""
    session = FakeReadingSession(security=ClientSecurity(token="a-secret-of-this-run-with-32-characters"))
    (partition,) = reader(session).partitions(at(s0=after(1)).to_json(), at(s0=after(9)).to_json())
    assert isinstance(partition, KinesisPartition)
    assert partition.security.token == "a-secret-of-this-run-with-32-characters"
    assert "flights/s0" in repr(partition)
    assert "a-secret-of-this-run-with-32-characters" not in f"{partition} {partition!r}"


def test_a_run_at_a_service_is_numbered_beyond_those_in_the_checkpoint() -> None:
    """The number is logged with what the run plans; a reader in this process has no rivals, and logs none."""
    session, start = FakeReadingSession(), at(s0=after(1)).to_json() | {"epoch": 41}
    session.reader.reaches, session.reader.rows = {"flights": {"s0": after(7)}}, 3
    offset = reader(session, reader_endpoint=("10.0.0.9:1",)).latestOffset(start, EVERYTHING)
    assert offset == at(s0=after(7)).to_json() | {"epoch": 42}
    again = FakeReadingSession()
    reader(again, reader_endpoint=("10.0.0.9:1",)).partitions(start, offset)
    assert again.reader.epoch == 43
    own = FakeReadingSession()
    own.reader.reaches = {"flights": {"s0": after(7)}}
    assert reader(own).latestOffset(at(s0=after(1)).to_json(), EVERYTHING) == at(s0=after(7)).to_json()


def test_a_lost_lease_fails_the_query() -> None:
    """A query whose consumer another one holds stops, instead of reading with it."""
    session = FakeReadingSession(lost=LeaseLostError("flights", "me"))
    with pytest.raises(LeaseLostError, match="efoConsumerName"):
        reader(session).latestOffset(at(s0=after(1)).to_json(), EVERYTHING)


def test_an_offset_of_other_streams_is_refused() -> None:
    """A checkpoint belongs to its streams."""
    offset = StreamPositions({"other": {"s0": after(1)}}).to_json()
    with pytest.raises(OffsetError, match="other"):
        reader(FakeReadingSession()).latestOffset(offset, EVERYTHING)


def test_commit_trims_and_stop_closes() -> None:
    """What Spark has processed is dropped; the end of the query ends the session."""
    session = FakeReadingSession()
    source = reader(session)
    source.commit(at(s0=after(1)).to_json())
    assert session.reader.committed == []  # nothing was opened yet
    source.latestOffset(at(s0=after(1)).to_json(), EVERYTHING)
    source.commit(at(s0=after(1)).to_json())
    source.stop()
    source.stop()
    assert session.reader.committed == [at(s0=after(1))]
    assert session.closed


def test_progress_reports_the_lag() -> None:
    """`lastProgress` shows how far the reader is behind, and what it holds."""
    session = FakeReadingSession()
    source = reader(session)
    assert source.reportLatestOffset() is None
    session.reader.reaches, session.reader.millis_behind_latest = {"flights": {"s0": after(7)}}, 250
    source.latestOffset(at(s0=after(1)).to_json(), EVERYTHING)
    report = source.reportLatestOffset()
    assert report is not None
    assert (report["millisBehindLatest"], report["shards"]) == (250, 1)


def test_sparks_limit_joins_the_options() -> None:
    """Records and bytes bound a micro-batch together, except where Spark asks for all there is."""
    assert batch_limit(ReadMaxRows(10), 10, 500) == BatchLimit(10, 500)
    assert batch_limit(ReadMaxBytes(500), None, 500) == BatchLimit(0, 500)
    assert batch_limit(ReadAllAvailable(), 10, 500) == BatchLimit()
    assert default_limit(10, 500) == ReadMaxRows(10)
    assert default_limit(None, 500) == ReadMaxBytes(500)
    assert batch_limit(EVERYTHING, None, None) == BatchLimit()
    assert ReadAllAvailable() != EVERYTHING  # which comes with Trigger.Once alone


def test_a_micro_batch_is_bounded_in_records_and_in_bytes() -> None:
    """The shard reader is asked with both bounds, whichever of them Spark knows of."""
    session = FakeReadingSession()
    source = reader(session, max_records_per_batch=10, max_bytes_per_batch=500)
    source.latestOffset(at(s0=after(1)).to_json(), source.getDefaultReadLimit())
    source = reader(session, max_bytes_per_batch=700)
    source.latestOffset(at(s0=after(1)).to_json(), source.getDefaultReadLimit())
    assert session.reader.limits == [(10, 500), (0, 700)]


def test_a_micro_batch_waits_for_its_fewest_records() -> None:
    """Until there are as many, the first has waited for long enough, or the buffers are full."""
    clock = LeastRecords(10, 60.0)
    assert not clock.holds(0, 0.0, is_full=False)
    assert clock.holds(9, 100.0, is_full=False)
    assert clock.holds(9, 159.0, is_full=False)
    assert not clock.holds(9, 160.0, is_full=False)
    assert clock.holds(3, 161.0, is_full=False), "the wait begins again"
    assert not clock.holds(10, 162.0, is_full=False)
    assert clock.holds(1, 200.0, is_full=False)
    assert not clock.holds(1, 201.0, is_full=True)


def test_shards_are_waited_for_until_they_are_at_their_tips_once() -> None:
    """Later only those that are new; never those in trouble, and none for longer than a while."""

    def shard(lag: int, state: ShardState = ShardState.READING) -> ShardStats:
        return ShardStats("flights", "s0", lag, 0, 0, 0, 0, 0, 0, condition=ShardCondition(state))

    tips = KnownTips(10.0)
    assert tips.waits([shard(0), shard(-1)], 0.0)
    assert tips.waits([shard(0), shard(500)], 9.0), "a page without records, of a shard that has more"
    assert not tips.waits([shard(0), shard(500)], 10.0)
    assert not tips.waits([shard(0), shard(500)], 11.0)
    assert not tips.waits([shard(0), shard(0)], 12.0)
    assert tips.waits([shard(0), shard(-1)], 100.0), "a child"
    assert not tips.waits([shard(0), shard(700)], 101.0)
    assert not tips.waits([shard(0), shard(-1, ShardState.REFUSED)], 102.0)
    assert not KnownTips(10.0).waits([], 0.0)


def test_the_progress_counts_shards_that_ended_and_reshards() -> None:
    """Since the run began; a stream that was added is not a reshard."""
    session = FakeReadingSession()
    source = reader(session, record_publisher="efo")
    end = ShardPosition.shard_end()
    steps = [at(s0=after(1)), at(s0=end), at(s0=end, s1=after(2), s2=after(3)), at(s1=after(4), s2=end)]
    offset = steps[0].to_json()
    session.reader.rows = 1
    for step in steps[1:]:
        session.positions = lambda *_, step=step, **__: PositionsSnapshot(step, 1, 1, 0)  # type: ignore[method-assign]  # of this turn
        offset = source.latestOffset(offset, EVERYTHING)
    report = source.reportLatestOffset() or {}
    assert (report["shardsEnded"], report["reshards"], report["consumers"]) == (2, 1, 1)


class Ending:
    """A run that ends at `s0` after 9, with a record there; `s1` is a child of it without records."""

    def __init__(self, _: KinesisOptions) -> None:
        self.found = Target({"flights": {"s0": ShardPosition.shard_end(), "s1": ShardPosition.trim_horizon()}})
        self.found.needed["flights", "s0"] = 9

    def target(self, start: StreamPositions) -> Target:
        return self.found

    def expired(self, needed: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
        return set()


def ending_reader(session: FakeReadingSession) -> KinesisStreamReader:
    return KinesisStreamReader(OPTIONS, session_factory=session.open, available_now=Ending)


def test_available_now_ends_at_what_was_there() -> None:
    """A query that is behind takes batch after batch; what came after its beginning is left for the next run."""
    session = FakeReadingSession()
    source = ending_reader(session)
    source.prepareForTriggerAvailableNow()
    session.reader.reaches, session.reader.rows = {"flights": {"s0": after(7)}}, 3
    first = source.latestOffset(at(s0=after(1)).to_json(), EVERYTHING)
    assert first == at(s0=after(7)).to_json()
    session.reader.reaches = {"flights": {"s0": ShardPosition.shard_end(), "s1": after(12), "s2": after(20)}}
    last = source.latestOffset(first, EVERYTHING)
    assert last == at(s0=ShardPosition.shard_end(), s1=ShardPosition.trim_horizon()).to_json()
    assert source.latestOffset(last, EVERYTHING) == last


def test_once_takes_all_that_was_there_in_one_micro_batch() -> None:
    """`Trigger.Once` waits for what its one micro-batch has to hold, through as many answers as it takes."""
    session = FakeReadingSession()
    source = ending_reader(session)
    answers = [at(s0=after(number)) for number in (3, 5, 11)]

    def positions(start: StreamPositions, **_: object) -> PositionsSnapshot:
        return PositionsSnapshot(answers.pop(0), 2, 2, 0)

    session.reader.positions = positions  # type: ignore[method-assign]  # answers one by one
    assert source.latestOffset(at(s0=after(1)).to_json(), ReadAllAvailable()) == at(s0=after(11)).to_json()


@given(
    st.lists(st.integers(min_value=0, max_value=10_000), min_size=1, max_size=40), st.integers(min_value=1, max_value=9)
)
def test_grouping_keeps_every_range_and_balances(weights: list[int], count: int) -> None:
    """No range is lost or doubled, and the heaviest partition is near the best that can be."""
    ranges = [ShardRange("s", f"shard-{number:03}", after(1), after(2)) for number in range(len(weights))]
    known = {("s", one.shard_id): weight for one, weight in zip(ranges, weights, strict=True)}
    groups = group_ranges(ranges, known, count)
    assert sorted(one.shard_id for group in groups for one in group) == [one.shard_id for one in ranges]
    assert len(groups) == min(count, len(ranges))
    loads = [sum(max(1, known[one.stream_name, one.shard_id]) for one in group) for group in groups]
    floor = max(sum(loads) / len(groups), max(max(1, weight) for weight in weights))
    assert max(loads) <= floor * 2
    assert groups == group_ranges(list(reversed(ranges)), known, count)
