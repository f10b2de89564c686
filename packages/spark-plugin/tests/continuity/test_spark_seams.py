"""A back-fill and the stream that continues it, over random histories on a clock that is moved by hand."""

import asyncio
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from s3_servers import running_s3, s3_client

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import Consumer, ShardPosition, StreamPositions
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._reading import service_time
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin._reading.initial_positions import initial_positions, seam_millis, seam_millis_on_s3
from penstock.spark_plugin.errors import OffsetError, OptionError
from penstock.spark_plugin.testing import endpoint_options

DEADLINE = 60
Key = tuple[str, str]


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module", params=["kind", "hostile"])
def emulator(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[RunningEmulator]:
    behaviour = Behaviour.profile(request.param, seed=request.config.option.kinesis_seed or 1)
    # Readers wait by the service's clock; this one does not advance, and a lag would outlast any wait.
    behaviour = replace(behaviour, get_records_lag=timedelta(0))
    with running_emulator(clock=clock, enforce_limits=False, behaviour=behaviour) as emulator:
        yield emulator


class History:
    """What happens to a stream, at times that are chosen."""

    def __init__(self, emulator: RunningEmulator, clock: ManualClock, name: str, chance: random.Random) -> None:
        self.client: Any = emulator.client()
        # The emulator is kept when a test is tried again.
        self.name = name = f"{name}-{uuid.uuid4().hex[:8]}"
        self.options = endpoint_options(emulator.endpoint_url, name)
        self.clock = clock
        self.chance = chance
        self.keys: list[Key] = []
        self.shards = 0
        self.open: list[tuple[str, int, int]] = [
            (self._new_shard(), 0, 2**127 - 1),
            (self._new_shard(), 2**127, 2**128 - 1),
        ]
        """Shard, and its hash keys from and to."""
        self.client.create_stream(StreamName=name, ShardCount=2)

    @property
    def millis(self) -> int:
        return round(self.clock.time() * 1000)

    def put(self, count: int) -> None:
        records = [{"Data": b"x", "PartitionKey": str(self.chance.random())} for _ in range(count)]
        answers = self.client.put_records(StreamName=self.name, Records=records)["Records"]
        self.keys += [(one["ShardId"], one["SequenceNumber"]) for one in answers]

    def reshard(self) -> None:
        """Split or merge; by its own list of open shards, as ListShards may be behind."""
        self.open.sort(key=lambda one: one[1])
        if len(self.open) > 1 and self.chance.random() < 0.5:
            first = self.chance.randrange(len(self.open) - 1)
            (one, low, _), (other, _, high) = self.open[first : first + 2]
            self.client.merge_shards(StreamName=self.name, ShardToMerge=one, AdjacentShardToMerge=other)
            self.open[first : first + 2] = [(self._new_shard(), low, high)]
            return
        chosen = self.chance.randrange(len(self.open))
        one, low, high = self.open[chosen]
        middle = (low + high) // 2
        self.client.split_shard(StreamName=self.name, ShardToSplit=one, NewStartingHashKey=str(middle))
        self.open[chosen : chosen + 1] = [(self._new_shard(), low, middle - 1), (self._new_shard(), middle, high)]

    def _new_shard(self) -> str:
        self.shards += 1
        return f"shardId-{self.shards - 1:012}"

    def step(self) -> None:
        match self.chance.choice(("put", "put", "put", "wait", "wait", "reshard")):
            case "put":
                self.put(self.chance.randint(1, 9))
            case "wait":
                self.clock.advance(self.chance.choice((0.001, 0.001, 0.002, 0.4, 3.0)))
            case _:
                self.reshard()


def back_filled(options: KinesisOptions, clock: ManualClock) -> list[Key]:
    reader = KinesisBatchReader(options)
    partitions = reader.partitions()
    clock.advance(5)  # so no task waits until it sees its shards as they were when it was planned
    return [
        key
        for partition in partitions
        for batch in reader.read(partition)
        for key in zip(batch.column("shardId").to_pylist(), batch.column("sequenceNumber").to_pylist(), strict=True)
    ]


async def streamed(options: KinesisOptions, positions: StreamPositions, count: int) -> list[Key]:
    """What a query reads that begins there, until it has so many and the stream gives no more."""
    found: list[Key] = []
    aws: AwsOptions = aws_options(options)
    async with Consumer(list(options.stream_name), start=positions, checkpoints=None, aws=aws) as consumer:
        try:
            async with asyncio.timeout(DEADLINE):
                while len(found) < count:
                    found += await _batch(consumer)
            async with asyncio.timeout(1):
                while True:
                    found += await _batch(consumer)
        except TimeoutError:
            return found


async def _batch(consumer: Consumer) -> list[Key]:
    batch = await anext(aiter(consumer))
    await consumer.commit(batch)
    rows = batch.records
    return list(zip(rows.column("shardId").to_pylist(), rows.column("sequenceNumber").to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_or_doubled_at_a_seam_of_any_history(
    emulator: RunningEmulator, clock: ManualClock, tmp_path: Path, seed: int
) -> None:
    """Records before, in and after the millisecond of the seam, splits and merges on both sides and in that very
    millisecond: each record is in the back-fill or in the stream, and the records of one shard keep their order."""
    chance = random.Random(seed)
    history = History(emulator, clock, f"history-{seed}", chance)
    for _ in range(chance.randint(1, 12)):
        history.step()
    history.put(3)
    path = tmp_path / "seam.json"
    at = StreamPositions({history.name: {"shardId-000000000000": ShardPosition.at_timestamp(history.millis)}})
    seam_millis(path, lambda: at)
    history.put(3)
    if chance.random() < 0.5:
        history.reshard()
        history.put(3)
    for _ in range(chance.randint(1, 12)):
        history.step()
    clock.advance(3)
    past = KinesisOptions.parse({**history.options, "endingPosition": str(path)})
    live = KinesisOptions.parse({**history.options, "initialPosition": str(path)})
    before = await asyncio.to_thread(back_filled, past, clock)
    positions = await asyncio.to_thread(initial_positions, live)
    after = await streamed(live, positions, len(history.keys) - len(before))
    assert sorted(before + after) == sorted(history.keys)
    for shard in {shard for shard, _ in history.keys}:
        numbers = [int(number) for one, number in before + after if one == shard]
        assert numbers == sorted(numbers)


def test_seam_has_passed_before_shards_are_listed(
    emulator: RunningEmulator, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seam that is to come by the service's clock is waited for: what comes before it into new shards is read too."""
    history = History(emulator, clock, "ahead", random.Random(1))
    history.put(3)
    path = tmp_path / "seam.json"
    seam = StreamPositions({history.name: {"shardId-000000000000": ShardPosition.at_timestamp(history.millis + 500)}})
    seam_millis(path, lambda: seam)

    waits: list[float] = []

    async def while_it_comes(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            await asyncio.to_thread(history.reshard)
            await asyncio.to_thread(history.put, 3)
            clock.advance(3)

    monkeypatch.setattr(service_time, "sleep", while_it_comes)
    past = KinesisOptions.parse({**history.options, "endingPosition": str(path)})
    assert sorted(back_filled(past, clock)) == sorted(history.keys)


def test_seam_on_s3(emulator: RunningEmulator, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reader creates it, and all read it; a file that is not a seam is an error, as is an unusable place."""
    name = f"s3-{uuid.uuid4().hex[:8]}"
    emulator.client().create_stream(StreamName=name, ShardCount=1)
    clock.advance(timedelta(minutes=1))
    with running_s3() as endpoint_url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint_url)
        client = s3_client(endpoint_url)
        client.create_bucket(Bucket="seams")
        client.put_object(Bucket="seams", Key="a/broken.json", Body=b"[]")

        def millis(url: str) -> int:
            given = endpoint_options(emulator.endpoint_url, name, endingPosition=url)
            position = KinesisOptions.parse(given).ending_position
            assert position is not None
            now = StreamPositions({name: {"shard": ShardPosition.at_timestamp(next(times))}})
            assert isinstance(position.seam, str)
            return seam_millis_on_s3(position.seam, AwsSession(aws_options(KinesisOptions.parse(given))), lambda: now)

        times = iter((5000, 6000, 7000))
        assert [millis("s3a://seams/a/b.json"), millis("s3://seams/a/b.json")] == [5000, 5000]
        with pytest.raises(OffsetError) as broken:
            millis("s3://seams/a/broken.json")
        assert str(broken.value) == "s3://seams/a/broken.json is not a seam"
    with pytest.raises(OptionError) as refused:
        KinesisOptions.parse(endpoint_options(emulator.endpoint_url, name, endingPosition="s3://seams"))
    assert refused.value.code == "INVALID_OPTION"
    assert (refused.value.option, refused.value.facts["value"]) == ("endingPosition", "s3://seams")
