"""The writer alone decides how long a request may take and whether it is sent again; no layer below it does."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sink_scripted_service import ScriptedService, hang_up

from penstock.async_sink import (
    AsyncSinkConfig,
    DynamoDbRequestEntry,
    DynamoDbSink,
    FirehoseRequestEntry,
    FirehoseSink,
    KinesisRequestEntry,
    KinesisStreamsSink,
    SqsRequestEntry,
    SqsSink,
    dynamodb_config,
    firehose_config,
    sqs_config,
)
from penstock.async_sink._destinations import aws as destinations
from penstock.async_sink.errors import RecordsRejectedError, SinkError
from penstock.aws import AwsOptions, AwsSession, JsonClient
from penstock.aws.testing import emulator_options

SERVICES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "kinesis": (partial(KinesisStreamsSink, stream_name="s"), AsyncSinkConfig, KinesisRequestEntry(b"x", "k")),
    "firehose": (partial(FirehoseSink, delivery_stream_name="s"), firehose_config, FirehoseRequestEntry(b"x")),
    "dynamodb": (
        partial(DynamoDbSink, table_name="s", key_names=["id"]),
        dynamodb_config,
        DynamoDbRequestEntry.put({"id": 1}),
    ),
    "sqs": (partial(SqsSink, queue_url="https://sqs/1/s"), sqs_config, SqsRequestEntry("x")),
}
EVERY_SERVICE = pytest.mark.parametrize("service_name", list(SERVICES))


def sink_of(service_name: str, aws: AwsOptions | AwsSession, **options: Any) -> tuple[Any, Any]:
    """A sink, and an entry for it."""
    make, config, entry = SERVICES[service_name]
    return make(aws=aws, config=config(retry_backoff_base=timedelta(milliseconds=1), **options)), entry


@EVERY_SERVICE
async def test_a_request_may_take_longer_than_any_time_out_of_the_client(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, service_name: str
) -> None:
    """The service has the request once, however late it answers."""
    monkeypatch.setattr(destinations, "JsonClient", partial(JsonClient, total_timeout_seconds=0.01))
    service.delay = 0.2
    sink, entry = sink_of(service_name, emulator_options(service.url))
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.timed_out) == (1, 0)
    assert len(service.requests) == 1


@EVERY_SERVICE
async def test_the_request_timeout_of_the_writer_binds(service: ScriptedService, service_name: str) -> None:
    """It ends the call, and is counted as a time-out."""
    service.delay = 60.0
    sink, entry = sink_of(
        service_name, emulator_options(service.url), request_timeout=timedelta(seconds=0.2), fail_on_timeout=True
    )
    async with sink.create_writer() as writer:
        await writer.write(entry)
        with pytest.raises(SinkError) as caught:
            await writer.flush(end_of_input=True)
        assert caught.value.code == "REQUEST_TIMED_OUT"
        assert writer.metrics.timed_out == 1
    assert len(service.requests) == 1


@EVERY_SERVICE
async def test_a_request_whose_kept_connection_breaks_is_a_failed_attempt(
    service: ScriptedService, service_name: str
) -> None:
    """The writer sends it again, and counts as many requests as the service has seen."""
    sink, entry = sink_of(service_name, emulator_options(service.url), max_in_flight_requests=1)
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        service.script = [hang_up]
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.retried) == (2, 1)
        assert writer.metrics.requests == len(service.requests) == 3


@EVERY_SERVICE
async def test_max_attempts_bounds_what_the_service_sees(service: ScriptedService, service_name: str) -> None:
    """With one attempt an entry is sent once, whatever becomes of its connection."""
    sink, entry = sink_of(service_name, emulator_options(service.url), max_attempts=1, max_in_flight_requests=1)
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        service.script = [hang_up]
        await writer.write(entry)
        with pytest.raises(RecordsRejectedError) as caught:
            await writer.flush(end_of_input=True)
        assert caught.value.records[0].attempts == 1
    assert len(service.requests) == 2
