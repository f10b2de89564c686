"""An emulator with faults, and each way to read from it: what the tests of the table of errors share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

from penstock.aws import AwsSession, BackoffPolicy, JsonClient
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    RecordPublisher,
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    ShardPosition,
    StreamIdentity,
    SubscribeTransportType,
)
from penstock.emulator import EmulatorConfig, EmulatorServer

ORDERS = StreamIdentity("orders")
SHARD = "shardId-000000000000"
HTTP2, HTTP1 = SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1
POLLING = None
WAYS = [HTTP2, HTTP1, POLLING]

RETRYABLE = [
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "KMSThrottlingException",
    "InternalFailure",
    "InternalFailureException",
    "ServiceUnavailable",
]
FATAL = [
    "AccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSAccessDeniedException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "InvalidArgumentException",
    "ValidationException",
    "ExpiredTokenException",
    "UnrecognizedClientException",
]
QUICK = BackoffPolicy(base=timedelta(milliseconds=10), maximum=timedelta(milliseconds=20), max_attempts=None)
COUNTED = replace(QUICK, max_attempts=4)


class Kinesis:
    """An emulator with a stream and a consumer, and publishers that read from it."""

    def __init__(self, server: EmulatorServer, resources: AsyncExitStack) -> None:
        self.server = server
        self.resources = resources
        self.client = JsonClient(AwsSession(emulator_options(server.endpoint_url)))
        self.consumer_arn = ""
        self._written = count()

    async def start(self) -> None:
        self.resources.push_async_callback(self.client.close)
        await self.client.call("CreateStream", {"StreamName": "orders", "ShardCount": 1})
        summary = await self.client.call("DescribeStreamSummary", {"StreamName": "orders"})
        arn = summary["StreamDescriptionSummary"]["StreamARN"]
        answer = await self.client.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "billing"})
        self.consumer_arn = str(answer["Consumer"]["ConsumerARN"])

    async def put(self, records: int) -> list[bytes]:
        rows = [f"record {next(self._written)}".encode() for _ in range(records)]
        entries = [{"Data": row, "PartitionKey": "k"} for row in rows]
        await self.client.call("PutRecords", {"StreamName": "orders", "Records": entries})
        return rows

    def publisher(self, way: SubscribeTransportType | None, **changes: Any) -> RecordPublisher:
        settings: dict[str, Any] = {
            "resubscribe_interval": timedelta(seconds=0.1),
            "resource_in_use_patience": timedelta(seconds=5),
            "subscribe_to_shard": QUICK,
            "get_records": QUICK,
            "get_shard_iterator": QUICK,
        }
        config = RecordPublisherConfig(
            record_publisher=RecordPublisherType.POLLING if way is None else RecordPublisherType.EFO,
            subscribe_transport=way or SubscribeTransportType.AUTO,
            **{**settings, **changes},
        )
        url = self.server.tls_endpoint_url if way is HTTP2 else self.server.endpoint_url
        publisher = RecordPublisherFactory().build_record_publisher(
            config, AwsSession(emulator_options(url, str(self.server.ca_file))), {"orders": self.consumer_arn}
        )
        self.resources.push_async_callback(publisher.close)
        return publisher

    @property
    def hits(self) -> int:
        return sum(fault["hits"] for fault in self.server.faults.list())


@asynccontextmanager
async def kinesis(**changes: Any) -> AsyncIterator[Kinesis]:
    defaults: dict[str, Any] = {
        "enforce_limits": False,
        "idle_event_interval": timedelta(seconds=0.1),
        "resubscribe_interval": timedelta(seconds=0.1),
        "consumer_creation_delay": timedelta(0),
    }
    async with asyncio.timeout(120), AsyncExitStack() as resources:
        server = await resources.enter_async_context(EmulatorServer(EmulatorConfig(**{**defaults, **changes})))
        opened = Kinesis(server, resources)
        await opened.start()
        yield opened


async def read(publisher: RecordPublisher, records: int, *, shard_id: str = SHARD) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(publisher.publish(ORDERS, shard_id, ShardPosition.trim_horizon())) as events:
        async for event in events:
            found += event.records.column("data").to_pylist()
            if len(found) >= records:
                break
    return found
