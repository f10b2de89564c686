"""Unmodified clients, with their own retries, waiters and paginators, against the limits of the real service."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from penstock.emulator.testing import running_emulator

SUITE = Path(__file__).with_name("aiobotocore_suite.py")
WAIT = {"Delay": 0.05, "MaxAttempts": 200}


@pytest.fixture
def kinesis() -> Any:
    """A client of boto3 as anybody makes one, and an emulator on real time."""
    with running_emulator(tls=False, stream_creation_delay=timedelta(seconds=0.2)) as emulator:
        yield boto3.client(
            "kinesis",
            endpoint_url=emulator.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )


def test_boto3_waits_until_a_stream_is_there_and_until_it_is_gone(kinesis: Any) -> None:
    """StreamExists and StreamNotExists come to their end."""
    kinesis.create_stream(StreamName="stream", ShardCount=1)
    kinesis.get_waiter("stream_exists").wait(StreamName="stream", WaiterConfig=WAIT)
    summary = kinesis.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]
    assert summary["StreamStatus"] == "ACTIVE"
    kinesis.delete_stream(StreamName="stream")
    kinesis.get_waiter("stream_not_exists").wait(StreamName="stream", WaiterConfig=WAIT)


def test_boto3_pages_through_everything(kinesis: Any) -> None:
    """Every paginator of the model gives each item once, in order."""
    for name in ("a", "b", "c"):
        kinesis.create_stream(StreamName=name, ShardCount=3)
    kinesis.get_waiter("stream_exists").wait(StreamName="a", WaiterConfig=WAIT)
    arn = kinesis.describe_stream_summary(StreamName="a")["StreamDescriptionSummary"]["StreamARN"]
    for name in ("x", "y", "z"):
        kinesis.register_stream_consumer(StreamARN=arn, ConsumerName=name)

    def paged(paginator: str, expression: str, size: int | None = 2, **request: Any) -> list[Any]:
        config = {"PageSize": size} if size else {}
        pages = kinesis.get_paginator(paginator).paginate(PaginationConfig=config, **request)
        return list(pages.search(expression))

    assert paged("list_streams", "StreamNames[]") == ["a", "b", "c"]
    assert paged("list_streams", "StreamSummaries[].StreamName") == ["a", "b", "c"]
    assert paged("list_stream_consumers", "Consumers[].ConsumerName", StreamARN=arn) == ["x", "y", "z"]
    shards = [f"shardId-{number:012d}" for number in range(3)]
    assert paged("describe_stream", "StreamDescription.Shards[].ShardId", StreamName="a") == shards
    assert paged("list_shards", "Shards[].ShardId", None, StreamName="a") == shards
    # The one that AWS does not serve either: botocore repeats the stream's name beside the token.
    with pytest.raises(ClientError, match="NextToken and StreamName cannot be provided together"):
        paged("list_shards", "Shards[].ShardId", StreamName="a")


def test_boto3_outlasts_throttling(kinesis: Any) -> None:
    """A client's own retries get it through more calls than a second has, within a few seconds."""
    kinesis.create_stream(StreamName="stream", ShardCount=1)
    kinesis.get_waiter("stream_exists").wait(StreamName="stream", WaiterConfig=WAIT)
    started = time.monotonic()
    for _ in range(12):
        kinesis.get_shard_iterator(
            StreamName="stream", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
        )
    assert time.monotonic() - started > 1


def test_aiobotocore_does_all_of_it_too() -> None:
    """Waiters, paginators and subscriptions of aiobotocore."""
    with running_emulator(tls=False) as emulator:
        suite = subprocess.run(
            [sys.executable, str(SUITE), emulator.endpoint_url],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert suite.returncode == 0, suite.stderr
    assert suite.stdout.strip() == "passed"
