import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from reading_driver import Runs

from penstock.efo_consumer import DataLossError, ShardFailedError
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator
from penstock.rpc.testing import service_process
from penstock.spark_plugin.testing import endpoint_options

TRIM = {"initialPosition": "TRIM_HORIZON"}
HOUR = 3600.0


@pytest.fixture
def readers(kinesis: RunningEmulator, tmp_path: Path) -> Iterator[list[str]]:
    """Two shard-reader services."""
    pytest.importorskip("penstock.services.shard_reader")
    token = tmp_path / "token"
    token.write_text("a-secret-of-these-tests-with-32-characters")
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "PATH": ""}
    command = ["serve", "--region", "us-east-1", "--endpoint-url", kinesis.endpoint_url, "--token-file", str(token)]
    with ExitStack() as stack:
        made = [
            stack.enter_context(service_process("penstock.services.shard_reader", command, environment))
            for _ in range(2)
        ]
        yield [one.address for one in made]


def test_one_checkpoint_serves_all_ways_to_read(
    make_stream: Callable[[int], Any], readers: list[str], tmp_path: Path
) -> None:
    """Polling, enhanced fan-out, one service and two of them, run after run, over a reshard: every record once."""
    source = make_stream(2)
    efo = {"recordPublisher": "efo", "efoConsumerName": "mine", "registryStore": str(tmp_path / "registry.db")}
    ways = [
        {},
        efo,
        {"readerEndpoint": readers[0], "serviceToken": "a-secret-of-these-tests-with-32-characters"},
        {"readerEndpoint": ",".join(readers), "serviceToken": "a-secret-of-these-tests-with-32-characters", **efo},
        {"readerEndpoint": ",".join(reversed(readers)), "serviceToken": "a-secret-of-these-tests-with-32-characters"},
        efo,
    ]
    runs = Runs()
    for number, way in enumerate(ways):
        source.put(20)
        if number in (1, 3):
            source.split(f"shardId-00000000000{number - 1}")
            source.put(10)
        runs.available_now(source.options(**TRIM, **way))
        assert sorted(runs.keys) == sorted(source.put_keys), way
    for shard in {shard for shard, _ in runs.keys}:
        numbers = [int(one) for name, one in runs.keys if name == shard]
        assert numbers == sorted(numbers)


def test_a_consumer_without_a_name_is_named_by_the_checkpoint(
    make_stream: Callable[[int], Any], tmp_path: Path
) -> None:
    """The same in all runs of a query, and another in a query with another checkpoint."""
    source = make_stream(1)
    options = source.options(**TRIM, recordPublisher="efo", registryStore=str(tmp_path / "registry.db"))
    names = []
    for prefix in ({}, {"consumerNamePrefix": "databricks_"}):
        seen: list[str] = []
        runs = Runs(before_batch=lambda _, seen=seen: seen.extend(source.consumers()))  # type: ignore[misc]  # of this turn
        for _ in range(2):
            source.put(3)
            runs.available_now(options | prefix)
        assert sorted(runs.keys) == sorted(source.put_keys)
        assert set(seen) == {(prefix.get("consumerNamePrefix") or "penstock-") + runs.log[0]["query"]}
        names.append(runs.log[0]["query"])
    assert names[0] != names[1]


@pytest.mark.parametrize("count", [0, 2])
def test_no_shard_has_more_of_a_micro_batch_than_its_limit(
    make_stream: Callable[[int], Any], readers: list[str], count: int
) -> None:
    """By the query's own reader, one service and two of them: in order, and nothing is left."""
    source = make_stream(3)
    source.put(60)
    way = (
        {"readerEndpoint": ",".join(readers[:count]), "serviceToken": "a-secret-of-these-tests-with-32-characters"}
        if count
        else {}
    )
    runs = Runs()
    runs.available_now(source.options(**TRIM, maxRecordsPerShardPerBatch="4", **way))
    assert sorted(runs.keys) == sorted(source.put_keys)
    most = [max(Counter(shard for _, shard, _ in rows).values()) for rows in runs.batches if rows]
    assert set(most) <= {1, 2, 3, 4}
    assert 4 in most


