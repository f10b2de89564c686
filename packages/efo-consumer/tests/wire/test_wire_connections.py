"""How connections are shared, held back and closed, shown by proxies that count."""

import asyncio
import ssl
import threading
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from wire_world import HALF, ORDERS, TRANSPORTS, data, read, until, world

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    ShardPosition,
    SubscribeTransportType,
)
from penstock.efo_consumer._publish.factory import open_transport
from penstock.efo_consumer._wire.http2 import Http2Subscription
from penstock.efo_consumer._wire.subscription import SubscribeRequest
from penstock.emulator.testing import AdjustableClock, server_context


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_consumer_that_stops_taking_stops_the_service(transport: SubscribeTransportType) -> None:
    """While events are not taken, little more than a window is sent; later everything arrives."""
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


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_subscription_tells_the_services_time(transport: SubscribeTransportType) -> None:
    """Either transport gives the second in which the service answered, by the service's own clock."""
    async with world(manual_clock=True) as kinesis:
        clock = kinesis.server.clock
        assert isinstance(clock, AdjustableClock)
        clock.advance(timedelta(hours=1))
        plain = transport is SubscribeTransportType.HTTP1
        url = kinesis.server.endpoint_url if plain else kinesis.server.tls_endpoint_url
        session = AwsSession(emulator_options(url, str(kinesis.server.ca_file)))
        opened = open_transport(session, RecordPublisherConfig(subscribe_transport=transport))
        request = SubscribeRequest(kinesis.consumer_arn, "shardId-000000000000", ShardPosition.trim_horizon())
        subscription = await opened.subscribe(request)
        try:
            assert subscription.answered_at == int(clock.time())
        finally:
            await subscription.close()
            await opened.close()


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


async def test_a_connection_that_is_made_after_its_subscription_was_cancelled_is_closed() -> None:
    """awscrt cannot stop connecting, and its callback failed where the future had been cancelled."""
    async with world() as kinesis, asyncio.timeout(60):
        target = urlsplit(kinesis.server.tls_endpoint_url)
        came, released, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while part := await reader.read(1 << 16):
                writer.write(part)
            writer.close()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            await released.wait()
            answers, requests = await asyncio.open_connection(target.hostname, target.port)
            await asyncio.gather(pass_on(reader, requests), pass_on(answers, writer), return_exceptions=True)
            gone.set()

        async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            publisher = kinesis.publisher(url=f"https://127.0.0.1:{port}")
            published = publisher.publish(ORDERS, "shardId-000000000000", ShardPosition.trim_horizon())
            first = asyncio.create_task(anext(published))
            await came.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            released.set()
            await gone.wait()


@pytest.mark.kind_kinesis
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
    """After an abandoned stream the connection takes no new streams, and is closed after its others."""
    monkeypatch.setattr("penstock.efo_consumer._wire.http2._END_GRACE_SECONDS", 0.0)
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


async def test_the_thread_of_a_connection_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of an event reuse the Python state of earlier chunks: a new state costs more than a chunk."""
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
