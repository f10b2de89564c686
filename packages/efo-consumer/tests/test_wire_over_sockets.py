"""Publishers against the emulator, over real sockets and through a proxy that counts, breaks and damages."""

import asyncio
import random
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from penstock.aws import AwsSession, BackoffPolicy, JsonClient
from penstock.aws.testing import emulator_options
from penstock.efo_consumer._config import RecordPublisherConfig, SubscribeTransportType
from penstock.efo_consumer._http2 import Http2Subscription
from penstock.efo_consumer._list_shards import Shard, list_shards
from penstock.efo_consumer._positions import ShardPosition
from penstock.efo_consumer._publisher import RecordPublisher, RecordPublisherType, ShardEvent, StreamIdentity
from penstock.efo_consumer._publisher_factory import RecordPublisherFactory
from penstock.efo_consumer.errors import (
    RecordPublisherFatalError,
    RecordPublisherRetriesError,
    SubscriptionTakenOverError,
)
from penstock.emulator import EmulatorConfig, EmulatorServer
from penstock.emulator._tls import server_context

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
        self.damage_at: int | None = None

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
        async with asyncio.timeout(30):
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
                    if self.damage_at is not None and self.sent_bytes <= self.damage_at < self.sent_bytes + len(data):
                        at = self.damage_at - self.sent_bytes
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
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
    async with asyncio.timeout(60), AsyncExitStack() as resources:
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
    return table(events).column("data").to_pylist()


async def test_all_ways_to_read_give_the_same_records() -> None:
    """HTTP/2, HTTP/1.1 and polling give identical rows, in the order of the sequence numbers, for random data."""
    async with world() as kinesis:
        rows = await kinesis.put(1500, 6000)
        tables = []
        for transport in (*TRANSPORTS, None):
            arn = await kinesis.register(f"reader-{transport}")
            events = await read(kinesis.publisher(transport, consumer_arn=arn), rows=len(rows))
            assert sum(event.nbytes for event in events) == sum(
                len(row["data"]) + len(row["partitionKey"]) for row in table(events).to_pylist()
            )
            tables.append(table(events))
        assert tables[0].combine_chunks() == tables[1].combine_chunks() == tables[2].combine_chunks()
        numbers = [int(number) for number in tables[0].column("sequenceNumber").to_pylist()]
        assert numbers == sorted(set(numbers))
        assert tables[0].column("data").to_pylist() == rows


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_renewal_leaves_no_gap(transport: SubscribeTransportType) -> None:
    """Records that are written while subscriptions come and go all arrive, once."""
    async with world(subscription_lifetime=timedelta(seconds=0.4)) as kinesis:
        written: list[bytes] = []

        async def write() -> None:
            for round_number in range(15):
                written.extend(await kinesis.put(20, 100, seed=round_number))
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write(), name="writer")
            reading = tasks.create_task(read(kinesis.publisher(transport), rows=300), name="reader")
        assert data(reading.result()) == written


@pytest.mark.parametrize("transport", [*TRANSPORTS, None])
async def test_the_end_of_a_shard_names_its_children(transport: SubscribeTransportType | None) -> None:
    """After a split the shard is read to its end, which names both children; they go on where it ended."""
    async with world() as kinesis:
        before = await kinesis.put(50, 100)
        split = {"StreamName": "orders", "ShardToSplit": "shardId-000000000000", "NewStartingHashKey": HALF}
        await kinesis.client.call("SplitShard", split)
        after = await kinesis.put(50, 100, seed=2)
        publisher = kinesis.publisher(transport)
        events = await read(publisher)
        assert data(events) == before
        assert events[-1].continuation is None
        assert [event.child_shards for event in events[:-1]] == [()] * (len(events) - 1)
        children = events[-1].child_shards
        assert {child.parent_shard_ids for child in children} == {("shardId-000000000000",)}
        assert [child.starting_hash_key for child in children] == ["0", HALF]
        found: list[bytes] = []
        for child in children:
            position = ShardPosition.trim_horizon()
            one = publisher.publish(ORDERS, child.shard_id, position)
            async with aclosing(one) as published:
                found += data([await anext(published)])
        assert sorted(found) == sorted(after)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_idle_shard_goes_on_by_its_continuation(transport: SubscribeTransportType) -> None:
    """Events without records have a continuation that advances, and from which reading goes on."""
    async with world() as kinesis:
        async with aclosing(
            kinesis.publisher(transport).publish(ORDERS, "shardId-000000000000", ShardPosition.trim_horizon())
        ) as published:
            first, second = await anext(published), await anext(published)
        assert first.records.num_rows == second.records.num_rows == 0
        assert int(second.continuation or 0) > int(first.continuation or 0)
        rows = await kinesis.put(5, 10)
        arn = await kinesis.register("later")
        events = await read(
            kinesis.publisher(transport, consumer_arn=arn),
            rows=5,
            position=ShardPosition.after(second.continuation or ""),
        )
        assert data(events) == rows


