"""Subscriptions that break, fall silent or are refused, over real sockets: resumed, waited for, or told."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest
from wire_world import ORDERS, TRANSPORTS, Proxy, data, read, world

from penstock.aws import BackoffPolicy
from penstock.efo_consumer import ShardPosition, SubscribeTransportType
from penstock.efo_consumer.errors import (
    RecordPublisherFatalError,
    RecordPublisherRetriesError,
)


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
