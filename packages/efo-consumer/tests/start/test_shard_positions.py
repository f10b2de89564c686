"""Positions and ranges: their order, their JSON, and what leads from one to the next."""

from __future__ import annotations

import base64
import json
import random
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.efo_consumer import (
    PositionsError,
    PositionType,
    ShardPosition,
    ShardRange,
    StreamPositions,
    ranges_between,
)

sequence_numbers = st.integers(0, 10**56).map(str)
shard_positions = st.one_of(
    st.just(ShardPosition.trim_horizon()),
    st.integers(0, 2**45).map(ShardPosition.at_timestamp),
    sequence_numbers.map(ShardPosition.after),
    st.just(ShardPosition.shard_end()),
)
names = st.text("abc-.09", min_size=1, max_size=4)
all_positions = st.dictionaries(names, st.dictionaries(names, shard_positions, max_size=4), max_size=3).map(
    StreamPositions
)


@given(all_positions)
def test_positions_survive_their_json(positions: StreamPositions) -> None:
    """What is written to an offset log is read back equal, and is written the same way each time."""
    text = json.dumps(positions.to_json())
    assert StreamPositions.from_json(json.loads(text)) == positions
    assert json.dumps(StreamPositions.from_json(json.loads(text)).to_json()) == text


facts = st.fixed_dictionaries(
    {},
    optional={
        "record": sequence_numbers | st.just("") | st.just("007"),
        "arrived": st.integers(0, 2**45),
        "caughtUp": st.integers(0, 2**45),
        "first": sequence_numbers,
    },
)
documents = st.tuples(shard_positions, facts).map(lambda both: {**both[0].to_json(), **both[1]})
ids = st.integers(0, 10**12 - 1).map(lambda number: f"shardId-{number:012d}") | st.text(max_size=6)


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.too_slow],
)
@given(st.dictionaries(ids, documents, min_size=64, max_size=66))
def test_positions_of_many_shards_survive_packed(shards: dict[str, object]) -> None:
    """A stream of 64 shards or more is logged as a packed text, from which all positions and facts come back."""
    positions = StreamPositions.from_json({"version": 2, "streams": {"s": shards}, "created": {"s": 5}})
    document = positions.to_json()
    assert document["version"] == 3
    assert isinstance(document["streams"]["s"], str)
    back = StreamPositions.from_json(json.loads(json.dumps(document)))
    assert back == positions
    assert back.created == {"s": 5}
    assert [one.with_facts for one in back.streams["s"].values()] == [
        positions.streams["s"][shard_id].with_facts for shard_id in sorted(shards)
    ]
    assert back.to_json() == document


def _idle(number: int, draw: random.Random) -> ShardPosition:
    """The position of a shard that had its last record within the last day, numbered as Kinesis seems to do it."""
    base, now = (49 << 180) + (number << 4), 1_790_000_000_000
    record = base + (draw.randrange(10**6) << 85) + ((now // 1000 - draw.randrange(86_400)) << 36)
    value = record + (draw.randrange(1, 20) << 85)
    return ShardPosition(
        PositionType.AFTER_SEQUENCE_NUMBER,
        sequence_number=str(value),
        record=str(record),
        arrived_millis=now - draw.randrange(86_400_000),
        caught_up_millis=now - draw.randrange(10_000),
    )


def test_an_idle_shard_takes_at_most_40_bytes_of_an_offset() -> None:
    """An offset of thousands of shards is written for each micro-batch, so it has to be small."""
    draw = random.Random(7)
    shards = {f"shardId-{number:012d}": _idle(number, draw) for number in range(8_000)}
    assert len(json.dumps(StreamPositions({"s": shards}).to_json())) <= 40 * 8_000


@given(st.binary(max_size=300))
def test_damage_of_a_packed_text_is_one_error(damage: bytes) -> None:
    """Whatever the text holds, it is refused as no positions, or read."""
    text = base64.b64encode(zlib.compress(damage)).decode()
    with pytest.raises(PositionsError):
        StreamPositions.from_json({"version": 3, "streams": {"s": text}})


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"version": 4, "streams": {}},
        {"version": 3, "streams": {"s": []}},
        {"version": 3, "streams": {"s": "not packed"}},
        {"version": 3, "streams": {"s": "eJw="}},
        {"version": 2, "streams": {"s": "eJw="}},
        {"version": 2, "streams": {}, "created": []},
        {"version": 1},
        {"version": 1, "streams": {"s": []}},
        {"version": 1, "streams": {"s": {"shard": None}}},
        {"version": 1, "streams": {"s": {"shard": {"type": "LATEST"}}}},
        {"version": 1, "streams": {"s": {"shard": {"type": "AT_TIMESTAMP", "value": "now"}}}},
        {"version": 1, "streams": {"s": {"shard": {"type": "AT_TIMESTAMP", "value": True}}}},
        {"version": 1, "streams": {"s": {"shard": {"type": "AFTER_SEQUENCE_NUMBER", "value": 5}}}},
        {"version": 1, "streams": {"s": {"shard": {"type": "AFTER_SEQUENCE_NUMBER", "value": "-5"}}}},
        {"version": 1, "streams": {"s": {"shard": {"type": "AFTER_SEQUENCE_NUMBER", "value": "५"}}}},
    ],
)
def test_json_that_is_no_positions_is_refused(value: object) -> None:
    """A log of another version or program is an error, not a start from somewhere."""
    with pytest.raises(PositionsError):
        StreamPositions.from_json(value)  # type: ignore[arg-type]  # that is the point


