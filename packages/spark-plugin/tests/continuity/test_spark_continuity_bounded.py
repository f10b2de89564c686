"""Bounded reads and Trigger.AvailableNow hold every record that was acknowledged before they were planned."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from patience import overlapping
from reading_driver import Runs

from penstock.efo_consumer import Shard, StreamRecreatedError, list_shards
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, OtherClock, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading import initial_positions
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin.testing import endpoint_options

Keys = list[tuple[str, str]]
TRIM = {"initialPosition": "TRIM_HORIZON"}
ROOT, OTHER, FIRST, SECOND, THIRD = (f"shardId-{number:012}" for number in range(5))
END = "SHARD_END"
LATE = Behaviour(late_children=timedelta(seconds=5), seed=1)
"""Lists show the children of a reshard seconds late. A read that needs the list waits for them in real time."""
PROFILES = pytest.mark.parametrize("profile", ["kind", "hostile"])


class Source:
    """A stream, and the shard and sequence number of each record that was acknowledged, in order."""

    def __init__(self, client: Any, endpoint_url: str) -> None:
        self.client = client
        self.endpoint_url = endpoint_url
        self.keys: Keys = []
        client.create_stream(StreamName="flights", ShardCount=2)

    def put(self, count: int) -> None:
        for _ in range(count):
            key = str(len(self.keys))
            answer = self.client.put_record(StreamName="flights", Data=key.encode(), PartitionKey=key)
            self.keys.append((answer["ShardId"], answer["SequenceNumber"]))

    def split(self, shard_id: str = ROOT) -> None:
        self.client.split_shard(StreamName="flights", ShardToSplit=shard_id, NewStartingHashKey=str(2**126))

    def merge(self, *shard_ids: str) -> None:
        self.client.merge_shards(StreamName="flights", ShardToMerge=shard_ids[0], AdjacentShardToMerge=shard_ids[1])

    def of(self, *shard_ids: str) -> Keys:
        """The records of these shards."""
        return sorted(key for key in self.keys if key[0] in shard_ids)

    def options(self, **options: str) -> dict[str, str]:
        return endpoint_options(self.endpoint_url, "flights", **options)


@contextmanager
def source_of(clock: OtherClock | ManualClock, behaviour: Behaviour | None = None) -> Iterator[Source]:
    with running_emulator(clock=clock, behaviour=behaviour or Behaviour(), enforce_limits=False) as emulator:
        yield Source(emulator.client(), emulator.endpoint_url)


def planned(options: dict[str, str]) -> tuple[KinesisBatchReader, Any]:
    reader = KinesisBatchReader(KinesisOptions.parse(options))
    return reader, reader.partitions()


def rows(reader: KinesisBatchReader, partitions: Any) -> Keys:
    found: Keys = []
    for partition in partitions:
        for batch in reader.read(partition):
            columns = (batch.column(name).to_pylist() for name in ("shardId", "sequenceNumber"))
            found += list(zip(*columns, strict=True))
    return found


def read(options: dict[str, str]) -> Keys:
    return rows(*planned(options))


def test_a_read_up_to_now_has_what_was_acknowledged_before_it() -> None:
    """Whatever this host's clock says."""

    def check(ahead_seconds: float) -> None:
        with source_of(OtherClock(ahead_seconds)) as source:
            source.put(10)
            assert sorted(read(source.options())) == sorted(source.keys)

    overlapping(check, [(-5.0,), (-0.6,), (0.6,), (5.0,)])


def test_a_read_up_to_now_has_what_getrecords_does_not_show_yet() -> None:
    """GetRecords may be a second behind, and says that it is not: the end of the read is after that."""

    def check(seed: int) -> None:
        with source_of(OtherClock(0.0), Behaviour.hostile(seed=seed)) as source:
            source.put(30)
            assert sorted(read(source.options())) == sorted(source.keys)

    overlapping(check, [(seed,) for seed in range(3)])


def test_a_read_up_to_a_sequence_number_has_it() -> None:
    """Also when the record was put a moment ago."""

    def check(profile: str) -> None:
        with source_of(OtherClock(0.0), Behaviour.profile(profile, seed=2)) as source:
            for _ in range(3):
                source.put(5)
                last = dict(source.keys)
                assert sorted(read(source.options(endingPosition=json.dumps(last)))) == sorted(source.keys)

    overlapping(check, [("kind",), ("hostile",)])


