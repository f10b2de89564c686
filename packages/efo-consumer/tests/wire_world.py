"""An emulator and publishers over real sockets, and a proxy between them that counts and breaks."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.aws import AwsSession, JsonClient
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    RecordPublisher,
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    Shard,
    ShardEvent,
    ShardPosition,
    StreamIdentity,
    SubscribeTransportType,
    list_shards,
)
from penstock.emulator import EmulatorConfig, EmulatorServer

ORDERS = StreamIdentity("orders")
HALF = str(2**127)
TRANSPORTS = [SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1]


async def until(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # counters of a proxy have no event
            await asyncio.sleep(0.01)


class Proxy:
    """Forwards TCP connections and counts what the server sends."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname, parts.port)
        self._scheme = parts.scheme
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.connections = 0
        self.open_connections = 0
        self.sent_bytes = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stable(self) -> int:
        """The bytes that the server has sent once it sends no more for a while."""
        async with asyncio.timeout(120):
            while True:
                before = self.sent_bytes
                await asyncio.sleep(0.4)
                if before and self.sent_bytes == before:
                    return before

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        self._writers += [writer, up_writer]
        for source, sink, counts in ((reader, up_writer, False), (up_reader, writer, True)):
            task = asyncio.create_task(self._copy(source, sink, counts), name="proxy")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, counts: bool) -> None:
        try:
            while data := await source.read(32 * 1024):
                if counts:
                    self.sent_bytes += len(data)
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()
            self.open_connections -= 0 if counts else 1

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class World:
    """An emulator with one stream and one consumer, and publishers that read from it."""

    def __init__(self, server: EmulatorServer, resources: AsyncExitStack) -> None:
        self.server = server
        self.resources = resources
        self.client = JsonClient(AwsSession(emulator_options(server.endpoint_url)))
        self.consumer_arn = ""

    async def start(self, shards: int) -> None:
        self.resources.push_async_callback(self.client.close)
        await self.client.call("CreateStream", {"StreamName": "orders", "ShardCount": shards})
        self.consumer_arn = await self.register("billing")

    async def register(self, name: str) -> str:
        summary = await self.client.call("DescribeStreamSummary", {"StreamName": "orders"})
        arn = summary["StreamDescriptionSummary"]["StreamARN"]
        answer = await self.client.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": name})
        return str(answer["Consumer"]["ConsumerARN"])

    async def put(self, count: int, size: int, *, seed: int = 1) -> list[bytes]:
        """Put records of up to `size` random bytes, in requests that the limits allow."""
        source = random.Random(seed)
        rows = [source.randbytes(source.randint(0, size)) for _ in range(count)]
        step = min(500, 4_000_000 // max(size, 1))
        for first in range(0, count, step):
            records = [{"Data": row, "PartitionKey": f"key-{row[:4].hex()}"} for row in rows[first : first + step]]
            answer = await self.client.call("PutRecords", {"StreamName": "orders", "Records": records})
            assert answer["FailedRecordCount"] == 0
        return rows

    @property
    def hits(self) -> int:
        """How many calls met a fault."""
        return sum(fault["hits"] for fault in self.server.faults.list())

    async def shards(self) -> list[Shard]:
        return await list_shards(self.client, ORDERS)

    def publisher(
        self,
        transport: SubscribeTransportType | None = SubscribeTransportType.AUTO,
        *,
        url: str | None = None,
        consumer_arn: str | None = None,
        **changes: Any,
    ) -> RecordPublisher:
        """A fan-out publisher; a polling one for None."""
        plain = transport in (None, SubscribeTransportType.HTTP1)
        endpoint = url or (self.server.endpoint_url if plain else self.server.tls_endpoint_url)
        config = RecordPublisherConfig(
            record_publisher=RecordPublisherType.POLLING if transport is None else RecordPublisherType.EFO,
            subscribe_transport=transport or SubscribeTransportType.AUTO,
            **{"resubscribe_interval": timedelta(seconds=0.2), **changes},
        )
        publisher = RecordPublisherFactory().build_record_publisher(
            config,
            AwsSession(emulator_options(endpoint, str(self.server.ca_file))),
            {"orders": consumer_arn or self.consumer_arn},
        )
        self.resources.push_async_callback(publisher.close)
        return publisher

    async def proxy(self, transport: SubscribeTransportType) -> Proxy:
        plain = transport is SubscribeTransportType.HTTP1
        url = self.server.endpoint_url if plain else self.server.tls_endpoint_url
        return await self.resources.enter_async_context(Proxy(url))


@asynccontextmanager
async def world(*, shards: int = 1, **changes: Any) -> AsyncIterator[World]:
    defaults: dict[str, Any] = {
        "enforce_limits": False,
        "idle_event_interval": timedelta(seconds=0.1),
        "resubscribe_interval": timedelta(seconds=0.2),
        "consumer_creation_delay": timedelta(0),
    }
    async with asyncio.timeout(120), AsyncExitStack() as resources:
        server = await resources.enter_async_context(EmulatorServer(EmulatorConfig(**{**defaults, **changes})))
        opened = World(server, resources)
        await opened.start(shards)
        yield opened


async def read(
    publisher: RecordPublisher,
    *,
    rows: int | None = None,
    shard_id: str = "shardId-000000000000",
    position: ShardPosition | None = None,
) -> list[ShardEvent]:
    """The events up to a number of rows, or to the end of the shard."""
    events: list[ShardEvent] = []
    async with aclosing(publisher.publish(ORDERS, shard_id, position or ShardPosition.trim_horizon())) as published:
        async for event in published:
            events.append(event)
            if rows is not None and sum(one.records.num_rows for one in events) >= rows:
                break
    return events


def table(events: list[ShardEvent]) -> pa.Table:
    return pa.Table.from_batches([event.records for event in events])


def data(events: list[ShardEvent]) -> list[bytes]:
    found: list[bytes] = table(events).column("data").to_pylist()
    return found
