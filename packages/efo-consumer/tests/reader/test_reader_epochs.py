"""Sessions that are opened again: which callers they refuse, and what continues."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from reader_homes import HOMES, read, reader_at, request, until

from penstock.efo_consumer import (
    EfoConsumerConfigError,
    FencedConsumerError,
    LocalShardReader,
    RecordPublisherType,
    RemoteShardReader,
    StaleEpochError,
    StreamConsumer,
    ranges_between,
)
from penstock.efo_consumer.testing import FakeKinesis


async def test_opening_again_fences_the_predecessor_and_keeps_its_subscriptions() -> None:
    """The old epoch is refused, also in the middle of a long poll; shards that continue are not subscribed again."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 10)
    async with LocalShardReader(kinesis) as reader:
        old = await reader.open(request(start))
        middle = (await reader.positions("q", old, start, max_records=4, wait_seconds=5)).positions
        tip = (await reader.positions("q", old, middle, wait_seconds=5)).positions
        polling = asyncio.create_task(reader.positions("q", old, tip, wait_seconds=120))
        await reader.stats("q")
        new = await reader.open(request(middle))
        assert new > old
        with pytest.raises(StaleEpochError) as raised:
            await asyncio.wait_for(polling, 60)
        assert (raised.value.epoch, raised.value.current_epoch) == (old, new)
        with pytest.raises(StaleEpochError):
            await reader.commit("q", old, tip)
        with pytest.raises(StaleEpochError):
            _ = [batch async for batch in reader.read_range("q", ranges_between(start, tip), epoch=old)]
        await reader.close_session("q", old)
        snapshot = await reader.positions("q", new, middle, wait_seconds=5)
        assert await read(reader, middle, snapshot.positions) == written[4:]
        assert len(kinesis.subscriptions) == 1


async def test_opening_at_what_is_no_longer_held_subscribes_again() -> None:
    """A successor that begins before the buffer gets every record from there."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 10)
    async with LocalShardReader(kinesis) as reader:
        old = await reader.open(request(start))
        tip = (await reader.positions("q", old, start, wait_seconds=5)).positions
        await reader.commit("q", old, tip)
        new = await reader.open(request(start))
        assert (await reader.positions("q", new, start, wait_seconds=5)).records > 0
        await until(lambda: reader.buffered_bytes > 10 * 10)
        assert len(kinesis.subscriptions) == 2
        assert await read(reader, start, tip) == written


@HOMES
async def test_an_older_lease_is_refused(home: str) -> None:
    """The reader remembers the newest token of a consumer, whatever the session or its creation time."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")

    def lease(token: int, created: int = 1) -> tuple[StreamConsumer, ...]:
        return (StreamConsumer("s", f"{ARN}:{created}", token),)

    async with reader_at(home, kinesis) as reader:
        await reader.open(request(start, consumers=lease(7)))
        with pytest.raises(FencedConsumerError) as raised:
            await reader.open(request(start, "other", consumers=lease(6, created=2)))
        assert (raised.value.stream, raised.value.fencing_token, raised.value.seen_fencing_token) == ("s", 6, 7)
        await reader.open(request(start, "other", consumers=lease(8)))


ENORMOUS = 2**63 - 1


ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/s/consumer/c"


def consumer(token: int, arn: str = f"{ARN}:1") -> tuple[StreamConsumer, ...]:
    return (StreamConsumer("s", arn, token),)


@HOMES
async def test_nobody_is_locked_out_by_a_token_that_no_registry_gives(home: str) -> None:
    """Neither an enormous token nor one of an opening that failed is remembered; and no text but a consumer's ARN."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    async with reader_at(home, kinesis) as reader:
        for token in (ENORMOUS, -1):
            with pytest.raises(EfoConsumerConfigError, match="was not given by a registry"):
                await reader.open(request(start, "attack", consumers=consumer(token)))
        with pytest.raises(EfoConsumerConfigError, match="not an ARN of a consumer of 's'"):
            await reader.open(request(start, "attack", consumers=consumer(1, "x" * 100)))
        with pytest.raises(EfoConsumerConfigError, match="was not given to a run"):
            await reader.open(request(start, "attack", consumers=consumer(1_000), epoch=ENORMOUS))
        await reader.open(request(start, consumers=consumer(7)))


async def test_a_lease_is_forgotten_some_time_after_its_last_session() -> None:
    """A caller with an invented token locks others out for ten minutes at most; an open session keeps it."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    now = 0.0
    async with LocalShardReader(kinesis, clock=lambda: now) as reader:
        epoch = await reader.open(request(start, "attack", consumers=consumer(1_000)))
        now = 10_000.0
        with pytest.raises(FencedConsumerError):
            await reader.open(request(start, consumers=consumer(7)))
        await reader.close_session("attack", epoch)
        with pytest.raises(FencedConsumerError):
            await reader.open(request(start, consumers=consumer(7)))
        now += 601
        await reader.open(request(start, consumers=consumer(7)))


@HOMES
@pytest.mark.parametrize("option", ["epoch", "after_epoch"])
async def test_no_number_of_a_run_ends_all_numbers(home: str, option: str) -> None:
    """After an enormous one no later run of any session could have a larger one."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    async with reader_at(home, kinesis) as reader:
        with pytest.raises(EfoConsumerConfigError, match="was not given to a run") as raised:
            await reader.open(request(start, "attack", **{option: ENORMOUS}))
        assert raised.value.option == option
        first = await reader.open(request(start, number_only=True))
        again: dict[str, Any] = {option: first}
        assert await reader.open(request(start, **again)) >= first


async def test_what_a_caller_may_ask_a_service_for_has_bounds() -> None:
    """How long a session without calls is kept, how large a batch is, and how long names are."""
    kinesis = FakeKinesis()
    kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    async with reader_at("remote", kinesis) as fleet, aclosing(RemoteShardReader(fleet.endpoint)) as reader:
        for option, value in {
            "session_seconds": float("inf"),
            "session_id": "q" * 1_025,
        }.items():
            wrong: dict[str, Any] = {"session_id": "q", option: value}
            with pytest.raises(EfoConsumerConfigError) as raised:
                await reader.open(request(start, **wrong))
            assert raised.value.option == option
        with pytest.raises(EfoConsumerConfigError, match="max_batch_bytes"):
            _ = [one async for one in reader.read_range("q", ranges_between(start, start), max_batch_bytes=2**40)]


async def test_switching_the_publisher_goes_on_where_the_buffers_end() -> None:
    """Enhanced fan-out and polling can be exchanged between two opens; nothing is read twice."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    written = kinesis.put("s", shard, 4)
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(request(start))
        tip = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
        epoch = await reader.open(request(start, record_publisher=RecordPublisherType.POLLING))
        written += kinesis.put("s", shard, 4)
        await until(lambda: kinesis.events_taken >= 2)
        snapshot = await reader.positions("q", epoch, start)
        assert snapshot.records == 8
        assert await read(reader, start, snapshot.positions) == written
        assert kinesis.subscriptions[1][2] == tip.get("s", shard)
