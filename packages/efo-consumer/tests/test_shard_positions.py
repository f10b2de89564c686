"""Positions and ranges: their order, their JSON, and what leads from one to the next."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
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


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"version": 3, "streams": {}},
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


def test_equal_positions_have_no_range_between_them() -> None:
    """A shard that did not move is not asked for."""
    positions = StreamPositions({"s": {"a": ShardPosition.after("5"), "b": ShardPosition.trim_horizon()}})
    assert ranges_between(positions, positions) == []


def test_a_shard_that_entered_is_read_from_trim_horizon() -> None:
    """A child has a range from its beginning, and none while it stands there."""
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