def test_a_read_up_to_now_has_the_children_of_a_reshard_that_was_just_made() -> None:
    """ListShards may show children late, or a shard may be split while the read is planned."""

    def check(profile: str) -> None:
        with source_of(OtherClock(0.0), Behaviour.profile(profile, seed=3)) as source:
            source.put(10)
            source.split()
            source.put(10)
            reader, partitions = planned(source.options())
            assert sorted(rows(reader, partitions)) == sorted(source.keys)
            source.merge("shardId-000000000002", "shardId-000000000003")
            source.put(10)
            assert sorted(read(source.options(minPartitions="4"))) == sorted(source.keys)

    overlapping(check, [("kind",), ("hostile",)])


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Shards that no list shows to whoever plans a bounded read, while it shows others of the same reshard."""
    found: set[str] = set()

    async def list_some(*arguments: Any, **options: Any) -> list[Shard]:
        return [one for one in await list_shards(*arguments, **options) if one.shard_id not in found]

    monkeypatch.setattr(initial_positions, "list_shards", list_some)
    return found


@pytest.mark.parametrize("late", [FIRST, SECOND])
def test_a_child_that_is_listed_after_the_other_one_is_read(hidden: set[str], late: str) -> None:
    """However the shards are divided, the one is read by its own, and the other behind the shard that both come of."""
    with source_of(OtherClock(0.0)) as source:
        source.put(10)
        source.split()
        source.put(20)
        hidden.add(late)
        for least in ("1", "6"):
            assert sorted(read(source.options(minPartitions=least))) == sorted(source.keys)
        after_root = json.dumps({ROOT: END, OTHER: END})
        assert sorted(read(source.options(initialPosition=after_root))) == source.of(FIRST, SECOND)


@pytest.mark.parametrize("late", [(), (FIRST, SECOND, THIRD)])
@pytest.mark.parametrize("merged", [(FIRST, SECOND), (SECOND, OTHER)], ids=["siblings", "cousins"])
def test_a_merged_shard_is_read_once_however_much_of_its_past_is_listed(
    hidden: set[str], merged: tuple[str, str], late: tuple[str, ...]
) -> None:
    """Both of its parents lead to it, whether they were planned or are found as they are read."""
    with source_of(OtherClock(0.0)) as source:
        source.put(10)
        source.split()
        source.put(10)
        source.merge(*merged)
        source.put(10)
        hidden.update(late)
        assert sorted(read(source.options())) == sorted(source.keys)


@pytest.mark.parametrize(
    ("behaviour", "ended"), [(Behaviour(), (ROOT, OTHER)), (LATE, (ROOT,))], ids=["listed-both", "late-first"]
)
def test_a_read_from_the_middle_of_a_merge_has_the_merged_shard(behaviour: Behaviour, ended: tuple[str, ...]) -> None:
    """Whichever parent was read to its end, and before a list shows what came of it."""
    with source_of(OtherClock(0.0), behaviour) as source:
        source.put(10)
        begin = dict(source.keys) | dict.fromkeys(ended, END)
        source.merge(ROOT, OTHER)
        source.put(20)
        assert sorted(read(source.options(initialPosition=json.dumps(begin)))) == source.of(FIRST)


@pytest.mark.parametrize(("behaviour", "position"), [(LATE, END), (Behaviour(), "LATEST")], ids=["late", "listed"])
def test_a_read_from_a_shards_end_has_its_children(behaviour: Behaviour, position: str) -> None:
    """Nothing else of the shard itself, however many partitions there should be."""
    with source_of(OtherClock(0.0), behaviour) as source:
        source.put(10)
        begin = json.dumps(dict(source.keys) | {ROOT: position})
        source.split()
        source.put(20)
        wanted = sorted(source.keys[10:])
        for least in ("1", "6"):
            assert sorted(read(source.options(initialPosition=begin, minPartitions=least))) == wanted
        assert read(source.options(initialPosition=begin, shardIds=ROOT)) == []


def test_children_that_are_not_asked_for_are_not_read() -> None:
    """`shardIds` names all shards of a read, and an end in sequence numbers those before it."""
    with source_of(OtherClock(0.0), Behaviour.hostile(seed=4)) as source:
        source.put(10)
        source.split()
        source.put(10)
        roots = [key for key in source.keys if key[0] == ROOT]
        assert sorted(read(source.options(shardIds=ROOT))) == sorted(roots)
        assert sorted(read(source.options(endingPosition=json.dumps(dict(roots))))) == sorted(roots)


@pytest.mark.parametrize("seed", range(2))
def test_reads_that_meet_at_a_time_share_no_record_and_leave_none_out(seed: int) -> None:
    """A read ends exactly where one that begins at that time begins, though arrival times may go back by a second."""
    chance = random.Random(seed)
    clock = ManualClock(1_750_000_000.0)
    with source_of(clock, Behaviour.hostile(seed=seed)) as source:
        cuts = [clock.time()]
        for _ in range(3):
            for _ in range(20):
                source.put(1)
                clock.advance(chance.choice((0.05, 0.3, 0.7)))
            cuts.append(clock.time() - chance.choice((0.0, 0.4, 1.2)))
            source.put(3)
        clock.advance(60)
        source.put(1)
        clock.advance(3)

        def read_later(**options: str) -> Keys:
            """A read whose tasks run some time after it was planned."""
            reader, partitions = planned(source.options(**options))
            clock.advance(5)
            return rows(reader, partitions)

        found = []
        for begin, end in pairwise(cuts):
            found += read_later(startingPosition=f"AT_TIMESTAMP {begin:.3f}", endingPosition=f"{end:.3f}")
        found += read_later(startingPosition=f"AT_TIMESTAMP {cuts[-1]:.3f}")
        assert sorted(found) == sorted(source.keys)
        divided = read_later(startingPosition=f"AT_TIMESTAMP {cuts[0]:.3f}", minPartitions="12")
        assert sorted(divided) == sorted(source.keys)


def test_read_with_an_end_in_the_past_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later record shows that it is complete; only the tip of a shard has to be looked at again."""
    clock = ManualClock(1_750_000_000.0)
    with source_of(clock) as source:
        source.put(5)
        clock.advance(60)
        end = clock.time()
        before = sorted(source.keys)
        source.put(5)
        monkeypatch.setattr("penstock.spark_plugin._reading.service_time.sleep", None)
        assert sorted(read(source.options(endingPosition=f"{end:.3f}"))) == before