class Stopped:
    """A query that was stopped hours ago, in the middle of a stream with a retention of a day."""

    def __init__(self, emulator: RunningEmulator, clock: ManualClock, hours: float) -> None:
        self._clock = clock
        self._hours = hours
        self.client = emulator.client()
        self.client.create_stream(StreamName="flights", ShardCount=1)
        self.options = endpoint_options(emulator.endpoint_url, "flights", **TRIM)
        self.runs = Runs()
        self.put(4)
        self.runs.available_now(self.options)
        # The run looked at this machine's clock, which is the one that moves on.
        self.position = self.runs.log[-1]["streams"]["flights"]["shardId-000000000000"]
        self.position["caughtUp"] = int(clock.time() * 1000)
        self.missed = self.put(4)

    def split(self) -> None:
        """Split the only shard."""
        shard = "shardId-000000000000"
        self.client.split_shard(StreamName="flights", ShardToSplit=shard, NewStartingHashKey=str(2**126))

    def come_back(self) -> list[str]:
        """Let the hours pass; the sequence numbers of records that were put at their end."""
        self._clock.advance(self._hours * HOUR)
        return self.put(3)

    def put(self, count: int) -> list[str]:
        """Put records; their sequence numbers."""
        return [
            self.client.put_record(StreamName="flights", Data=b"x", PartitionKey=str(number))["SequenceNumber"]
            for number in range(count)
        ]


@pytest.fixture
def make_stopped() -> Iterator[Callable[[float], Stopped]]:
    with ExitStack() as stack:

        def make(hours: float) -> Stopped:
            clock = ManualClock(time.time() - hours * HOUR - 1)
            return Stopped(stack.enter_context(running_emulator(clock=clock, enforce_limits=False)), clock, hours)

        yield make


@pytest.mark.parametrize("is_resharded", [True])
def test_records_that_expired_under_a_stopped_query_fail_it(
    make_stopped: Callable[[float], Stopped], *, is_resharded: bool
) -> None:
    """The error names shard and range, and says what to do."""
    stopped = make_stopped(30)
    if is_resharded:
        stopped.split()
    stopped.come_back()
    with pytest.raises(DataLossError) as caught:
        stopped.runs.available_now(stopped.options)
    assert (caught.value.stream, caught.value.shard_id) == ("flights", "shardId-000000000000")
    assert stopped.position["value"] in caught.value.after
    assert "failOnDataLoss" in str(caught.value)
    assert "retention" in str(caught.value)


@pytest.mark.parametrize("is_resharded", [True])
def test_it_goes_on_without_them_where_losses_are_allowed(
    make_stopped: Callable[[float], Stopped], caplog: pytest.LogCaptureFixture, *, is_resharded: bool
) -> None:
    """What is left is read, once; a warning names what was skipped."""
    stopped = make_stopped(30)
    if is_resharded:
        stopped.split()
    left = stopped.come_back()
    with caplog.at_level(logging.WARNING):
        stopped.runs.available_now(stopped.options | {"failOnDataLoss": "false"})
    assert sorted(number for _, number in stopped.runs.keys[4:]) == sorted(left)
    assert "flights/shardId-000000000000: the range" in caplog.text
    assert stopped.runs.available_now(stopped.options | {"failOnDataLoss": "false"}) == []


def test_nothing_lost_is_no_loss(make_stopped: Callable[[float], Stopped]) -> None:
    """A query that comes back within the retention continues as if it had never stopped."""
    stopped = make_stopped(20)
    late = stopped.come_back()
    stopped.runs.available_now(stopped.options)
    assert [number for _, number in stopped.runs.keys[4:]] == stopped.missed + late


def test_other_failures_are_no_losses(make_stopped: Callable[[float], Stopped]) -> None:
    """A stream that is gone is not a range that is gone: it fails whatever `failOnDataLoss` says."""
    stopped = make_stopped(1)
    stopped.client.delete_stream(StreamName="flights")
    with pytest.raises(Exception, match="flights") as caught:
        stopped.runs.available_now(stopped.options | {"failOnDataLoss": "false"})
    assert not isinstance(caught.value, DataLossError)
    assert "look at the stream's name" in str(caught.value) or isinstance(caught.value, ShardFailedError)