async def test_starting_at_a_time_leaves_out_what_came_before() -> None:
    """AT_TIMESTAMP means the same over both transports and by polling."""
    async with world() as kinesis:
        await kinesis.put(10, 100)
        middle = await read(kinesis.publisher(None), rows=10)
        last = table(middle).column("approximateArrivalTimestamp").cast(pa.int64()).to_pylist()[-1]
        millis = last // 1000 + 1
        await until(lambda: kinesis.server.clock.time() * 1000 > millis + 1)
        rows = await kinesis.put(10, 100, seed=2)
        for transport in (*TRANSPORTS, None):
            arn = await kinesis.register(f"reader-{transport}")
            publisher = kinesis.publisher(transport, consumer_arn=arn)
            assert data(await read(publisher, rows=10, position=ShardPosition.at_timestamp(millis))) == rows


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_consumer_that_stops_taking_stops_the_service(transport: SubscribeTransportType) -> None:
    """While nobody takes events, little more than a window is sent; later everything arrives."""
    async with world() as kinesis:
        rows = await kinesis.put(1200, 50_000)
        proxy = await kinesis.proxy(transport)
        publisher = kinesis.publisher(transport, url=proxy.url, subscription_window_bytes=256 * 1024)
        published = publisher.publish(ORDERS, "shardId-000000000000", ShardPosition.trim_horizon())
        async with aclosing(published):
            events = [await anext(published)]
            # An event that was taken, one that is being put together, the window; over HTTP/1.1 the kernels' buffers.
            bound = 5_000_000 if transport is SubscribeTransportType.HTTP2 else 25_000_000
            assert await proxy.stable() < bound < sum(map(len, rows)) * 4 // 3
            while sum(event.records.num_rows for event in events) < len(rows):
                events.append(await anext(published))
        assert data(events) == rows
        assert proxy.sent_bytes > sum(map(len, rows)) * 4 // 3


async def test_one_stalled_stream_does_not_hold_up_another() -> None:
    """Subscriptions share a connection; one whose consumer does not take lets the others through."""
    async with world(shards=3) as kinesis:
        rows = await kinesis.put(900, 20_000)
        proxy = await kinesis.proxy(SubscribeTransportType.HTTP2)
        publisher = kinesis.publisher(url=proxy.url, subscription_window_bytes=64 * 1024)
        shards = await kinesis.shards()
        stalled = publisher.publish(ORDERS, shards[0].shard_id, ShardPosition.trim_horizon())
        async with aclosing(stalled):
            found = data([await anext(stalled)])
            for shard in shards[1:]:
                async with aclosing(
                    publisher.publish(ORDERS, shard.shard_id, ShardPosition.trim_horizon())
                ) as published:
                    async for event in published:
                        found += data([event])
                        if event.millis_behind_latest == 0 and not event.records.num_rows:
                            break
            assert proxy.connections == 1
            while len(found) < len(rows):
                found += data([await anext(stalled)])
        assert sorted(found) == sorted(rows)


async def test_connections_are_shared_up_to_the_limit_of_streams() -> None:
    """The emulator allows 100 streams a connection: 130 subscriptions take two connections, not 130."""
    async with world(shards=130) as kinesis:
        proxy = await kinesis.proxy(SubscribeTransportType.HTTP2)
        publisher = kinesis.publisher(url=proxy.url)
        async with AsyncExitStack() as stack:
            published = [
                await stack.enter_async_context(
                    aclosing(publisher.publish(ORDERS, shard.shard_id, ShardPosition.trim_horizon()))
                )
                for shard in await kinesis.shards()
            ]
            events = await asyncio.gather(*(anext(one) for one in published))
            assert len(events) == 130
            assert proxy.connections == 2


async def test_the_end_of_a_shard_keeps_the_connection() -> None:
    """A stream that the service ends leaves the connection to the streams that follow."""
    async with world() as kinesis:
        proxy = await kinesis.proxy(SubscribeTransportType.HTTP2)
        publisher = kinesis.publisher(url=proxy.url)
        split = {"StreamName": "orders", "ShardToSplit": "shardId-000000000000", "NewStartingHashKey": HALF}
        await kinesis.client.call("SplitShard", split)
        (end,) = await read(publisher)
        for child in end.child_shards:
            published = publisher.publish(ORDERS, child.shard_id, ShardPosition.trim_horizon())
            async with aclosing(published):
                await anext(published)
        assert proxy.connections == 1


