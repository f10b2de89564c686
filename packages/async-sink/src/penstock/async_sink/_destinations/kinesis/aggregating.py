"""A stream that is written to in aggregates."""

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import AwsDestination, code_and_message, look_up
from penstock.async_sink._destinations.kinesis.aggregate import Aggregate, AggregationConfig, ShardRanges
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.partition_key import PartitionKey
from penstock.async_sink._destinations.kinesis.put_records import KinesisStream
from penstock.async_sink._destinations.kinesis.rows import KinesisEntries
from penstock.async_sink._rate.per_shard import hash_key_of
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify

_MAX_PUT_RECORDS = 500
_MAX_PUT_BYTES = 5 * 1024 * 1024
_WRONG_SHARD = "WrongShard"


class AggregatedStream(AwsDestination[KinesisRequestEntry]):
    """A stream, written to by PutRecords in aggregates of the producer library, each for one shard.

    Each user record has its own acknowledgement. Consumers drop user records of an aggregate that fall outside of its
    shard, so the shards are asked for with ListShards, and again after a resharding: user records that an aggregate has
    taken to a shard that is not theirs are sent again. Those whose shard is not listed yet go alone meanwhile.
    """

    api = KinesisStream.api

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        aggregation: AggregationConfig,
        partition_key: PartitionKey | None,
        **stream: Any,
    ) -> None:
        """`stream` is as that of `KinesisStream`."""
        self._stream = KinesisStream(aws, **stream)
        # They leave in aggregates, never in CBOR as they come.
        super().__init__(aws, self._stream.name, KinesisEntries(partition_key))
        self._aggregation = aggregation
        # What answers have shown to be closed, whatever a list that lags behind says, until one shows the opposite: a
        # list may also be ahead, and the ids of a stream that is made again begin anew.
        self._closed = set[str]()
        self._shards = ShardRanges(())
        self._refreshing = asyncio.Lock()

    async def learn(self, client: JsonClient) -> None:
        """The shards."""
        await self._stream.learn(client)
        await self._refresh(client, self._shards)

    async def status(self, client: JsonClient) -> str | None:
        """See `AwsDestination.status`."""
        return await self._stream.status(client)

    async def _refresh(self, client: JsonClient, known: ShardRanges) -> None:
        async with self._refreshing:
            if self._shards is not known:
                # Another request has learnt it while this one waited.
                return
            answer = await look_up(client, "ListShards", self._stream.parameter)
            shards = answer["Shards"]
            while answer.get("NextToken"):
                answer = await look_up(client, "ListShards", {"NextToken": answer["NextToken"]})
                shards += answer["Shards"]
            self._shards = ShardRanges(shards, self._closed)

    async def _refresh_if_possible(self, client: JsonClient, known: ShardRanges) -> None:
        try:
            await self._refresh(client, known)
        except Exception as error:
            if classify(error) is ErrorKind.FATAL:
                raise

    async def send(
        self,
        client: JsonClient,
        entries: Sequence[KinesisRequestEntry],
        result_handler: ResultHandler[KinesisRequestEntry],
    ) -> None:
        """Pack and put; a user record fails with its aggregate, or when that went to a shard that is not its own."""
        shards = self._shards
        hash_keys = list(map(hash_key_of, entries))
        packed = self._pack(entries, hash_keys, shards)
        if not all(shards.shard_of(aggregate.hash_key) for aggregate in packed):
            await self._refresh_if_possible(client, shards)
            shards = self._shards
            packed = self._pack(entries, hash_keys, shards)
        failures: dict[int, EntryFailure] = {}
        for number, aggregates in enumerate(_requests(packed)):
            records = [aggregate.to_entry() for aggregate in aggregates]
            try:
                answer = await self._stream.put(client, records)
                refused = {failure.index: failure for failure in self._stream.codec.failures(answer, len(records))}
                went_to = self._stream.codec.shards(answer)
            except Exception as error:
                if number == 0 or classify(error) is ErrorKind.FATAL:
                    raise
                # The requests before are written, and are not to be written again.
                throttled = classify(error) is ErrorKind.THROTTLED
                code, message = code_and_message(error)
                for aggregate in aggregates:
                    for place in aggregate.places:
                        failures[place] = EntryFailure(place, code, message, throttled)
                continue
            for index, aggregate in enumerate(aggregates):
                failure = refused.get(index)
                if failure is None:
                    self._closed.discard(went_to[index] or "")
                if failure is not None:
                    for place in aggregate.places:
                        failures[place] = EntryFailure(
                            place, failure.error_code, failure.error_message, failure.throttled
                        )
                elif len(aggregate) > 1 and went_to[index] != shards.shard_of(aggregate.hash_key):
                    for place in await self._astray(client, aggregate, hash_keys, went_to[index] or "", shards):
                        message = f"the stream was resharded: its aggregate went to {went_to[index]}"
                        failures[place] = EntryFailure(place, _WRONG_SHARD, message, throttled=False)
        result_handler.retry_failures([failures[place] for place in sorted(failures)])

    async def _astray(
        self, client: JsonClient, aggregate: Aggregate, hash_keys: Sequence[int], shard: str, known: ShardRanges
    ) -> list[int]:
        """Places of the user records that consumers of that shard do not deliver."""
        self._closed.add(known.shard_of(aggregate.hash_key))
        await self._refresh_if_possible(client, known)
        keys = self._shards.range_of(shard)
        if keys is None:
            return aggregate.places
        return [place for place in aggregate.places if not keys[0] <= hash_keys[place] <= keys[1]]

    def _pack(
        self, entries: Sequence[KinesisRequestEntry], hash_keys: Sequence[int], shards: ShardRanges
    ) -> list[Aggregate]:
        """Aggregates in the order of their first user records."""
        packed: list[Aggregate] = []
        filling: dict[str, Aggregate] = {}
        for place, (entry, hash_key) in enumerate(zip(entries, hash_keys, strict=True)):
            shard = shards.shard_of(hash_key)
            aggregate = filling.get(shard)
            # Together they might belong to several shards.
            if not shard or aggregate is None or not aggregate.add(entry, place, self._aggregation):
                aggregate = filling[shard] = Aggregate(hash_key)
                aggregate.add(entry, place, self._aggregation)
                packed.append(aggregate)
        return packed


def _requests(aggregates: Sequence[Aggregate]) -> list[list[Aggregate]]:
    """Cut where PutRecords takes no more."""
    requests: list[list[Aggregate]] = []
    size = 0
    for aggregate in aggregates:
        following = aggregate.size_in_bytes
        if not requests or len(requests[-1]) == _MAX_PUT_RECORDS or size + following > _MAX_PUT_BYTES:
            requests.append([])
            size = 0
        requests[-1].append(aggregate)
        size += following
    return requests
