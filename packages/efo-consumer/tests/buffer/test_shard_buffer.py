"""A shard's buffer: what it covers, where it cuts, and what it evicts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer import Shard, ShardPosition, StreamPositions
from penstock.efo_consumer._buffer.buffer import ShardBuffer
from penstock.efo_consumer._buffer.pool import LEAST_ANSWER_BYTES, BufferPool
from penstock.efo_consumer._reader.reach import Bounds, reach
from penstock.efo_consumer.testing import shard_event, wire_records

MIB = 1 << 20
TRIM_HORIZON = ShardPosition.trim_horizon()
END = ShardPosition.shard_end()
CHILDREN = (Shard("child", ("parent",), "0", "1"),)


def at(number: int) -> ShardPosition:
    return ShardPosition.after(str(number))


def buffer(*events: tuple[list[int], int], origin: ShardPosition = TRIM_HORIZON) -> ShardBuffer:
    """A buffer with events, each of sequence numbers and a continuation."""
    made = ShardBuffer(origin)
    for numbers, continuation in events:
        made.append(shard_event(wire_records(numbers), continuation))
    return made


class Step(NamedTuple):
    """Where a limited step leads."""

    end: ShardPosition
    rows: int


def within(made: ShardBuffer, position: ShardPosition, *, rows: int = 0, nbytes: int = 0) -> Step:
    """How far a buffer leads within a limit."""
    start = StreamPositions({"s": {"shard": position}})
    found = reach(start, {("s", "shard"): made}, {}, Bounds(max_records=rows, max_bytes=nbytes))
    return Step(found.positions.streams["s"]["shard"], found.rows)


def read(made: ShardBuffer, after: ShardPosition, upto: ShardPosition) -> list[pa.RecordBatch] | None:
    """The records of a range; None when not all of them are held."""
    batches = [piece.load() for piece in made.pieces(after, upto)]
    found = [batch for batch in batches if batch is not None]
    return found if len(found) == len(batches) else None


def numbers(batches: list[pa.RecordBatch] | None) -> list[int] | None:
    if batches is None:
        return None
    return [int(number) for batch in batches for number in batch.column("sequenceNumber").to_pylist()]


def test_the_end_is_the_last_continuation_also_of_idle_events() -> None:
    """Events without records move the end and cost no memory."""
    idle = buffer(([5, 7], 8), ([], 12), ([], 20))
    held = idle.held_bytes
    idle.append(shard_event(wire_records([]), 30))
    assert idle.end == at(30)
    assert idle.held_bytes == held
    assert within(idle, TRIM_HORIZON).end == at(30)
    assert numbers(read(idle, at(7), at(25))) == []


def test_a_limit_cuts_an_event_at_a_record() -> None:
    """The cut is the sequence number of the last record that fits; the rest follows from there."""
    cut = buffer(([5, 7, 9, 11], 20))
    step = within(cut, TRIM_HORIZON, rows=3)
    assert (step.end, step.rows) == (at(9), 3)
    assert numbers(read(cut, TRIM_HORIZON, at(9))) == [5, 7, 9]
    assert within(cut, at(9), rows=3).end == at(20)
    assert numbers(read(cut, at(9), at(20))) == [11]


def test_bytes_cut_an_event_at_a_record_and_let_at_least_one_through() -> None:
    """A record that is larger than the limit comes alone."""
    two = buffer(([5, 6], 6), ([7, 8], 8))
    size = two.nbytes // 4
    assert within(two, TRIM_HORIZON, nbytes=size - 1) == (at(5), 1)
    assert within(two, TRIM_HORIZON, nbytes=3 * size) == (at(7), 3)
    assert within(two, TRIM_HORIZON, nbytes=2 * size + 1) == (at(6), 2)


def test_a_buffer_from_trim_horizon_covers_its_origin_and_its_own_records() -> None:
    """Before its first record it covers TRIM_HORIZON only: what a lower number means there is not known."""
    some = buffer(([15, 17], 18))
    assert numbers(read(some, TRIM_HORIZON, at(15))) == [15]
    assert numbers(read(some, at(15), at(18))) == [17]
    assert read(some, at(14), at(18)) is None
    assert read(some, ShardPosition.at_timestamp(5), at(18)) is None


def test_the_end_of_a_shard_is_a_position() -> None:
    """SHARD_END is reached by the last event, whose records belong to it."""
    closing = buffer(([5], 6))
    closing.append(shard_event(wire_records([7]), None, child_shards=CHILDREN))
    assert closing.end == END
    assert closing.covers(at(5))
    assert numbers(read(closing, at(5), END)) == [7]


def test_only_promised_segments_are_evicted_and_delivered_ones_first() -> None:
    """A segment is evicted when it was promised and fetched, or promised long ago; never unpromised."""
    some = buffer(([5], 5), ([7], 7), ([9], 9))
    assert some.evict(promised_before=100) == 0
    some.promise(at(7), now=50)
    assert some.evict(promised_before=40) == 0
    some.deliver(TRIM_HORIZON, at(5))
    assert some.evict(promised_before=40) > 0
    assert some.evict(promised_before=40) == 0
    assert some.evict(promised_before=50) > 0
    assert some.evict(promised_before=1000) == 0
    assert read(some, TRIM_HORIZON, at(9)) is None
    assert numbers(read(some, at(7), at(9))) == [9]


def test_the_pool_makes_room_from_its_own_shard_before_others() -> None:
    """A full shard evicts its own promised segments, a full reader any shard's; unpromised segments stay."""
    pool = BufferPool(shard_bytes=11_000, total_bytes=20_000, promise_grace_seconds=10)
    one, two = ShardBuffer(TRIM_HORIZON), ShardBuffer(TRIM_HORIZON)
    for shard in (one, two):
        for number in (1, 2):
            pool.append(shard, shard_event(wire_records([number], [b"x" * 1000]), number))
    pool.append(one, shard_event(wire_records([3], [b"x" * 1000]), 3))
    assert not pool.make_room(one, now=0)
    assert not pool.make_room(two, now=0)
    one.promise(at(2), now=0)
    assert not pool.make_room(one, now=9)
    assert pool.make_room(two, now=10)
    assert pool.make_room(one, now=10)
    assert pool.held_bytes == one.held_bytes + two.held_bytes
    assert numbers(read(one, at(2), at(3))) == [3]
    assert numbers(read(two, TRIM_HORIZON, at(2))) == [1, 2]