@PROFILES
def test_read_waits_for_an_end_in_the_future(profile: str) -> None:
    """What arrives between planning and the end belongs to the read, and what comes later does not."""
    clock = OtherClock(0.0)
    with source_of(clock, Behaviour.profile(profile, seed=7)) as source:
        source.put(5)
        reader, partitions = planned(source.options(endingPosition=f"{clock.time() + 600:.3f}"))
        source.put(5)
        clock.advance(602)
        wanted = sorted(source.keys)
        source.put(5)
        assert sorted(rows(reader, partitions)) == wanted


def test_available_now_has_what_was_acknowledged_before_it() -> None:
    """Every record that is acknowledged when a run begins is in the run, by the service's clock."""

    def check(profile: str, ahead_seconds: float) -> None:
        with source_of(OtherClock(ahead_seconds), Behaviour.profile(profile, seed=5)) as source:
            runs = Runs()
            for _ in range(2):
                source.put(10)
                runs.available_now(source.options(**TRIM))
                assert sorted(runs.keys) == sorted(source.keys)

    overlapping(check, [*product(("kind", "hostile"), (-5.0, 0.6, 5.0))])


def test_available_now_has_what_was_acknowledged_while_the_services_clock_stands_still() -> None:
    """It waits for GetRecords by its own clock: the service's would never show that the wait is over."""
    with source_of(ManualClock()) as source:
        runs = Runs()
        for _ in range(2):
            source.put(10)
            runs.available_now(source.options(**TRIM))
            assert sorted(runs.keys) == sorted(source.keys)


def test_available_now_has_the_children_of_a_reshard_that_was_just_made() -> None:
    """Whether or not ListShards shows them yet."""

    def check(profile: str) -> None:
        with source_of(OtherClock(0.0), Behaviour.profile(profile, seed=6)) as source:
            runs = Runs()
            source.put(10)
            source.split()
            source.put(10)
            runs.available_now(source.options(**TRIM))
            assert sorted(runs.keys) == sorted(source.keys)

    overlapping(check, [("kind",), ("hostile",)])


def test_a_stream_that_is_made_again_after_the_plan_is_another_one() -> None:
    """Its records would arrive after the end of the read, which would seem to have none."""
    with source_of(OtherClock(0)) as source:
        source.put(4)
        reader, partitions = planned(source.options(**TRIM))
        source.client.delete_stream(StreamName="flights")
        source.client.get_waiter("stream_not_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        source.client.create_stream(StreamName="flights", ShardCount=2)
        source.client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        with pytest.raises(StreamRecreatedError, match="flights"):
            rows(reader, partitions)