def test_a_position_has_exactly_the_fields_of_its_type() -> None:
    """A timestamp or a sequence number without its type, or a type without them, cannot be made."""
    for kind in PositionType:
        for timestamp, number in ((None, None), (1, None), (None, "1"), (1, "1")):
            fits = (timestamp is not None, number is not None) == (
                kind is PositionType.AT_TIMESTAMP,
                kind is PositionType.AFTER_SEQUENCE_NUMBER,
            )
            if fits:
                ShardPosition(kind, timestamp, number)
            else:
                with pytest.raises(PositionsError):
                    ShardPosition(kind, timestamp, number)


@given(st.integers(0, 10**56), st.integers(0, 10**56))
def test_sequence_numbers_are_ordered_as_integers(one: int, other: int) -> None:
    """9 comes before 10, whatever their digits say; starts come before and the end after all of them."""
    first, second = ShardPosition.after(str(one)), ShardPosition.after(str(other))
    assert (first.rank < second.rank) == (one < other)
    assert ShardPosition.trim_horizon().rank < first.rank < ShardPosition.shard_end().rank
    assert ShardPosition.at_timestamp(one).rank < first.rank


def test_a_shard_that_entered_is_read_from_trim_horizon() -> None:
    """A child has a range from its beginning, and none while it is there."""
    start = StreamPositions({"s": {"parent": ShardPosition.after("5")}})
    end = StreamPositions(
        {
            "s": {
                "parent": ShardPosition.shard_end(),
                "one": ShardPosition.after("9"),
                "two": ShardPosition.trim_horizon(),
            }
        }
    )
    assert ranges_between(start, end) == [
        ShardRange("s", "one", ShardPosition.trim_horizon(), ShardPosition.after("9")),
        ShardRange("s", "parent", ShardPosition.after("5"), ShardPosition.shard_end()),
    ]


def test_a_shard_that_left_at_its_end_has_no_range() -> None:
    """A parent is left out one step after its end was shown; nothing of it is read again."""
    start = StreamPositions({"s": {"parent": ShardPosition.shard_end(), "child": ShardPosition.after("5")}})
    end = StreamPositions({"s": {"child": ShardPosition.after("6")}})
    assert [item.shard_id for item in ranges_between(start, end)] == ["child"]


@pytest.mark.parametrize(
    "end",
    [
        {"a": ShardPosition.after("4")},
        {"a": ShardPosition.trim_horizon()},
        {"b": ShardPosition.after("9")},
        {},
    ],
)
def test_going_backwards_or_leaving_before_the_end_is_refused(end: dict[str, ShardPosition]) -> None:
    """An end that would skip or repeat records silently is an error."""
    with pytest.raises(PositionsError):
        ranges_between(StreamPositions({"s": {"a": ShardPosition.after("5")}}), StreamPositions({"s": end}))