async def test_a_connection_with_an_abandoned_stream_goes_with_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the service sends on to nobody, the connection takes no new streams, and is closed after its others."""
    monkeypatch.setattr("penstock.efo_consumer._http2._END_GRACE_SECONDS", 0.0)
    async with world(shards=2) as kinesis:
        proxy = await kinesis.proxy(SubscribeTransportType.HTTP2)
        publisher = kinesis.publisher(url=proxy.url)
        first, second = [shard.shard_id for shard in await kinesis.shards()]
        stays = publisher.publish(ORDERS, first, ShardPosition.trim_horizon())
        leaves = publisher.publish(ORDERS, second, ShardPosition.trim_horizon())
        await anext(stays)
        await anext(leaves)
        assert proxy.connections == 1
        await leaves.aclose()
        await anext(stays)
        again = publisher.publish(ORDERS, second, ShardPosition.trim_horizon())
        await anext(again)
        await anext(stays)
        assert (proxy.connections, proxy.open_connections) == (2, 2)
        await stays.aclose()
        await until(lambda: proxy.open_connections == 1)
        await anext(again)
        await again.aclose()
        await until(lambda: proxy.open_connections == 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_reset_connection_is_resumed(transport: SubscribeTransportType) -> None:
    """A connection that breaks in the middle costs no record, and doubles none."""
    async with world() as kinesis:
        rows = await kinesis.put(1000, 10_000)
        proxy = await kinesis.proxy(transport)
        publisher = kinesis.publisher(transport, url=proxy.url, subscription_window_bytes=64 * 1024)
        events = []
        async with aclosing(
            publisher.publish(ORDERS, "shardId-000000000000", ShardPosition.trim_horizon())
        ) as published:
            async for event in published:
                events.append(event)
                if len(events) == 2:
                    proxy.cut()
                if sum(one.records.num_rows for one in events) == len(rows):
                    break
        assert data(events) == rows
        assert proxy.connections == 2


async def test_a_damaged_frame_is_resumed() -> None:
    """A wrong bit on the way is found by the checksum; the subscription goes on before the frame that had it."""
    async with world() as kinesis:
        rows = await kinesis.put(500, 10_000)
        proxy = await kinesis.proxy(SubscribeTransportType.HTTP1)
        proxy.damage_at = 2_000_000
        publisher = kinesis.publisher(SubscribeTransportType.HTTP1, url=proxy.url)
        assert data(await read(publisher, rows=len(rows))) == rows
        assert proxy.connections == 2


async def test_a_silent_connection_is_given_up() -> None:
    """Where no idle event comes for longer than the limit, the reader subscribes again by itself."""
    async with world(idle_event_interval=timedelta(seconds=30)) as kinesis:
        proxy = await kinesis.proxy(SubscribeTransportType.HTTP2)
        publisher = kinesis.publisher(url=proxy.url, subscription_silence=timedelta(seconds=0.3))
        reading = asyncio.create_task(read(publisher, rows=1), name="reader")
        await until(lambda: proxy.connections == 2)
        rows = await kinesis.put(1, 100)
        assert data(await reading) == rows


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_consumer_that_is_not_active_yet_is_waited_for(transport: SubscribeTransportType) -> None:
    """A subscription to a consumer that is being created succeeds once it is there."""
    async with world(consumer_creation_delay=timedelta(seconds=0.5)) as kinesis:
        rows = await kinesis.put(1, 100)
        assert data(await read(kinesis.publisher(transport), rows=1)) == rows


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_consumer_that_is_gone_is_fatal(transport: SubscribeTransportType) -> None:
    """A deregistered consumer is an error that says what to do, not the end of the shard."""
    async with world(consumer_deletion_delay=timedelta(0)) as kinesis:
        publisher = kinesis.publisher(transport)
        published = publisher.publish(ORDERS, "shardId-000000000000", ShardPosition.trim_horizon())
        async with aclosing(published):
            await anext(published)
            await kinesis.client.call("DeregisterStreamConsumer", {"ConsumerARN": kinesis.consumer_arn})
            with pytest.raises(RecordPublisherFatalError, match="register it again") as caught:
                [_ async for _ in published]
        assert caught.value.code == "ResourceNotFoundException"


@pytest.mark.parametrize("transport", [*TRANSPORTS, None])
async def test_a_position_of_another_stream_is_fatal(transport: SubscribeTransportType | None) -> None:
    """A sequence number that the stream never had is refused with advice."""
    async with world() as kinesis:
        with pytest.raises(RecordPublisherFatalError, match="retention") as caught:
            await read(kinesis.publisher(transport), position=ShardPosition.after("1"))
        assert caught.value.code == "InvalidArgumentException"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_closing_the_publisher_ends_its_generators(transport: SubscribeTransportType) -> None:
    """A generator that waits for an event fails when its publisher is closed, instead of subscribing again."""
    async with world(idle_event_interval=timedelta(seconds=30)) as kinesis:
        rows = await kinesis.put(1, 100)
        publisher = kinesis.publisher(transport)
        published = publisher.publish(ORDERS, "shardId-000000000000", ShardPosition.trim_horizon())
        async with aclosing(published):
            assert data([await anext(published)]) == rows
            waiting = asyncio.ensure_future(anext(published))
            await asyncio.sleep(0)
            await publisher.close()
            with pytest.raises(RecordPublisherFatalError) as caught:
                await waiting
        assert caught.value.code == "Closed"


async def test_an_endpoint_that_is_not_there_is_an_error_in_the_end() -> None:
    """Refused connections are retried as often as configured, then reported."""
    async with world() as kinesis:
        async with Proxy(kinesis.server.tls_endpoint_url) as closed:
            url = closed.url
        for transport in TRANSPORTS:
            few = BackoffPolicy(base=timedelta(0), maximum=timedelta(0), max_attempts=2)
            publisher = kinesis.publisher(transport, url=url, subscribe_to_shard=few)
            with pytest.raises(RecordPublisherRetriesError) as caught:
                await read(publisher)
            assert caught.value.attempts == 2


async def test_two_readers_with_one_consumer_do_not_fight_for_ever() -> None:
    """Two publishers that share a consumer take turns a few times; then one of them is told, and the other reads on."""
    async with world() as kinesis:
        few = BackoffPolicy(base=timedelta(milliseconds=10), maximum=timedelta(milliseconds=10), max_attempts=2)
        readings = [
            asyncio.create_task(read(kinesis.publisher(subscribe_to_shard=few), rows=1), name=f"reader {index}")
            for index in range(2)
        ]
        done, rest = await asyncio.wait(readings, return_when=asyncio.FIRST_COMPLETED)
        (loser,) = done
        assert isinstance(loser.exception(), SubscriptionTakenOverError)
        rows = await kinesis.put(1, 100)
        (winner,) = rest
        assert data(await winner) == rows


async def test_the_thread_of_a_connection_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of an event meet the Python state of the chunks before: making one anew costs more than a chunk."""
    state = threading.local()
    seen: list[int] = []
    on_body = Http2Subscription.on_body

    def counting(self: Http2Subscription, **chunk: Any) -> None:
        state.chunks = getattr(state, "chunks", 0) + 1
        seen.append(state.chunks)
        on_body(self, **chunk)

    monkeypatch.setattr(Http2Subscription, "on_body", counting)
    async with world() as kinesis:
        rows = await kinesis.put(20, 20_000)
        await read(kinesis.publisher(SubscribeTransportType.HTTP2), rows=len(rows))
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) > 10


