"""Credentials that Kinesis refuses while shards are read: renewed where they can be, told where not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.aws import AwsOptions, AwsSession
from penstock.aws.testing import Sts, emulator_options, running_sts
from penstock.efo_consumer import (
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    ShardPosition,
    StreamIdentity,
    SubscribeTransportType,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.emulator.testing import running_emulator

WAYS = ["http2", "http1", "polling"]
SHARD = "shardId-000000000000"


class World:
    """An emulator with a stream, a consumer, and keys in a file."""

    def __init__(self, emulator: Any, file: Path) -> None:
        self.emulator = emulator
        self.file = file
        client = emulator.client()
        client.create_stream(StreamName="orders", ShardCount=1)
        summary = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        consumer = client.register_stream_consumer(StreamARN=summary["StreamARN"], ConsumerName="billing")
        self.consumer_arn = consumer["Consumer"]["ConsumerARN"]
        self.client = client
        self.write("AKIAOLD")

    def write(self, access_key: str) -> None:
        self.file.write_text(f"[job]\naws_access_key_id = {access_key}\naws_secret_access_key = hush\n")

    def put(self, data: bytes) -> None:
        self.client.put_record(StreamName="orders", Data=data, PartitionKey="k")

    def role_session(self, way: str, sts: Sts, clock: Callable[[], float] = time.monotonic) -> AwsSession:
        url, ca = self.emulator.endpoint_url, None
        if way == "http2":
            url, ca = self.emulator.tls_endpoint_url, str(self.emulator.ca_file)
        return AwsSession(sts.options(url, ca), clock=clock)

    def session(self, way: str, *, given: bool = False) -> AwsSession:
        url, ca = self.emulator.endpoint_url, None
        if way == "http2":
            url, ca = self.emulator.tls_endpoint_url, str(self.emulator.ca_file)
        if given:
            return AwsSession(emulator_options(url, ca))
        options = AwsOptions(region="us-east-1", endpoint_url=url, ca_bundle=ca, profile="job")
        session = AwsSession(options)
        session.frozen_credentials()
        return session

    def expire(self, operation: str, **options: Any) -> None:
        self.emulator.faults.add("error", operation=operation, code="ExpiredTokenException", **options)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with running_emulator(
        consumer_creation_delay=timedelta(0), resubscribe_interval=timedelta(seconds=0.1)
    ) as emulator:
        yield World(emulator, tmp_path / "credentials")


async def read(
    world: World, way: str, records: int, *, given: bool = False, write: str = "", session: AwsSession | None = None
) -> list[bytes]:
    """Read by a publisher; `write` replaces the keys, and expires the old ones, at the first record."""
    config = RecordPublisherConfig(
        record_publisher=RecordPublisherType.POLLING if way == "polling" else RecordPublisherType.EFO,
        subscribe_transport=SubscribeTransportType.AUTO if way == "polling" else SubscribeTransportType(way),
        resubscribe_interval=timedelta(seconds=0.1),
    )
    consumers = {"orders": world.consumer_arn}
    session = session or world.session(way, given=given)
    publisher = RecordPublisherFactory().build_record_publisher(config, session, consumers)
    found: list[bytes] = []
    events = publisher.publish(StreamIdentity("orders"), SHARD, ShardPosition.trim_horizon())
    try:
        async with asyncio.timeout(120), aclosing(events):
            async for event in events:
                found += event.records.column("data").to_pylist()
                if write and found:
                    world.write(write)
                    write = ""
                    world.expire("GetRecords", count=1)
                    world.emulator.faults.add("stream_error", code="ExpiredTokenException", count=1)
                    world.put(b"after")
                if len(found) >= records:
                    return found
    finally:
        await publisher.close()
    raise AssertionError("the shard does not end")


@pytest.mark.parametrize("way", WAYS)
async def test_a_token_that_expires_is_replaced_by_what_is_on_disk(world: World, way: str) -> None:
    """Reading continues with the keys that were written meanwhile: at the beginning, and in the middle."""
    world.put(b"before")
    assert await read(world, way, 2, write="AKIANEW") == [b"before", b"after"]
    assert sum(fault["hits"] for fault in world.emulator.faults.list()) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", [True, False])
async def test_a_token_that_nothing_replaces_is_fatal_with_advice(world: World, way: str, given: bool) -> None:
    """Keys that were given, and a file that holds the same ones, fail at the first answer."""
    world.put(b"row")
    for operation in ("SubscribeToShard", "GetShardIterator"):
        world.expire(operation)
    with pytest.raises(RecordPublisherFatalError, match="a profile, a role or a web identity") as caught:
        await read(world, way, 1, given=given)
    assert caught.value.code == "ExpiredTokenException"
    assert sum(fault["hits"] for fault in world.emulator.faults.list()) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_reading_outlives_an_sts_that_is_away(world: World, way: str) -> None:
    """Old credentials are used while they live, though botocore would insist on new ones."""
    world.put(b"row")
    with running_sts() as sts:
        sts.lifetime = timedelta(minutes=5)
        now = [0.0]
        session = world.role_session(way, sts, clock=lambda: now[0])
        session.frozen_credentials()
        sts.refusal = (503, "ServiceUnavailable")
        now[0] = 60.0
        assert await read(world, way, 1, session=session) == [b"row"]
        assert await read(world, way, 1, session=session) == [b"row"]
        assert sts.given == 1
        assert sts.asked > 1
