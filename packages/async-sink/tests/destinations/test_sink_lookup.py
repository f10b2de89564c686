"""What a writer asks before it writes: a few times, and not for ever."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock.async_sink import (
    AggregationConfig,
    AsyncSinkConfig,
    DynamoDbSink,
    KinesisStreamsSink,
    write_batches,
)
from penstock.async_sink._destinations import aws as destinations_aws
from penstock.async_sink.errors import DestinationError
from penstock.aws import BackoffPolicy
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator

ROWS = pa.record_batch({"data": [b"a", b"b"], "partitionKey": ["x", "y"]})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = BackoffPolicy(
        base=timedelta(0), maximum=timedelta(0), max_attempts=destinations_aws.LOOKUP_BACKOFF.max_attempts
    )
    monkeypatch.setattr(destinations_aws, "LOOKUP_BACKOFF", quick)


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


def aggregating(endpoint_url: str) -> Any:
    return KinesisStreamsSink(emulator_options(endpoint_url), "flights", aggregation=AggregationConfig())


def test_a_throttled_look_up_is_done_again(emulator: RunningEmulator) -> None:
    """Many tasks that start together ask together."""
    emulator.faults.add("throttle", operation="ListShards", count=3)
    assert write_batches(aggregating(emulator.endpoint_url), [ROWS]).records == 2


@pytest.mark.parametrize(
    ("sink", "call"),
    [
        (aggregating("http://127.0.0.1:1"), "ListShards"),
        (DynamoDbSink(emulator_options("http://127.0.0.1:1"), "flights"), "DescribeTable"),
    ],
)
def test_a_service_that_does_not_answer_is_named(sink: Any, call: str) -> None:
    """The error says which call had no answer from where; it is the sink's, not the network library's."""
    with pytest.raises(DestinationError, match=rf"{call}: no answer from http://127\.0\.0\.1:1/") as caught:
        write_batches(sink, [ROWS])
    assert (caught.value.destination, caught.value.code) == ("flights", "AwsConnectionError")


async def test_a_service_that_keeps_failing_is_logged(
    emulator: RunningEmulator, caplog: pytest.LogCaptureFixture
) -> None:
    """Its requests are sent again without a bound: after four in a row, and sixteen, the log says with what error."""
    config = AsyncSinkConfig(retry_backoff_base=timedelta(0), retry_backoff_maximum=timedelta(0))
    sink = KinesisStreamsSink(emulator_options(emulator.endpoint_url), "flights", config=config)
    emulator.faults.add("error", operation="PutRecords", code="InternalFailure", message="out of order", count=17)
    async with sink.create_writer() as writer:
        await writer.write_many(ROWS)
        await writer.flush(end_of_input=True)
        # One failure after a success is nothing.
        emulator.faults.add("error", operation="PutRecords", code="InternalFailure", count=3)
        await writer.write_many(ROWS)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" and are")[0] for line in lines] == [
        "flights: 4 requests in a row failed",
        "flights: 16 requests in a row failed",
    ]
    assert all("InternalFailure: out of order" in line for line in lines)
