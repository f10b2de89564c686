"""How write tasks find their rate: the options of `sinkRateStrategy`."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.async_sink import (
    All,
    CongestionControlRateLimitingStrategy,
    PerShardRateLimitingStrategy,
    RequestInfo,
    ResultInfo,
)
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisDataSource, KinesisOptions
from penstock.spark_plugin._writing.sink_task import make_sink
from penstock.spark_plugin.testing import endpoint_options

ROWS = StructType([StructField("data", StringType()), StructField("partitionKey", StringType())])


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """A Kinesis of this file's own, whose faults affect no other test."""
    with running_emulator(enforce_limits=False) as emulator:
        yield emulator


def strategy_of(*, kind: str = "kinesis", **options: str) -> Any:
    given = {"streamName": "s", "region": "us-east-1", **options}
    return make_sink(KinesisOptions.parse(given, environ={}), kind=kind).create_writer().strategy


def limits(strategy: Any, *answers: int) -> list[int]:
    """The limit at first, and after each answer to a request of ten with that many throttled records."""
    found = [strategy.limit]
    for throttled in answers:
        strategy.register_in_flight_request(RequestInfo(10))
        strategy.register_completed_request(ResultInfo(throttled, 10))
        found.append(strategy.limit)
    return found


def test_shards_are_paced_by_default() -> None:
    """Whether it is said or not."""
    given: list[dict[str, Any]] = [{}, {"sinkRateStrategy": "shards"}]
    for options in given:
        strategy = strategy_of(**options)
        assert isinstance(strategy, All)
        assert [type(each) for each in strategy.strategies] == [
            CongestionControlRateLimitingStrategy,
            PerShardRateLimitingStrategy,
        ]
        assert strategy.limit == 500


@pytest.mark.parametrize("kind", ["kinesis", "firehose"])
def test_without_a_strategy_only_the_requests_in_flight_are_bounded(kind: str) -> None:
    """Throttles lower nothing."""
    strategy = strategy_of(sinkRateStrategy="none", maxInFlightRequests="3", kind=kind)
    assert limits(strategy, 10, 10, 0) == [1_500] * 4
    for _ in range(3):
        assert not strategy.should_block(RequestInfo(500))
        strategy.register_in_flight_request(RequestInfo(500))
    assert strategy.should_block(RequestInfo(1))


@pytest.mark.parametrize(
    "options",
    [
        {"sinkRateStrategy": "shards"},
        {"sinkRateStrategy": "aimd"},
        {"sinkRateStrategy": "none"},
    ],
)
def test_every_strategy_writes_each_record_through_throttles(
    emulator: RunningEmulator, options: dict[str, str]
) -> None:
    """Requests and records that are refused come back and arrive, once each."""
    name = "-".join(options.values()).replace(".", "-")
    client = emulator.client()
    client.create_stream(StreamName=name, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    emulator.faults.add(kind="throttle", operation="PutRecords", count=2)
    emulator.faults.add(kind="fail_records", share=0.3, count=3)
    numbers = [str(number) for number in range(1_000)]
    rows = pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(numbers)], names=ROWS.names)
    source = KinesisDataSource(endpoint_options(emulator.endpoint_url, name, maxBatchSize="100", **options))
    summary: Any = source.writer(ROWS, overwrite=False).write(iter([rows]))
    held = emulator.call(lambda: [one.data for one in emulator.kinesis.streams[name].shards[0].records])
    assert sorted(map(int, held)) == list(range(1_000))
    assert (summary.records, summary.throttled > 0) == (1_000, True)
