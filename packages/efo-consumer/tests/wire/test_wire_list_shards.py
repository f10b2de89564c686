"""ListShards against the emulator."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from penstock.aws import AwsServiceError, AwsSession, BackoffPolicy, JsonClient
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ShardFilter, StreamIdentity, list_shards
from penstock.emulator import EmulatorConfig, EmulatorServer


@pytest.fixture
async def client() -> AsyncIterator[JsonClient]:
    async with (
        EmulatorServer(EmulatorConfig(tls=False)) as server,
        JsonClient(AwsSession(emulator_options(server.endpoint_url))) as opened,
    ):
        await opened.call("CreateStream", {"StreamName": "orders", "ShardCount": 5})
        yield opened


async def test_all_pages_are_read(client: JsonClient) -> None:
    """A stream with more shards than a page holds is listed whole, in order, by name or by ARN."""
    summary = await client.call("DescribeStreamSummary", {"StreamName": "orders"})
    arn = summary["StreamDescriptionSummary"]["StreamARN"]
    for stream in ("orders", StreamIdentity("orders"), StreamIdentity("orders", arn)):
        shards = await list_shards(client, stream, page_shards=2)
        assert [shard.shard_id for shard in shards] == [f"shardId-{index:012}" for index in range(5)]
        assert all(shard.is_open and shard.parent_shard_ids == () for shard in shards)
        assert shards[0].starting_hash_key == "0"
        assert int(shards[-1].ending_hash_key) == 2**128 - 1


@pytest.mark.kind_kinesis
async def test_parents_and_ends_are_told(client: JsonClient) -> None:
    """After a merge the parents are closed, and the child names both; a filter leaves the closed ones out."""
    first, second = "shardId-000000000000", "shardId-000000000001"
    merge = {"StreamName": "orders", "ShardToMerge": first, "AdjacentShardToMerge": second}
    await client.call("MergeShards", merge)
    shards = {shard.shard_id: shard for shard in await list_shards(client, "orders")}
    assert not shards[first].is_open
    assert shards["shardId-000000000005"].parent_shard_ids == (first, second)
    latest = await list_shards(client, "orders", filter=ShardFilter("AT_LATEST"))
    assert {shard.shard_id for shard in latest} == {shard_id for shard_id in shards if shards[shard_id].is_open}


async def test_a_filter_by_shard(client: JsonClient) -> None:
    """AFTER_SHARD_ID gives the shards that follow, over pages too."""
    after = ShardFilter("AFTER_SHARD_ID", shard_id="shardId-000000000001")
    shards = await list_shards(client, "orders", filter=after, page_shards=1)
    assert [shard.shard_id for shard in shards] == [f"shardId-{index:012}" for index in (2, 3, 4)]


async def test_a_stream_that_is_not_there_is_an_error(client: JsonClient) -> None:
    """The service's refusal is raised with its code, without attempts that cannot help."""
    with pytest.raises(AwsServiceError) as caught:
        await list_shards(client, "nowhere", backoff=BackoffPolicy(base=timedelta(0), maximum=timedelta(0)))
    assert caught.value.code == "ResourceNotFoundException"
