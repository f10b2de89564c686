"""Where LATEST and times begin: by the service's clock, whatever this host's says."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    InitialPosition,
    InitialPositionError,
    ShardPosition,
    StreamPositions,
    resolve_initial_positions,
)
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, OtherClock, RunningEmulator, running_emulator

ROOT = "shardId-000000000000"
HOUR = 3600.0


@contextmanager
def stream(clock: OtherClock | ManualClock, **config: Any) -> Iterator[tuple[RunningEmulator, Any]]:
    """An emulator with the stream `s` of one shard, and a client."""
    with running_emulator(clock=clock, enforce_limits=False, **config) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=1)
        yield emulator, client


def resolve(emulator: RunningEmulator, start: InitialPosition | str, **options: Any) -> StreamPositions:
    """By a session of its own, as each query has one."""
    session = AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))
    return resolve_initial_positions(session, ["s"], start, **options)


def at(seconds: float) -> InitialPosition:
    return InitialPosition.parse("AT_TIMESTAMP", str(int(seconds * 1000)))


def position(positions: StreamPositions) -> ShardPosition:
    found = positions.get("s", ROOT)
    assert found is not None
    return found


@pytest.mark.parametrize("ahead_seconds", [-0.6, 0.6, 30.0])
@pytest.mark.parametrize("profile", ["kind", "hostile"])
def test_latest_skips_no_record_that_is_put_after_it_was_resolved(ahead_seconds: float, profile: str) -> None:
    """Whatever the difference of both clocks, in every part of the second that a Date header tells."""
    clock = OtherClock(ahead_seconds)
    with stream(clock, behaviour=Behaviour.profile(profile, seed=1)) as (emulator, client):
        for _ in range(8):
            start = position(resolve(emulator, "LATEST")).timestamp_millis
            put = client.put_record(StreamName="s", Data=b"new", PartitionKey="k")["SequenceNumber"]
            assert start is not None
            iterator = client.get_shard_iterator(
                StreamName="s", ShardId=ROOT, ShardIteratorType="AT_TIMESTAMP", Timestamp=start / 1000
            )["ShardIterator"]
            found: list[str] = []
            while put not in found:  # an answer may be behind
                answer = client.get_records(ShardIterator=iterator)
                found += [one["SequenceNumber"] for one in answer["Records"]]
                iterator = answer["NextShardIterator"]
                assert clock.time() - start / 1000 < 10, "a record that was put after LATEST does not come"
            (record,) = [one for one in answer["Records"] if one["SequenceNumber"] == put]
            assert record["ApproximateArrivalTimestamp"].timestamp() >= start / 1000


def test_positions_tell_when_their_stream_was_created() -> None:
    """By the service, in milliseconds: another stream of the same name has another time."""
    clock = ManualClock(1_750_000_000.0)
    with stream(clock) as (emulator, client):
        for start in ("LATEST", "TRIM_HORIZON", at(clock.time() - HOUR)):
            assert resolve(emulator, start).created == {"s": 1_750_000_000_000}
        client.delete_stream(StreamName="s")
        clock.advance(60)
        client.create_stream(StreamName="s", ShardCount=1)
        clock.advance(60)
        assert resolve(emulator, "TRIM_HORIZON").created == {"s": 1_750_000_060_000}


def test_a_time_before_the_retention_is_the_oldest_record() -> None:
    """No record is lost by starting at a time that the stream cannot hold: it is the start that it can give."""
    clock = ManualClock(1_750_000_000.0)
    with stream(clock) as (emulator, client):
        clock.advance(48 * HOUR)
        assert position(resolve(emulator, at(clock.time() - 25 * HOUR))) == ShardPosition.trim_horizon()
        young = at(clock.time() - 23 * HOUR)
        assert position(resolve(emulator, young)) == ShardPosition.at_timestamp(young.timestamp_millis or 0)
        client.increase_stream_retention_period(StreamName="s", RetentionPeriodHours=48)
        clock.advance(60)
        kept = at(clock.time() - 25 * HOUR)
        assert position(resolve(emulator, kept)) == ShardPosition.at_timestamp(kept.timestamp_millis or 0)


def test_a_stream_that_may_not_be_described_is_read_from_the_time(caplog: pytest.LogCaptureFixture) -> None:
    """Only ListShards is needed; one warning says that deleted streams are not recognized then."""
    with stream(OtherClock(0.0)) as (emulator, _):
        emulator.faults.add("error", operation="DescribeStreamSummary", code="AccessDeniedException")
        old = at(time.time() - 30 * HOUR)
        with caplog.at_level(logging.WARNING):
            found = resolve(emulator, old)
        assert position(found) == ShardPosition.at_timestamp(old.timestamp_millis or 0)
        assert found.created == {}
        (told,) = [one.getMessage() for one in caplog.records if "DescribeStreamSummary" in one.getMessage()]
        assert "kinesis:DescribeStreamSummary" in told


@pytest.mark.parametrize("ahead_seconds", [-30.0, 30.0])
def test_whether_a_time_is_in_the_future_is_the_services_to_say(ahead_seconds: float) -> None:
    """A host whose clock is wrong neither refuses a time that has passed nor takes one that has not."""
    clock = OtherClock(ahead_seconds)
    with stream(clock) as (emulator, _):
        resolve(emulator, at(clock.time() - 2))
        with pytest.raises(InitialPositionError, match="ahead"):
            resolve(emulator, at(clock.time() + 10))


def test_a_time_that_has_hardly_passed_is_waited_for() -> None:
    """A host a bit ahead that names its own time as the start: Kinesis may refuse a time that is to come."""
    waits: list[float] = []
    clock = OtherClock(-0.6)
    with stream(clock, behaviour=Behaviour(refuse_future_timestamps=True)) as (emulator, _):

        async def wait(seconds: float) -> None:
            waits.append(seconds)
            clock.advance(seconds)

        # On a busy machine the time passes before it is asked about: then there is nothing to wait for.
        for _ in range(20):
            now = at(time.time())
            assert position(resolve(emulator, now, sleep=wait)).timestamp_millis == now.timestamp_millis
            assert clock.time() * 1000 >= (now.timestamp_millis or 0)
            if waits:
                break
        assert 0 < sum(waits) < 3
