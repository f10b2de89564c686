"""Options of AWS where a session is needed, and the other way round: an error at once, with the parameter's name."""

from collections.abc import Callable
from typing import Any

import boto3
import pytest

from penstock.aws import AwsOptionError, AwsOptions, AwsSession
from penstock.efo_consumer import (
    Consumer,
    DynamoDbCheckpointStore,
    GlueDecoder,
    GlueSchemas,
    KinesisBackend,
    ReaderHost,
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    S3CheckpointStore,
    SparkCheckpoint,
    resolve_initial_positions,
    resolve_sequence_numbers,
    stream_client,
)

OPTIONS = AwsOptions(region="us-east-1", endpoint_url="http://127.0.0.1:1")
SESSION = AwsSession(OPTIONS)


def publisher(kind: RecordPublisherType) -> Callable[[Any], Any]:
    config = RecordPublisherConfig(record_publisher=kind)
    return lambda aws: RecordPublisherFactory().build_record_publisher(config, aws, {"s": "arn"})


@pytest.mark.parametrize(
    "make",
    [
        lambda aws: Consumer("s", aws=aws, checkpoints=None),
        lambda aws: GlueDecoder(aws),
        lambda aws: GlueSchemas(aws),
        lambda aws: ReaderHost(aws=aws),
        lambda aws: AwsSession(aws),
    ],
    ids=["Consumer", "GlueDecoder", "GlueSchemas", "ReaderHost", "AwsSession"],
)
@pytest.mark.parametrize(
    "given", [SESSION, boto3.Session(region_name="us-east-1"), "us-east-1", {"region": "us-east-1"}]
)
def test_constructor_that_needs_options_refuses_everything_else(make: Callable[[Any], Any], given: Any) -> None:
    """A session would only fail at the first record, when the options of AWS are first used."""
    with pytest.raises(AwsOptionError) as caught:
        make(given)
    assert caught.value.option in ("aws", "options")
    assert type(given).__name__ in caught.value.reason


@pytest.mark.parametrize(
    "make",
    [
        lambda aws: KinesisBackend(aws),
        lambda aws: S3CheckpointStore(aws, "s3://bucket/folder"),
        lambda aws: DynamoDbCheckpointStore(aws, "table"),
        lambda aws: SparkCheckpoint("s3://bucket/checkpoint", aws),
        lambda aws: stream_client(aws),
        publisher(RecordPublisherType.POLLING),
        publisher(RecordPublisherType.EFO),
        lambda aws: resolve_initial_positions(aws, ["s"], "LATEST"),
        lambda aws: resolve_sequence_numbers(aws, {"s": {"shardId-000000000000": "1"}}, inclusive=True),
    ],
)
@pytest.mark.parametrize("given", [OPTIONS, boto3.Session(region_name="us-east-1"), "us-east-1"])
def test_constructor_that_needs_a_session_refuses_everything_else(make: Callable[[Any], Any], given: Any) -> None:
    """The error names the parameter."""
    with pytest.raises(AwsOptionError) as caught:
        make(given)
    assert caught.value.option in ("session", "aws_session")
    assert type(given).__name__ in caught.value.reason


def test_options_and_sessions_are_taken_where_they_belong() -> None:
    """A subclass and the default are fine."""

    class MySession(AwsSession):
        """A session of an application."""

    GlueDecoder()
    GlueDecoder(OPTIONS)
    KinesisBackend(MySession(OPTIONS))
