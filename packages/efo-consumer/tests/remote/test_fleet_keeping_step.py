"""How the readers of a fleet keep step, decided without I/O: one horizon for all of them, and shares of limits."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer import ShardPosition, StreamPositions
from penstock.efo_consumer._continuity.lineage import ShardGraph
from penstock.efo_consumer._model.positions import after_record
from penstock.efo_consumer._reader.api import ProfilePoint, ShardsLook, SlowShard
from penstock.efo_consumer._reader.horizon import NO_RECORD
from penstock.efo_consumer._reader.merge import MOST_POINTS
from penstock.efo_consumer._reader.reach import Bounds
from penstock.efo_consumer._remote.keeping_step import FleetHorizon, divide

SKEW_MILLIS = 60_000


def look(times: list[int], *, most: int = 0, size: int = 10) -> ShardsLook:
    """What a reader shows whose records arrived at these times."""
    within = times[:most] if most else times
    counts = list(accumulate(1 for _ in within))
    points = {millis: ProfilePoint(millis, count, count * size) for millis, count in zip(within, counts, strict=True)}
    return ShardsLook(profile=tuple(points.values()), is_cut=len(within) < len(times))


TIMES = st.lists(st.integers(0, 50), max_size=30).map(sorted)


@given(st.dictionaries(st.sampled_from("abc"), TIMES, min_size=1), st.integers(1, 40), st.none() | st.integers(0, 60))
def test_readers_give_what_arrived_first_within_a_limit(
    times: dict[str, list[int]], most: int, horizon: int | None
) -> None:
    """Together they give no more than the limit, and nothing that arrived after what another one leaves out."""
    looks = {name: look(some, most=most) for name, some in times.items()}
    divided = divide(Bounds(max_records=most, horizon_millis=horizon), looks)
    given_times, left = [], []
    for name, some in times.items():
        bounds = divided[name]
        limit = bounds.horizon_millis
        within = [millis for millis in some if limit is None or millis <= limit]
        taken = within[: bounds.max_records] if bounds.max_records else within
        given_times += taken
        left += [millis for millis in some[len(taken) :] if horizon is None or millis <= horizon]
    assert len(given_times) <= most
    assert max(given_times, default=0) <= min(left, default=1000)
    # Something is given wherever something may be.
    assert given_times or not left
    # Of distinct times the limit is used up.
    if len({millis for some in times.values() for millis in some}) == sum(map(len, times.values())):
        assert len(given_times) == most or not left


def test_a_limit_in_bytes_lets_the_oldest_record_through() -> None:
    """One reader gives it."""
    looks = {"a": look([20, 30], size=1000), "b": look([10, 40], size=1000)}
    divided = divide(Bounds(max_bytes=100), looks)
    assert divided["b"].horizon_millis == 10
    assert divided["a"].horizon_millis is not None
    assert divided["a"].horizon_millis < 10


def test_what_a_reader_did_not_show_is_not_given() -> None:
    """It may have records by the time at which it is asked for them."""
    divided = divide(Bounds(max_records=5), {"a": look([]), "b": look([1, 2, 3])})
    assert divided["a"].horizon_millis == NO_RECORD
    assert divided["b"].max_records == 3


def test_a_long_profile_counts_a_record_or_two_more() -> None:
    """It has no more than a thousand times: between two of these the later one counts."""
    points = tuple(ProfilePoint(10 * count, 3 * count, 3 * count) for count in range(1, MOST_POINTS + 1))
    looks = {"a": ShardsLook(profile=points), "b": look([15])}
    divided = divide(Bounds(max_records=7), looks)
    assert divided["a"].horizon_millis == divided["b"].horizon_millis == 20
    assert divided["a"].max_records + divided["b"].max_records == 7


def positions(**shards: ShardPosition) -> StreamPositions:
    """The look of one stream."""
    return StreamPositions({"s": shards})


def slow(shard: str, millis: int | None, *, waits: bool = False) -> SlowShard:
    """A shard that a reader lists."""
    return SlowShard("s", shard, millis, waits)


def test_the_horizon_is_that_of_the_slowest_shard_of_all_readers() -> None:
    """Also where its reader does not answer: then its position says how far it was read."""
    start = positions(a=after_record("5", 300_000), b=after_record("5", 100_000), c=after_record("5", 310_000))
    looks = {
        "one": ShardsLook(newest_millis=500_000, slow=(slow("a", 400_000),)),
        "two": ShardsLook(newest_millis=350_000, slow=(slow("b", 120_000),)),
    }
    horizon = FleetHorizon(0.0)
    assert horizon.find(start, {}, looks, [], skew_millis=SKEW_MILLIS, now=0.0) == 180_000
    assert horizon.asks_before(SKEW_MILLIS) == 440_000
    unseen = [positions(b=after_record("5", 100_000))]
    assert horizon.find(start, {}, {"one": looks["one"]}, unseen, skew_millis=SKEW_MILLIS, now=0.0) == 160_000
    skew = horizon.skew(SKEW_MILLIS, 150_000, holds_back=True)
    assert (skew.slowest_shard, skew.slowest_millis, skew.latest_millis) == ("b", 100_000, 150_000)


def test_children_that_have_not_entered_count_with_their_parents() -> None:
    """A merged shard counts with the parent that was read further."""
    graph = ShardGraph()
    graph.add("m", ("a", "b"))
    end = ShardPosition.shard_end()
    start = positions(a=ShardPosition(end.type, record="9", arrived_millis=50_000), b=after_record("5", 70_000))
    looks = {"one": ShardsLook(newest_millis=500_000, slow=(slow("b", 90_000),))}
    horizon = FleetHorizon(0.0)
    assert horizon.find(start, {"s": graph}, looks, [], skew_millis=SKEW_MILLIS, now=0.0) == 150_000


def test_a_shard_that_its_own_limit_cuts_holds_back_the_shards_of_all_readers() -> None:
    """What is left of it comes later."""
    looks = {
        "one": ShardsLook(newest_millis=500_000, slow=(slow("a", 490_000),), left_out_millis=200_000),
        "two": ShardsLook(newest_millis=500_000, slow=(slow("b", 495_000),)),
    }
    start = positions(a=after_record("5", 100_000), b=after_record("5", 100_000))
    horizon = FleetHorizon(0.0)
    assert horizon.find(start, {}, looks, [], skew_millis=SKEW_MILLIS, now=0.0) == 260_000


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_shard_without_progress_is_left_behind(is_listed: bool) -> None:
    """Also one whose reader is away; what its reader does not list is behind no further than was asked about."""
    start = positions(a=after_record("5", 100_000), b=after_record("5", 100_000))
    horizon = FleetHorizon(0.0)
    found = []
    for second in range(0, 64, 2):
        looks = {"one": ShardsLook(newest_millis=500_000 + second, slow=(slow("a", 490_000),))}
        if is_listed:
            looks["two"] = ShardsLook(newest_millis=100_000, slow=(slow("b", 100_000),))
        unseen = [] if is_listed else [positions(b=after_record("5", 100_000))]
        found.append(horizon.find(start, {}, looks, unseen, skew_millis=SKEW_MILLIS, now=float(second)))
        skew = horizon.skew(SKEW_MILLIS, None, holds_back=True)
    assert found[29] == 160_000
    assert found[31] == 500_000 + 60
    assert skew.left_behind == 1
