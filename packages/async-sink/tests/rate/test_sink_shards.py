"""Shards are learnt from answers, and paced each for itself."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink import KinesisRequestEntry, LaneObservation, PerShardRateLimitingStrategy
from penstock.async_sink._rate.per_shard import ShardMap

SPACE = 2**128


@given(
    bounds=st.lists(st.integers(1, SPACE - 1), min_size=1, max_size=8, unique=True),
    keys=st.lists(st.integers(0, SPACE - 1), min_size=1, max_size=200),
)
def test_keys_between_two_keys_of_a_shard_belong_to_the_shard(bounds: list[int], keys: list[int]) -> None:
    """Every key that was seen is known, and so is everything between keys of the same shard, in any order of seeing."""
    edges = [0, *sorted(bounds), SPACE]

    def shard_of(key: int) -> str:
        return f"shard-{sum(edge <= key for edge in edges)}"

    learnt = ShardMap()
    for key in keys:
        learnt.learn(key, shard_of(key))
    ordered = sorted(keys)
    for low, high in pairwise(ordered):
        assert learnt.shard_of(low) == shard_of(low)
        if shard_of(low) == shard_of(high):
            assert learnt.shard_of((low + high) // 2) == shard_of(low)
    assert set(learnt.shards) == {shard_of(key) for key in keys}


@given(st.lists(st.tuples(st.integers(0, 1_000), st.sampled_from("abcdef")), max_size=120))
def test_whatever_answers_say_ranges_never_overlap(steps: list[tuple[int, str]]) -> None:
    """The latest answer counts, also while a stream is resharded repeatedly."""
    learnt = ShardMap()
    for key, shard in steps:
        learnt.learn(key, shard)
        assert learnt.shard_of(key) == shard
        assert len(set(learnt.shards)) == len(learnt.shards)


def test_a_split_shard_is_forgotten_when_its_children_turn_up() -> None:
    """A key in another shard's range means that the shard is closed."""
    learnt = ShardMap()
    for key in (0, 40, 99):
        learnt.learn(key, "parent")
    learnt.learn(120, "neighbour")
    learnt.learn(30, "left")
    assert learnt.shards == ("left", "neighbour")
    learnt.learn(70, "right")
    assert [learnt.shard_of(key) for key in (10, 45, 60, 80)] == ["left", "left", "right", "right"]
    assert [learnt.known_shard_of(key) for key in (30, 45, 60, 70)] == ["left", None, None, "right"]


def entry(hash_key: int) -> KinesisRequestEntry:
    return KinesisRequestEntry(b"x", "k", str(hash_key))


def seen(hash_key: int, shard: str, throttled: bool = False) -> LaneObservation:
    return LaneObservation(entry(hash_key), 100, shard, throttled)


def test_a_throttled_shard_is_paced_and_others_have_their_own_pace() -> None:
    """The throttled shard slows down by its share; the other keeps its full rate."""
    strategy = PerShardRateLimitingStrategy()
    strategy.observe([seen(1, "a", throttled=True), seen(90, "b")], 1.0, 2.0)
    assert strategy.active
    assert (strategy.lane_of(entry(2)), strategy.lane_of(entry(89))) == ("a", "b")
    strategy.observe([seen(1, "a", throttled=True), seen(3, "a"), seen(90, "b")], 3.0, 4.0)
    assert abs(strategy.scale("a", 4.0) - 0.5) < 0.01
    assert strategy.scale("b", 4.0) == 1.0


def test_an_answer_that_differs_from_a_guess_corrects_it() -> None:
    """Entries with an unknown or different shard are learned; others add no information."""
    strategy = PerShardRateLimitingStrategy()
    strategy.observe([seen(10, "a", throttled=True), seen(90, "b")], 1.0, 2.0)
    assert (strategy.lane_of(entry(40)), strategy.known_lane_of(entry(40))) == ("a", None)
    strategy.observe([*[LaneObservation(entry(10), 100, "a", False, "a")] * 50, seen(40, "b")], 3.0, 4.0)
    assert [strategy.known_lane_of(entry(key)) for key in (10, 39, 40, 60, 90)] == ["a", None, "b", "b", "b"]


def test_a_reshard_is_noticed_though_nothing_fails() -> None:
    """By answers that name another shard than the known one."""
    strategy = PerShardRateLimitingStrategy()
    strategy.observe([seen(1, "parent", throttled=True), seen(100, "parent")], 1.0, 2.0)
    strategy.observe([seen(20, "left"), seen(80, "right")], 5.0, 6.0)
    assert strategy.shards == ("left", "right")