def test_room_is_kept_for_what_is_fetched_and_given_back() -> None:
    """Half of it is for events on their way; whoever holds nothing may always ask for a little, others wait."""
    pool = BufferPool(shard_bytes=10 * MIB, total_bytes=20 * MIB, promise_grace_seconds=10)
    shards = [ShardBuffer(TRIM_HORIZON) for _ in range(4)]
    assert all(pool.make_room(shard, now=0) for shard in shards)
    with ExitStack() as kept:
        given = [kept.enter_context(pool.reserved(shard, 0, now=0)) for shard in shards]
        assert given == [10 * MIB // 4] * 4
        assert kept.enter_context(pool.reserved(shards[0], 10 * MIB, now=0)) == LEAST_ANSWER_BYTES
        pool.append(shards[0], shard_event(wire_records([1], [bytes(10 * MIB - 8192)]), 1))
        assert not pool.make_room(shards[0], now=0)
        assert pool.make_room(shards[1], now=0)
    assert pool.make_room(shards[0], now=0)


def test_a_shard_that_is_behind_may_have_more_than_its_share_of_the_room() -> None:
    """A thousand others that are at their tips leave it what a shard gives at most between two reads."""
    pool = BufferPool(shard_bytes=8 * MIB, total_bytes=128 * MIB, promise_grace_seconds=10)
    others = [ShardBuffer(TRIM_HORIZON) for _ in range(1000)]
    behind = ShardBuffer(TRIM_HORIZON)
    assert all(pool.make_room(shard, now=0) for shard in [behind, *others])
    with ExitStack() as kept:
        for shard in others[:500]:
            assert kept.enter_context(pool.reserved(shard, 0, now=0)) >= LEAST_ANSWER_BYTES
        assert kept.enter_context(pool.reserved(behind, 2 * MIB, now=0)) == 2 * MIB


def test_what_was_delivered_goes_for_a_shard_that_is_behind() -> None:
    """Records that may be needed once more do not slow down unread records."""
    pool = BufferPool(shard_bytes=10 * MIB, total_bytes=10 * MIB, promise_grace_seconds=10)
    done, behind = ShardBuffer(TRIM_HORIZON), ShardBuffer(TRIM_HORIZON)
    for number in (1, 2, 3):
        pool.append(done, shard_event(wire_records([number], [bytes(3 * MIB)]), number))
    done.promise(at(3), now=0)
    pool.deliver(done, TRIM_HORIZON, at(3))
    with pool.reserved(behind, 0, now=0):
        assert pool.held_bytes > 9 * MIB
    with pool.reserved(behind, 2 * MIB, now=0) as given:
        assert given >= 2 * MIB
    assert 6 * MIB > pool.held_bytes > 3 * MIB


def test_shards_that_are_ahead_leave_half_of_the_room_to_slower_ones() -> None:
    """Their records wait for slower shards: they are not taken, and may not be evicted."""
    pool = BufferPool(shard_bytes=10**6, total_bytes=10**6, promise_grace_seconds=10)
    ahead = [ShardBuffer(TRIM_HORIZON) for _ in range(4)]
    number = 0
    while any(pool.make_room(one, 0.0, is_ahead=True) for one in ahead):
        for one in ahead:
            number += 1
            if pool.make_room(one, 0.0, is_ahead=True):
                pool.append(one, shard_event(wire_records([number], [b"x" * 10_000]), number))
    assert 500_000 <= pool.held_bytes < 530_000
    slow = ShardBuffer(TRIM_HORIZON)
    while pool.make_room(slow, 0.0):
        number += 1
        pool.append(slow, shard_event(wire_records([number], [b"x" * 10_000]), number))
    assert slow.held_bytes > 450_000
    # One that holds nothing may take an event, whatever the others hold.
    assert pool.make_room(ShardBuffer(TRIM_HORIZON), 0.0, is_ahead=True)


EVENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=12)


