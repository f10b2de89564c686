"""Everything that reaches AWS does so through an HTTP proxy, where there is one."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.async_sink import KinesisRequestEntry, KinesisStreamsSink
from penstock.aws import AwsOptionError, AwsOptions, AwsSession, JsonClient
from penstock.aws.testing import Proxy, emulator_options, running_proxy
from penstock.efo_consumer import (
    RecordPublisherConfig,
    RecordPublisherType,
    ShardPosition,
    StreamIdentity,
    SubscribeTransportType,
)
from penstock.efo_consumer._publish.factory import RecordPublisherFactory
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import AcquireRequest, open_registry

PASSWORD = "hush/hush"
SHARD = "shardId-000000000000"


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    delay = timedelta(0)
    with running_emulator(consumer_creation_delay=delay, consumer_deletion_delay=delay) as running:
        yield running


@pytest.fixture
def stream(emulator: RunningEmulator, request: pytest.FixtureRequest) -> str:
    """A stream of the test's own."""
    name: str = request.node.name[:100].translate(str.maketrans("[]/", "---"))
    client = emulator.client()
    client.create_stream(StreamName=name, ShardCount=1)
    client.put_record(StreamName=name, Data=b"row", PartitionKey="k")
    return name


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, stream: str) -> Iterator[Proxy]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with running_proxy("job", PASSWORD) as running:
        yield running


@pytest.fixture(params=["environment", "option"])
def given(request: pytest.FixtureRequest, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The proxy, by the environment or as an option."""
    if request.param == "option":
        return {"proxy_url": proxy.url}
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    return {}


@pytest.fixture(autouse=True)
def _no_password_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    logged = "\n".join(caplog.messages)
    assert "hush" not in logged
    assert "am9iOmh1c2gvaHVzaA" not in logged


def options(emulator: RunningEmulator, tls: bool, given: dict[str, Any]) -> AwsOptions:
    ca = str(emulator.ca_file) if tls else None
    made = emulator_options(emulator.tls_endpoint_url if tls else emulator.endpoint_url, ca)
    made = dataclasses.replace(made, **given)
    assert "hush" not in repr(made) + repr(AwsSession(made)) + repr(AwsSession(made).proxy())
    return made


def expected(emulator: RunningEmulator, tls: bool) -> tuple[str, str]:
    if tls:
        return "CONNECT", emulator.tls_endpoint_url.removeprefix("https://")
    return "POST", emulator.endpoint_url + "/"


def register(emulator: RunningEmulator, stream: str) -> dict[str, str]:
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    made = client.register_stream_consumer(StreamARN=arn, ConsumerName="billing")
    return {stream: made["Consumer"]["ConsumerARN"]}


async def read_one(aws: AwsOptions, way: str, stream: str, consumers: dict[str, str]) -> bytes:
    config = RecordPublisherConfig(
        record_publisher=RecordPublisherType.POLLING if way == "polling" else RecordPublisherType.EFO,
        subscribe_transport=SubscribeTransportType.AUTO if way == "polling" else SubscribeTransportType(way),
    )
    publisher = RecordPublisherFactory().build_record_publisher(config, AwsSession(aws), consumers)
    events = publisher.publish(StreamIdentity(stream), SHARD, ShardPosition.trim_horizon())
    try:
        async with asyncio.timeout(20), aclosing(events):
            async for event in events:
                for data in event.records.column("data").to_pylist():
                    return bytes(data)
    finally:
        await publisher.close()
    raise AssertionError("the shard does not end")


@pytest.fixture
def consumers(emulator: RunningEmulator, stream: str) -> dict[str, str]:
    return register(emulator, stream)


WAYS = [("polling", False), ("polling", True), ("http1", False), ("http1", True), ("http2", True)]


@pytest.mark.parametrize(("way", "tls"), WAYS)
async def test_reading_goes_through_the_proxy(
    emulator: RunningEmulator,
    consumers: dict[str, str],
    proxy: Proxy,
    given: dict[str, str],
    stream: str,
    way: str,
    tls: bool,
) -> None:
    """By each transport: https by a tunnel, so that ALPN still chooses HTTP/2; http by whole URLs."""
    assert await read_one(options(emulator, tls, given), way, stream, consumers) == b"row"
    assert set(proxy.seen) == {expected(emulator, tls)}


@pytest.mark.parametrize("tls", [False, True])
async def test_writing_goes_through_the_proxy(
    emulator: RunningEmulator, proxy: Proxy, given: dict[str, str], stream: str, tls: bool
) -> None:
    """PutRecords, which has our own client."""
    async with KinesisStreamsSink(options(emulator, tls, given), stream).create_writer() as writer:
        await writer.write(KinesisRequestEntry(b"row", "k"))
        await writer.flush()
    assert set(proxy.seen) == {expected(emulator, tls)}


@pytest.mark.parametrize("tls", [False, True])
def test_registration_goes_through_the_proxy(
    emulator: RunningEmulator, proxy: Proxy, given: dict[str, str], stream: str, tls: bool, tmp_path: Path
) -> None:
    """Consumers are described, registered and deregistered that way."""
    aws = options(emulator, tls, given)
    with open_registry(aws=aws, store_path=tmp_path / "registry.db") as registry:
        lease = registry.acquire(AcquireRequest(stream_name=stream, consumer_name="billing", job_id="job"))
        registry.release(lease)
    assert set(proxy.seen) == {expected(emulator, tls)}


@pytest.mark.parametrize(("way", "tls"), [("polling", False), ("http1", True), ("http2", True)])
async def test_hosts_of_no_proxy_are_reached_directly(
    emulator: RunningEmulator,
    consumers: dict[str, str],
    proxy: Proxy,
    given: dict[str, str],
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    tls: bool,
) -> None:
    """Such as a VPC endpoint, while STS is behind the proxy; also where the proxy is an option."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    aws = options(emulator, tls, given)
    assert await read_one(aws, way, stream, consumers) == b"row"
    AwsSession(aws).client("kinesis").list_streams()
    assert proxy.seen == []


async def test_a_wrong_password_is_reported(emulator: RunningEmulator, proxy: Proxy) -> None:
    """An error that names the proxy and no password, at once: trying again gives the same."""
    wrong = {"proxy_url": proxy.url.replace("hush", "hushed")}
    for tls in (True, False):
        async with JsonClient(AwsSession(options(emulator, tls, wrong))) as client:
            with pytest.raises(AwsOptionError, match=f"{proxy.address} refuses to lead to .*: 407") as refused:
                await client.call("ListStreams", {})
        assert refused.value.option == "proxyUrl"
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize("url", ["https://job:hush@proxy:3128", "socks5://proxy:1080", "http://proxy:port", "http://"])
def test_other_proxies_than_http_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the option's name, or the variable's, and without the password."""
    with pytest.raises(AwsOptionError) as refused:
        AwsOptions(proxy_url=url)
    assert refused.value.option == "proxyUrl"
    monkeypatch.setenv("HTTPS_PROXY", url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(AwsOptionError, match="HTTPS_PROXY") as refused:
        AwsSession(AwsOptions(region="eu-west-1")).proxy()
    assert "hush" not in str(refused.value)
