"""Queries over streams that are resharded: closed shards are read to their end, and released once that is committed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from continuity_world import ROOT, Query, World, world_of

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    ReaderConfig,
    ReaderHost,
    RecordPublisherConfig,
    RemoteShardReader,
    ShardPosition,
    StreamPositions,
)
from penstock.emulator import Behaviour
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin.testing import FakeReadingSession

RESHARDS = 4


def split(world: World, shard_id: str) -> list[str]:
    """Split the stream's only shard in halves."""
    world.client.split_shard(StreamName="flights", ShardToSplit=shard_id, NewStartingHashKey=str(2**127))
    return after_reshard(world, [shard_id])


def merge(world: World, shards: list[str]) -> list[str]:
    world.client.merge_shards(StreamName="flights", ShardToMerge=shards[0], AdjacentShardToMerge=shards[1])
    return after_reshard(world, shards)


def after_reshard(world: World, parents: list[str]) -> list[str]:
    """The children, once they are listed, however late that is."""
    world.clock.advance(5)
    listed = world.client.list_shards(StreamName="flights")["Shards"]
    return [one["ShardId"] for one in listed if one.get("ParentShardId") in parents]


@contextmanager
def query_of(world: World, publisher: str) -> Iterator[tuple[Query, ReaderHost]]:
    """A query that reads by a service, which subscribes again at once: Kinesis would refuse it for 5 seconds."""
    config = ReaderConfig(
        discovery_interval=timedelta(seconds=0.2),
        publisher=RecordPublisherConfig(resubscribe_interval=timedelta(milliseconds=20)),
    )
    with ReaderHost(config=config, aws=emulator_options(world.emulator.endpoint_url)) as service:
        token = service.security.token or ""
        yield Query(world.options(publisher, readerEndpoint=service.address, serviceToken=token)), service


@pytest.mark.parametrize(
    ("behaviour", "publisher"),
    [(Behaviour(shard_end_without_event=True), "efo"), (Behaviour.hostile(seed=2), "polling")],
    ids=["without the end", "hostile"],
)
def test_the_records_of_children_come_however_their_parent_ends(behaviour: Behaviour, publisher: str) -> None:
    """Also where the subscriptions of a closed shard never bring its end; a restarted query reads on, too."""
    with world_of(behaviour) as world, query_of(world, publisher) as (query, _):
        with query.running():
            written = world.put(4)
            query.read(4)
            children = split(world, ROOT)
            written += world.put(4)
            query.read(4)
        merge(world, children)
        written += world.put(4)
        with query.running() as reader:
            query.read(4)
            assert reader.reportLatestOffset()["losses"] == 0
        assert sorted(query.keys) == sorted(written)


@pytest.mark.parametrize(("profile", "publisher"), [("kind", "efo"), ("hostile", "polling")])
def test_shards_that_ended_leave_the_offsets_and_the_reader(profile: str, publisher: str) -> None:
    """However often the stream is resharded; what the query has done still counts them."""
    with world_of(profile) as world, query_of(world, publisher) as (query, service), query.running() as reader:
        shards, written = [ROOT], world.put(1)
        query.read(1)
        for _ in range(RESHARDS):
            shards = split(world, shards[0]) if len(shards) == 1 else merge(world, shards)
            more = world.put(2)
            query.read(2)
            written += more
        query.read(len(written) - len(query.keys))
        assert sorted(query.keys) == sorted(written)
        assert max(len(offset["streams"]["flights"]) for offset in query.log) <= 6
        assert reader.reportLatestOffset()["records"] == len(written)
        assert asyncio.run(kept_shards(service)) <= 6


async def kept_shards(service: ReaderHost) -> int:
    """Shards of the service's only session, read to their end or not."""
    remote = RemoteShardReader(service.address, security=service.security)
    try:
        (session,) = await remote.sessions()
        return session.shard_count
    finally:
        await remote.aclose()


def test_what_a_reader_counted_before_it_was_started_anew_counts() -> None:
    """The counts of released shards are kept too: the numbers of a query never fall."""
    session = FakeReadingSession()
    source = KinesisStreamReader(KinesisOptions(stream_name=("flights",)), session_factory=session.open)

    def records(shard: str, rows: int) -> int:
        session.reader.reaches, session.reader.rows = {"flights": {shard: ShardPosition.after("7")}}, rows
        source.latestOffset(
            StreamPositions({"flights": {shard: ShardPosition.after("1")}}).to_json(), source.getDefaultReadLimit()
        )
        report = source.reportLatestOffset()
        assert report is not None
        return int(report["records"])

    # It grows, is restarted, and continues with a child.
    assert [records(*step) for step in (("s0", 3), ("s0", 5), ("s0", 1), ("s1", 2), ("s1", 4))] == [3, 5, 6, 8, 10]