async def test_auto_falls_back_where_tls_has_no_http2() -> None:
    """An endpoint that does not choose h2 is read over HTTP/1.1."""
    async with world() as kinesis:
        rows = await kinesis.put(3, 100)
        ca_file = kinesis.server.ca_file.with_name("other.pem")
        context = server_context("127.0.0.1", ca_file)
        context.set_alpn_protocols(["http/1.1"])
        parts = urlsplit(kinesis.server.endpoint_url)
        protocols: list[str | None] = []
        tasks: set[asyncio.Task[None]] = set()

        async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while chunk := await source.read(65536):
                sink.write(chunk)
                await sink.drain()
            sink.close()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            protocols.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
            up_reader, up_writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                async with asyncio.TaskGroup() as pipes:
                    pipes.create_task(pipe(reader, up_writer), name="up")
                    pipes.create_task(pipe(up_reader, writer), name="down")
            except* (ConnectionError, ssl.SSLError):
                pass
            finally:
                up_writer.close()
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        publisher = RecordPublisherFactory().build_record_publisher(
            RecordPublisherConfig(record_publisher=RecordPublisherType.EFO),
            AwsSession(emulator_options(url, str(ca_file))),
            {"orders": kinesis.consumer_arn},
        )
        try:
            assert data(await read(publisher, rows=3)) == rows
        finally:
            await publisher.close()
            server.close()
            await asyncio.gather(*tasks)
        assert len(protocols) == 2
        assert "h2" not in protocols
