"""Ranges whose reader goes away in the middle: the next one is asked for what is left, and the records decide what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import grpc
import pyarrow as pa
import pytest
from kpl_aggregates import aggregate

from penstock.efo_consumer import (
    SERVICE_NAME,
    FleetShardReader,
    LocalShardReader,
    ReaderUnavailableError,
    ShardPosition,
    ShardRange,
    ShardReaderServicer,
    read_ranges,
)
from penstock.efo_consumer._remote.resume import KINESIS, Patience, retrievals
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import GrpcServer, ServerSettings

READERS = pytest.mark.parametrize("reader", ["fleet", "task"])


class Dying(ShardReaderServicer):
    """The first call for ranges that brings `batches` of them ends there, and something happens then."""

    batches = 1_000_000
    on_death: Callable[[], object] = staticmethod(lambda: None)
    asked: list[list[str]]
    """Per call, the shards of its ranges; of all servicers."""

    async def ReadRange(self, request: Any, context: Any) -> AsyncIterator[Any]:
        Dying.asked.append([one.shard_id for one in request.ranges])
        # The first answer is the schema.
        left = Dying.batches + 1
        async with aclosing(super().ReadRange(request, context)) as answers:  # type: ignore[type-var]  # it is a generator
            async for answer in answers:
                if not left:
                    Dying.batches = 1_000_000
                    Dying.on_death()
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "died")
                left -= 1
                yield answer


class World:
    """A stream whose readers hold nothing in memory."""

    def __init__(self, kinesis: FakeKinesis, addresses: list[str]) -> None:
        self.kinesis = kinesis
        self.addresses = addresses

    def dies_after(self, batches: int, then: Callable[[], object] = lambda: None) -> None:
        """Let the first reader that is asked give so many batches, of a row each, and die."""
        Dying.batches, Dying.on_death, Dying.asked = batches, staticmethod(then), []

    async def rows(self, reader: str, ranges: Sequence[ShardRange]) -> list[tuple[int, int]]:
        """Sequence and sub-sequence numbers of what comes, by one of the ways to ask for ranges."""
        found: list[tuple[int, int]] = []
        async with AsyncExitStack() as exits:
            async for batch in self._batches(reader, ranges, exits):
                columns = (batch.column(name).to_pylist() for name in ("sequenceNumber", "subSequenceNumber"))
                found += [(int(number), sub) for number, sub in zip(*columns, strict=True)]
        return found

    async def _batches(
        self, reader: str, ranges: Sequence[ShardRange], exits: AsyncExitStack
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        if reader == "task":

            def read() -> list[pa.RecordBatch]:
                addresses = ",".join(self.addresses)
                return list(read_ranges(addresses, None, "q", ranges, max_batch_bytes=1, fail_on_data_loss=False))

            for batch in await asyncio.to_thread(read):
                yield batch
            return
        remote = FleetShardReader(self.addresses)
        exits.push_async_callback(remote.aclose)
        async for batch in remote.read_range("q", ranges, max_batch_bytes=1, fail_on_data_loss=False):
            yield batch


@asynccontextmanager
async def world(shards: int = 1) -> AsyncIterator[World]:
    kinesis = FakeKinesis(event_records=1)
    kinesis.create_stream("s", shards)
    async with AsyncExitStack() as exits:
        addresses = []
        for _ in range(2):
            local = await exits.enter_async_context(LocalShardReader(kinesis))
            settings = ServerSettings(drain_seconds=0)
            server = GrpcServer(settings, register=[Dying(local).add_to], service_names=[SERVICE_NAME])
            addresses.append((await exits.enter_async_context(server)).address)
        yield World(kinesis, addresses)


def until(shard_id: str, number: int, after: int | None = None) -> ShardRange:
    begin = ShardPosition.trim_horizon() if after is None else ShardPosition.after(str(after))
    return ShardRange("s", shard_id, begin, ShardPosition.after(str(number)))


@READERS
async def test_records_that_expire_before_a_range_is_asked_again_take_no_others_with_them(reader: str) -> None:
    """Three of six records came and four are gone: the next reader gives the last two."""
    async with world() as at:
        (shard,) = (shard.shard_id for shard in at.kinesis.shards.values())
        numbers = at.kinesis.put("s", shard, 6)
        at.dies_after(3, lambda: at.kinesis.trim("s", shard, numbers[3]))
        rows = await at.rows(reader, [until(shard, numbers[-1])])
        assert [number for number, _ in rows] == [*numbers[:3], *numbers[4:]]


@READERS
async def test_ranges_that_came_whole_are_not_asked_for_again(reader: str) -> None:
    """Only the one in which the reader died, and those behind it."""
    async with world() as at:
        (shard,) = (shard.shard_id for shard in at.kinesis.shards.values())
        numbers = at.kinesis.put("s", shard, 6)
        ranges = [until(shard, last, first) for first, last in zip([None, *numbers[1::2]], numbers[1::2], strict=False)]
        at.dies_after(3, lambda: at.kinesis.trim("s", shard, numbers[1]))
        assert [number for number, _ in await at.rows(reader, ranges)] == numbers
        assert [len(asked) for asked in Dying.asked] == [3, 2]


@READERS
async def test_each_reader_is_asked_once_for_all_of_its_shards(reader: str) -> None:
    """Neighbouring shards are rarely the same reader's: a call for each run of them would be one for every other."""
    async with world(shards=16) as at:
        numbers = {shard.shard_id: at.kinesis.put("s", shard.shard_id, 1)[0] for shard in at.kinesis.shards.values()}
        at.dies_after(1_000_000)
        rows = await at.rows(reader, [until(*one) for one in numbers.items()])
        assert sorted(number for number, _ in rows) == sorted(numbers.values())
        assert len(Dying.asked) == 2


