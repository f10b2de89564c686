"""The same records, whichever way they come: over HTTP/2, HTTP/1.1 and by polling, from any start to the end."""

from contextlib import aclosing

import pytest
from wire_world import HALF, ORDERS, TRANSPORTS, data, read, table, world

from penstock.efo_consumer import ShardPosition, SubscribeTransportType


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


@pytest.mark.kind_kinesis
@pytest.mark.parametrize("transport", [*TRANSPORTS, None])
async def test_the_end_of_a_shard_names_its_children(transport: SubscribeTransportType | None) -> None:
    """After a split the shard is read to its end, which names both children; they continue where it ended."""
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
