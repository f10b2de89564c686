"""What a user of aiobotocore does with Kinesis, from an endpoint to its end; run as a program of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

WAIT = {"Delay": 0.1, "MaxAttempts": 100}


async def collect(pages: Any, key: str) -> list[Any]:
    return [item async for page in pages for item in page[key]]


async def streams_and_records(client: Any) -> None:
    await client.create_stream(StreamName="flights", ShardCount=2)
    waiter = client.get_waiter("stream_exists")
    await waiter.wait(StreamName="flights", WaiterConfig=WAIT)
    records = [{"Data": f"{number}".encode(), "PartitionKey": f"{number}"} for number in range(100)]
    answer = await client.put_records(StreamName="flights", Records=records)
    assert answer["FailedRecordCount"] == 0
    read = []
    for shard in (await client.list_shards(StreamName="flights"))["Shards"]:
        iterator = await client.get_shard_iterator(
            StreamName="flights", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        read += (await client.get_records(ShardIterator=iterator["ShardIterator"]))["Records"]
    assert {record["Data"] for record in read} == {record["Data"] for record in records}


async def paginators(client: Any, arn: str) -> None:
    for name in ("a", "b", "c"):
        await client.create_stream(StreamName=name, ShardCount=3)
        await client.register_stream_consumer(StreamARN=arn, ConsumerName=name)
    page = {"PageSize": 2}
    names = await collect(client.get_paginator("list_streams").paginate(PaginationConfig=page), "StreamNames")
    assert names == ["a", "b", "c", "flights"]
    consumers = client.get_paginator("list_stream_consumers").paginate(StreamARN=arn, PaginationConfig=page)
    assert [consumer["ConsumerName"] for consumer in await collect(consumers, "Consumers")] == ["a", "b", "c"]
    description = client.get_paginator("describe_stream").paginate(StreamName="a", PaginationConfig=page)
    shards = [shard async for each in description for shard in each["StreamDescription"]["Shards"]]
    assert len(shards) == 3
    shards = await collect(client.get_paginator("list_shards").paginate(StreamName="a"), "Shards")
    assert len(shards) == 3


async def subscribe(client: Any, arn: str) -> None:
    consumer = await client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")
    consumer_arn = consumer["Consumer"]["ConsumerARN"]
    while True:
        described = await client.describe_stream_consumer(ConsumerARN=consumer_arn)
        if described["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE":
            break
        await asyncio.sleep(0.1)
    answer = await client.subscribe_to_shard(
        ConsumerARN=consumer_arn, ShardId="shardId-000000000000", StartingPosition={"Type": "LATEST"}
    )
    await client.put_record(StreamName="flights", Data=b"late", PartitionKey="k", ExplicitHashKey="0")
    async for event in answer["EventStream"]:
        records = event["SubscribeToShardEvent"]["Records"]
        if records:
            assert records[0]["Data"] == b"late"
            break
    answer["EventStream"].close()
    try:
        await client.subscribe_to_shard(
            ConsumerARN=consumer_arn, ShardId="shardId-000000000000", StartingPosition={"Type": "LATEST"}
        )
    except client.exceptions.ResourceInUseException:
        pass
    else:
        raise AssertionError("the second subscription within five seconds was not refused")
    await client.deregister_stream_consumer(ConsumerARN=consumer_arn)


async def main(endpoint_url: str) -> None:
    config = AioConfig(retries={"mode": "standard", "total_max_attempts": 10})
    async with get_session().create_client(
        "kinesis",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=config,
    ) as client:
        await streams_and_records(client)
        summary = await client.describe_stream_summary(StreamName="flights")
        arn = summary["StreamDescriptionSummary"]["StreamARN"]
        await paginators(client, arn)
        await subscribe(client, arn)
        await client.delete_stream(StreamName="flights", EnforceConsumerDeletion=True)
        await client.get_waiter("stream_not_exists").wait(StreamName="flights", WaiterConfig=WAIT)
    sys.stdout.write("passed\n")


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(sys.argv[1]), 60))