@READERS
async def test_an_aggregate_that_was_cut_goes_on_behind_its_last_user_record(reader: str) -> None:
    """User records of one aggregate share a sequence number: none of them is skipped, and none comes twice."""
    async with world() as at:
        (shard,) = (shard.shard_id for shard in at.kinesis.shards.values())
        numbers = at.kinesis.put("s", shard, 2)
        at.kinesis.shards["s", shard].data = [aggregate(["a", "b", "c"]), b"plain"]
        for given in range(1, 4):
            at.dies_after(given)
            rows = await at.rows(reader, [until(shard, numbers[-1])])
            assert rows == [(numbers[0], 0), (numbers[0], 1), (numbers[0], 2), (numbers[1], 0)]


def test_a_reader_that_does_not_come_back_is_left_only_while_it_is_silent() -> None:
    """A reader in the query's process: if it is gone or refuses, that is an error; if silent, Kinesis is asked."""
    asked = retrievals([until("s0", 1)], ["a:1"], list, 10.0, with_kinesis=True, comes_back=False)
    (retrieval,) = asked
    for reason in ("UNAVAILABLE: gone", "UNAUTHENTICATED: wrong token"):
        with pytest.raises(ReaderUnavailableError, match=reason):
            retrieval.failed(ReaderUnavailableError(endpoint="a:1", reason=reason), 0.0)
    silent = ReaderUnavailableError(endpoint="a:1", reason="DEADLINE_EXCEEDED: no sign of life for 2 s")
    refused = ReaderUnavailableError(endpoint="Kinesis itself", reason="UNAVAILABLE: no credentials")
    assert retrieval.failed(silent, 0.0) == 0
    assert retrieval.endpoint == KINESIS
    assert retrieval.failed(refused, 1.0) > 0
    assert retrieval.endpoint == "a:1"
    retrieval.failed(silent, 9.0)
    with pytest.raises(ReaderUnavailableError, match="no credentials"):
        retrieval.failed(refused, 12.0)


def test_a_refused_token_is_read_from_its_file_once_more() -> None:
    """The call that follows sends the token that the file holds by then."""
    (retrieval,) = retrievals([until("s0", 1)], ["a:1"], list)
    refused = ReaderUnavailableError(endpoint="a:1", reason="UNAUTHENTICATED: wrong token")
    assert retrieval.failed(refused, 0.0) == 0
    assert retrieval.endpoint == "a:1"
    with pytest.raises(ReaderUnavailableError, match="UNAUTHENTICATED"):
        retrieval.failed(refused, 0.0)


def test_failures_in_a_row_are_borne_for_a_time() -> None:
    """Anything that comes between them restarts the time; a refusal is never borne."""
    away = ReaderUnavailableError(endpoint="e", reason="UNAVAILABLE: gone")
    patience = Patience(10)
    assert patience.pause(away, 0) == patience.pause(away, 9) > 0
    with pytest.raises(ReaderUnavailableError):
        patience.pause(away, 10)
    patience.worked()
    assert patience.pause(away, 20) > 0
    with pytest.raises(ReaderUnavailableError, match="UNAUTHENTICATED"):
        patience.pause(ReaderUnavailableError(endpoint="e", reason="UNAUTHENTICATED"), 20)
    with pytest.raises(ReaderUnavailableError):
        Patience(0).pause(away, 0)
