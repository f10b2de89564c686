"""Times in options, to the millisecond in which records arrive."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.aws import AwsOptions, AwsSession
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.bounds import Bounds
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin._reading.initial_positions import initial_positions
from penstock.spark_plugin.testing import endpoint_options

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SESSION = AwsSession(AwsOptions(region="us-east-1"))
NOW_MICROS = 2**52


def bounds(begin: str, end: str) -> Bounds:
    parsed = KinesisOptions.parse({"streamName": "s", "startingPosition": begin, "endingPosition": end}, environ={})
    return Bounds.resolve(SESSION, parsed, NOW_MICROS)


@given(st.integers(min_value=0, max_value=4 * 10**15))
def test_no_record_is_before_and_behind_a_time(micros: int) -> None:
    """A read that ends at a time and one that begins there have each whole millisecond on one side."""
    time = (EPOCH + timedelta(microseconds=micros)).isoformat()
    before, begin = bounds("TRIM_HORIZON", time).before_micros, bounds(time, time).after["s"].timestamp_millis
    assert before == micros
    assert begin == -(-micros // 1000)


@pytest.fixture
def emulator() -> Iterator[tuple[RunningEmulator, ManualClock]]:
    clock = ManualClock(int(time.time()) - 60 + 0.0005)  # so that steps of a millisecond stay between two
    with running_emulator(clock=clock, enforce_limits=False) as running:
        yield running, clock


def test_reads_that_meet_at_a_time_give_each_record_once(emulator: tuple[RunningEmulator, ManualClock]) -> None:
    """A record a millisecond: wherever the time is cut, within one too, and for a stream that begins there."""
    running, clock = emulator
    client = running.client()
    client.create_stream(StreamName="s", ShardCount=1)
    origin = int(clock.time() * 1000)
    for _ in range(40):
        client.put_record(StreamName="s", Data=b"x", PartitionKey="k")
        clock.advance(0.001)

    def count(**options: str) -> int:
        reader = KinesisBatchReader(KinesisOptions.parse(endpoint_options(running.endpoint_url, "s", **options)))
        partitions = reader.partitions()
        clock.advance(5)  # so no task waits until it sees the shard as it was when it was planned
        return sum(batch.num_rows for one in partitions for batch in reader.read(one))

    for micros in (0, 400):
        for number in range(1, 40, 6):
            cut = (EPOCH + timedelta(milliseconds=origin + number, microseconds=micros)).isoformat()
            behind = count(startingPosition=cut)
            assert (count(endingPosition=cut), behind) == (40 - behind, 40 - number - (micros > 0)), cut
            begins = KinesisOptions.parse(endpoint_options(running.endpoint_url, "s", initialPosition=cut))
            (position,) = initial_positions(begins).streams["s"].values()
            assert position.timestamp_millis == origin + number + (micros > 0)