@given(
    EVENTS,
    st.lists(st.tuples(st.integers(1, 7), st.booleans(), st.booleans()), min_size=40, max_size=40),
    st.sampled_from([TRIM_HORIZON, at(10), ShardPosition.at_timestamp(3)]),
)
def test_no_record_is_given_twice_or_lost(
    events: list[tuple[int, int]], steps: list[tuple[int, bool, bool]], origin: ShardPosition
) -> None:
    """Any chain of limited reads, commits and evictions gives all records once, in order; what is evicted is said."""
    made, number, written = ShardBuffer(origin), 10, []
    position, got = origin, []
    pending = iter(steps)
    for rows, gap in [*events, (0, 0)] * 2:
        fresh = [number + 2 * index + 1 for index in range(rows)]
        number = (fresh[-1] if fresh else number) + gap + 1
        written += fresh
        made.append(shard_event(wire_records(fresh), number))
        limit, commit, evict = next(pending, (5, False, False))
        step = within(made, position, rows=limit)
        made.promise(step.end, now=0)
        given = numbers(read(made, position, step.end))
        expected = [one for one in written if position.rank < (1, one) <= step.end.rank]
        assert step.rows == len(expected)
        assert given is None or given == expected
        got += expected
        if commit:
            made.trim(position)
        if evict:
            made.evict(promised_before=0)
        position = step.end
    assert within(made, position).end == made.end
    got += [one for one in written if position.rank < (1, one)]
    assert got == written
    assert made.held_bytes >= 0


@pytest.mark.parametrize(
    ("later", "known"),
    [
        pytest.param([([], 9, 2000)], None, id="one move"),
        pytest.param([([], 9, 2000), ([], 11, 3000)], 1000, id="two moves"),
        pytest.param([([8], 9, 2000)], 1000, id="records"),
        pytest.param([([], 6, 2000), ([], 6, 3000)], 3000, id="no move, while it was listed as open"),
    ],
)
def test_the_end_has_the_last_time_at_which_the_shard_is_known_to_have_been_open(
    later: list[tuple[list[int], int, int]], known: int | None
) -> None:
    """The children are read from there on. The last answer of a closed shard may move the continuation once."""
    made = ShardBuffer(TRIM_HORIZON)
    for numbers_, continuation, caught_up in [([5], 6, 1000), *later]:
        made.append(shard_event(wire_records(numbers_), continuation, caught_up_millis=caught_up))
    made.append(shard_event(wire_records([]), None, child_shards=CHILDREN))
    assert made.end.caught_up_millis == known
