"""Micro-batches that `minPartitions` divides, over shards that end in them."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from reading_driver import partitions_of

from penstock.efo_consumer import PositionsSnapshot, ShardPosition, StreamPositions
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream.available_now import Target
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._spark import ReadAllAvailable
from penstock.spark_plugin.testing import FakeReadingSession


@pytest.mark.parametrize("partitions", [2, 5, 12])
def test_a_shard_that_ends_in_a_divided_micro_batch_is_read_once(
    make_stream: Callable[[int], Any], partitions: int
) -> None:
    """Its end is in one part, and its children in that and the next ones: no part takes it for a new shard."""
    source = make_stream(1)
    source.put(3)
    source.split("shardId-000000000000")
    source.put(40)
    options = source.options(initialPosition="TRIM_HORIZON", minPartitions=str(partitions))
    reader = KinesisStreamReader(KinesisOptions.parse(options))
    try:
        start = reader.initialOffset()
        found = partitions_of(reader, start, reader.latestOffset(start, ReadAllAvailable()))
    finally:
        reader.stop()
    rows = [(shard, number) for part in found for _, shard, number in part]
    assert sorted(rows) == sorted(source.put_keys)
    assert len(found) >= min(partitions, 4)
    for shard in {shard for shard, _ in rows}:
        numbers = [int(number) for one, number in rows if one == shard]
        assert numbers == sorted(numbers)


def test_a_back_log_in_one_micro_batch_is_worth_all_of_its_bytes() -> None:
    """`Trigger.Once` comes to its end by many answers: the last one may be small, and does not say how much it is."""

    def at(number: int) -> StreamPositions:
        return StreamPositions({"flights": {f"s{one}": ShardPosition.after(str(number)) for one in range(4)}})

    class Ending:
        def __init__(self, _: KinesisOptions) -> None:
            self.found = Target(at(9).streams, {("flights", f"s{one}"): 9 for one in range(4)})

        def target(self, start: StreamPositions) -> Target:
            return self.found

        def expired(self, needed: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
            return set()

    session = FakeReadingSession()
    answers = [PositionsSnapshot(at(5), 1000, 10 << 20, 0), PositionsSnapshot(at(9), 1, 10, 0)]
    session.reader.positions = lambda *_, **__: answers.pop(0)  # type: ignore[method-assign]  # one by one
    source = KinesisStreamReader(
        KinesisOptions(stream_name=("flights",), max_partitions=4), session_factory=session.open, available_now=Ending
    )
    start = at(1).to_json()
    assert len(source.partitions(start, source.latestOffset(start, ReadAllAvailable()))) == 4
