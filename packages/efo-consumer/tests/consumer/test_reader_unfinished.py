"""The positions behind a part of a batch, decided without I/O."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.efo_consumer import PositionsSnapshot, ShardLineage, ShardPosition, StreamPositions, to_read_batch
from penstock.efo_consumer._consumer.unfinished import Unfinished
from penstock.efo_consumer.testing import arrival_micros, wire_records

HORIZON = ShardPosition.trim_horizon()
END = ShardPosition.shard_end()


def rows(stream: str, shard: str, *numbers: int) -> pa.RecordBatch:
    return to_read_batch(wire_records(numbers), stream, shard)


def after(number: int) -> ShardPosition:
    return ShardPosition.after(str(number))


def positions(**shards: ShardPosition) -> StreamPositions:
    return StreamPositions({"s": shards})


def step_of(
    records: pa.RecordBatch, before: StreamPositions, reached: StreamPositions, **parents: tuple[str, ...]
) -> Unfinished:
    lineage = tuple(ShardLineage("s", shard, of) for shard, of in parents.items())
    return Unfinished(records, before, PositionsSnapshot(reached, records.num_rows, 0, 0, lineage))


def cut(step: Unfinished, finished: int) -> dict[str, ShardPosition]:
    step.finished = finished
    return dict(step.positions.streams["s"])


def test_a_part_of_a_batch_ends_at_its_last_record_in_each_shard() -> None:
    """Shards whose records are finished, or that have none, stand where the step ends; the others where they were."""
    records = pa.concat_batches([rows("s", "a", 5, 6), rows("s", "b", 7, 8), rows("s", "c", 9)])
    before = positions(a=after(1), b=after(2), c=after(3), idle=after(4))
    reached = positions(a=after(60), b=after(80), c=after(90), idle=after(40))
    step = step_of(records, before, reached)
    assert cut(step, 0) == before.streams["s"]
    assert cut(step, 1) == {"a": after(5), "b": after(2), "c": after(3), "idle": after(40)}
    assert cut(step, 2) == {"a": after(60), "b": after(2), "c": after(3), "idle": after(40)}
    assert cut(step, 3) == {"a": after(60), "b": after(7), "c": after(3), "idle": after(40)}
    assert cut(step, 5) == reached.streams["s"]
    assert step.is_finished
    step.finished = 3
    assert step.rest.column("sequenceNumber").to_pylist() == ["8", "9"]


def test_a_position_inside_a_batch_knows_its_record() -> None:
    """And the first record of a range that began at no record, as the end of the step does."""
    reached = positions(a=replace(after(60), record="6", first_record="4"))
    step = step_of(rows("s", "a", 4, 5, 6), positions(a=HORIZON), reached)
    found = cut(step, 2)["a"]
    assert (
        found.with_facts
        == replace(after(5), record="5", arrived_millis=arrival_micros(5) // 1000, first_record="4").with_facts
    )


def test_user_records_of_an_aggregate_share_a_position() -> None:
    """It lies before the aggregate until the last of them is finished, also where it is the first of its shard."""
    step = step_of(rows("s", "a", 4, 4, 5, 5, 5, 6), positions(a=after(1)), positions(a=after(9)))
    found = [cut(step, finished)["a"].sequence_number for finished in range(7)]
    assert found == ["1", "1", "4", "4", "4", "5", "9"]


def test_records_of_shards_that_alternate_are_told_apart() -> None:
    """Several readers may bring them in any order between the shards."""
    parts = [rows("s", "a", 4), rows("s", "b", 5), rows("s", "a", 4, 6), rows("s", "b", 7)]
    before, reached = positions(a=after(1), b=after(2)), positions(a=after(8), b=after(9))
    step = step_of(pa.concat_batches(parts), before, reached)
    found = [tuple(one.sequence_number for one in cut(step, finished).values()) for finished in range(6)]
    assert found == [("1", "2"), ("1", "2"), ("1", "5"), ("4", "5"), ("8", "5"), ("8", "9")]


def test_a_child_has_a_position_only_when_its_parents_are_finished_to_their_ends() -> None:
    """All children of a parent get one then, so that none is taken for read; children of other parents have theirs."""
    records = pa.concat_batches([rows("s", "b", 5), rows("s", "c", 6, 7), rows("s", "e", 8)])
    # `a` ended earlier, and `b` came of it; `c` ends in this step, and `d` and `e` come of it.
    before = positions(a=END, c=after(1))
    reached = positions(a=END, b=after(50), c=replace(END, caught_up_millis=9), d=HORIZON, e=after(80))
    step = step_of(records, before, reached, b=("a", "expired"), d=("c",), e=("c",))
    assert cut(step, 1) == {"a": END, "b": after(50), "c": after(1)}
    assert cut(step, 2) == {"a": END, "b": after(50), "c": after(6)}
    found = cut(step, 3)
    assert found == {"a": END, "b": after(50), "c": END, "d": HORIZON, "e": HORIZON}
    # As the reader enters it: its records arrived after its parent was closed.
    assert found["e"].caught_up_millis == 9
    assert cut(step, 4) == reached.streams["s"]


def test_a_shard_whose_ancestor_has_no_position_has_none() -> None:
    """Otherwise a restart would take the ancestor, and all other shards that continue it, for read."""
    records = pa.concat_batches([rows("s", "e", 7, 8), rows("s", "c", 5), rows("s", "d", 6)])
    before = positions(a=END)
    reached = positions(a=END, b=END, c=END, d=after(60), e=END, f=HORIZON)
    parents: dict[str, tuple[str, ...]] = {"b": ("a",), "c": ("b",), "d": ("c",), "e": ("b",), "f": ("c", "e")}
    step = step_of(records, before, reached, **parents)
    assert cut(step, 1) == {"a": END, "b": END, "c": HORIZON, "e": after(7)}
    assert cut(step, 2) == {"a": END, "b": END, "c": HORIZON, "e": END}
    assert cut(step, 3) == {"a": END, "b": END, "c": END, "d": HORIZON, "e": END, "f": HORIZON}


@pytest.mark.parametrize("is_gone", [True, False])
def test_shards_of_unknown_parents_have_positions_when_all_ends_are_finished(is_gone: bool) -> None:
    """They may come of any shard that ends in the step; of one that is gone ListShards names other parents."""
    records = pa.concat_batches([rows("s", "b", 5), rows("s", "c", 6, 7)])
    step = step_of(records, positions(a=END, c=after(1)), positions(a=END, b=after(50), c=END, d=HORIZON))
    if is_gone:
        lineage = (
            ShardLineage("s", "d", ("x",)),
            ShardLineage("s", "b", ("a",)),
            ShardLineage("s", "c", (), is_gone=True),
        )
        step = Unfinished(records, step.before, PositionsSnapshot(step.after, 3, 0, 0, lineage))
    assert cut(step, 1) == {"a": END, "c": after(1)}
    assert cut(step, 2) == {"a": END, "c": after(6)}
    assert cut(step, 3) == {"a": END, "b": after(50), "c": END, "d": HORIZON}


@pytest.mark.parametrize("finished", [1, 2])
def test_streams_of_one_name_are_cut_only_where_they_begin(finished: int) -> None:
    """Two accounts may have a stream of one name, and its rows do not say which: more comes again, nothing is lost."""
    arns = [f"arn:aws:kinesis:eu-west-1:{account:012}:stream/s" for account in (1, 2)]
    before = StreamPositions({arn: {"a": after(1)} for arn in arns})
    reached = StreamPositions({arn: {"a": after(9)} for arn in arns})
    step = step_of(pa.concat_batches([rows(arn, "a", 5, 6) for arn in arns]), before, reached)
    step.finished = finished
    assert step.positions == before
    begin, end = (StreamPositions({arns[0]: {"a": position}}) for position in (HORIZON, END))
    one = step_of(rows(arns[0], "a", 5, 6, 7), begin, end)
    one.finished = finished
    assert one.positions == StreamPositions({arns[0]: {"a": after(4 + finished)}})
