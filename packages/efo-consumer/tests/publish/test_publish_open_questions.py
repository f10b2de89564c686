"""What publishers promise on both sides of what Kinesis leaves open, over real sockets."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from wire_world import HALF, ORDERS, TRANSPORTS, World, data, read, world

from penstock.efo_consumer import ShardPosition
from penstock.efo_consumer.errors import SubscriptionStuckError
from penstock.emulator import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penstock.efo_consumer import ShardEvent, SubscribeTransportType

SHARD = "shardId-000000000000"


async def split(kinesis: World) -> None:
    request = {"StreamName": "orders", "ShardToSplit": SHARD, "NewStartingHashKey": HALF}
    await kinesis.client.call("SplitShard", request)


async def collect(published: AsyncGenerator[ShardEvent, None], events: list[ShardEvent]) -> None:
    async for event in published:
        events.append(event)  # those before an error are kept


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_closed_shard_that_never_says_so_is_stuck_and_ends_by_polling(
    transport: SubscribeTransportType,
) -> None:
    """Where subscriptions to a closed shard only end, all of its records come first, and polling gives the children."""
    async with world(behaviour=Behaviour(shard_end_without_event=True)) as kinesis:
        rows = await kinesis.put(50, 100)
        await split(kinesis)
        events: list[ShardEvent] = []
        publisher = kinesis.publisher(transport)
        async with aclosing(publisher.publish(ORDERS, SHARD, ShardPosition.trim_horizon())) as published:
            with pytest.raises(SubscriptionStuckError) as caught:
                await collect(published, events)
        assert caught.value.subscriptions == 3
        assert data(events) == rows
        position = ShardPosition.after(events[-1].continuation or "")
        rest = await read(kinesis.publisher(None), position=position)
        assert data(rest) == []
        assert [child.starting_hash_key for child in rest[-1].child_shards] == ["0", HALF]


async def test_polling_goes_on_behind_a_continuation_of_fan_out() -> None:
    """Where GetShardIterator refuses continuations, the record before them takes their place."""
    async with world(behaviour=Behaviour(refuse_continuations=True)) as kinesis:
        await kinesis.put(5, 10)
        record = continuation = None
        async with aclosing(kinesis.publisher().publish(ORDERS, SHARD, ShardPosition.trim_horizon())) as published:
            async for event in published:
                continuation = event.continuation
                if event.records.num_rows:
                    record = event.records.column("sequenceNumber")[-1].as_py()
                elif record is not None:
                    break
        assert continuation != record
        later = await kinesis.put(5, 10, seed=2)
        position = replace(ShardPosition.after(continuation or ""), record=record)
        assert data(await read(kinesis.publisher(None), rows=5, position=position)) == later


@pytest.mark.parametrize("behaviour", [Behaviour.kind(), Behaviour.hostile()], ids=["kind", "hostile"])
@pytest.mark.parametrize("transport", [*TRANSPORTS, None])
async def test_what_arrived_before_a_proof_has_been_read(
    transport: SubscribeTransportType | None, behaviour: Behaviour
) -> None:
    """No record comes after an event that proves all those read that had arrived by then, while others are written."""
    async with world(behaviour=behaviour, subscription_lifetime=timedelta(seconds=0.4)) as kinesis:
        proved = proofs = found = written = 0
        async with aclosing(
            kinesis.publisher(transport).publish(ORDERS, SHARD, ShardPosition.trim_horizon())
        ) as events:
            async for event in events:
                found += event.records.num_rows
                for arrived in event.records.column("approximateArrivalTimestamp").to_pylist():
                    assert arrived.timestamp() * 1000 >= proved
                if event.caught_up_millis is not None:
                    proofs += event.caught_up_millis > proved
                    proved = max(proved, event.caught_up_millis)
                if proofs >= 5 and found == written:
                    break
                if proofs < 5:
                    written += len(await kinesis.put(2, 10))
        assert found == written
