"""Aggregated records of the Kinesis Producer Library, and a stream that is written to in aggregates."""

import asyncio
import hashlib
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import look_up
from penstock.async_sink._destinations.kinesis.entry import MAX_RECORD_BYTES, KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.put_records import KinesisStream
from penstock.async_sink._rate.per_shard import hash_key_of
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify


class ShardRanges:
    """The result of ListShards: open shards by hash key, and the range of every shard by its id.

    A list may lag behind a reshard and show one child of a shard before the other. The open shards then have gaps.
    """

    def __init__(self, shards: Iterable[Mapping[str, Any]], closed: Container[str] = ()) -> None:
        """`shards` as the API describes them; `closed` contains the ids of closed shards, now or later."""
        open_shards = []
        self._ranges: dict[str, tuple[int, int]] = {}
        for shard in shards:
            keys = shard["HashKeyRange"]
            start, end = int(keys["StartingHashKey"]), int(keys["EndingHashKey"])
            self._ranges[shard["ShardId"]] = start, end
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                open_shards.append((start, end, shard["ShardId"]))
        open_shards.sort()
        self._starts = [start for start, _, _ in open_shards]
        self._open = open_shards
        self._closed = closed

    def shard_of(self, hash_key: int) -> str:
        """The open shard of a hash key; empty when none is known."""
        place = bisect_right(self._starts, hash_key) - 1
        if place < 0:
            return ""
        _, end, shard_id = self._open[place]
        return "" if hash_key > end or shard_id in self._closed else shard_id

    def range_of(self, shard_id: str) -> tuple[int, int] | None:
        """First and last hash key of a shard, open or closed; None when it is not known."""
        return self._ranges.get(shard_id)


MAGIC = b"\xf3\x89\x9a\xc2"
_FRAME_BYTES = len(MAGIC) + 16
# Tags of the body's fields and of a record's: number << 3 | wire type.
_KEY, _HASH_KEY, _RECORD = b"\x0a", b"\x12", b"\x1a"
_KEY_INDEX, _HASH_KEY_INDEX, _DATA = b"\x08", b"\x10", b"\x1a"


@dataclass(frozen=True, kw_only=True)
class AggregationConfig:
    """How user records are packed into aggregates.

    Raises:
        SinkOptionError: a limit is out of range.
    """

    max_aggregate_bytes: int = 51_200
    """Bytes of an aggregate and its partition key, unless a single record is larger: 64 to 10 MiB, and more than 1 MiB
    only if `AsyncSinkConfig.max_record_size_in_bytes` is as much, as the stream is to take it. Default:
    AggregationMaxSize of the producer library."""
    max_aggregate_records: int = 1_000_000
    """User records in an aggregate."""

    def __post_init__(self) -> None:
        if not 64 <= self.max_aggregate_bytes <= MAX_RECORD_BYTES:
            raise SinkOptionError("max_aggregate_bytes", f"{self.max_aggregate_bytes} must be 64 to {MAX_RECORD_BYTES}")
        if self.max_aggregate_records < 1:
            raise SinkOptionError("max_aggregate_records", f"{self.max_aggregate_records} must be at least 1")


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Aggregate:
    """User records that are packed into one record of the stream."""

    def __init__(self, hash_key: int) -> None:
        """`hash_key` is the hash key of the first user record; it selects the shard of the aggregate."""
        self.hash_key = hash_key
        self.places: list[int] = []
        """Places of the user records in the request."""
        self._entries: list[KinesisRequestEntry] = []
        self._keys: dict[str, bytes] = {}
        self._hash_keys: dict[str, bytes] = {}
        self._tables: list[bytes] = []
        self._records: list[bytes] = []
        # The frame and, with the first user record, the partition key.
        self.size_in_bytes = _FRAME_BYTES
        """Bytes of the record that it makes, its partition key included, or a little more."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: KinesisRequestEntry, place: int, config: AggregationConfig) -> bool:
        """Add a user record; False if it does not fit. The first one always fits."""
        new: list[tuple[dict[str, bytes], str, bytes, bytes]] = []
        index = self._keys.get(entry.partition_key)
        if index is None:
            index = _varint(len(self._keys))
            new.append((self._keys, entry.partition_key, index, _KEY))
        head = _KEY_INDEX + index
        if entry.explicit_hash_key is not None:
            hash_index = self._hash_keys.get(entry.explicit_hash_key)
            if hash_index is None:
                hash_index = _varint(len(self._hash_keys))
                new.append((self._hash_keys, entry.explicit_hash_key, hash_index, _HASH_KEY))
            head += _HASH_KEY_INDEX + hash_index
        head += _DATA + _varint(len(entry.data))
        record = b"".join((_RECORD, _varint(len(head) + len(entry.data)), head, entry.data))
        tables = []
        for _, key, _, tag in new:
            encoded = key.encode()
            tables.append(b"".join((tag, _varint(len(encoded)), encoded)))
        size = self.size_in_bytes + len(record) + sum(map(len, tables))
        if not self._entries:
            size += len(entry.partition_key.encode())
        if self._entries and (size > config.max_aggregate_bytes or len(self._entries) >= config.max_aggregate_records):
            return False
        for table, key, key_index, _ in new:
            table[key] = key_index
        self._tables += tables
        self._records.append(record)
        self._entries.append(entry)
        self.places.append(place)
        self.size_in_bytes = size
        return True

    def to_entry(self) -> KinesisRequestEntry:
        """The record for the stream: the aggregate, or a single user record unchanged."""
        first = self._entries[0]
        if len(self._entries) == 1:
            return first
        # The order of the tables' entries among each other is free: fields of one number keep theirs.
        body = b"".join((*self._tables, *self._records))
        data = b"".join((MAGIC, body, hashlib.md5(body, usedforsecurity=False).digest()))
        return KinesisRequestEntry(data, first.partition_key, str(self.hash_key))


_MAX_PUT_RECORDS = 500
_MAX_PUT_BYTES = 5 * 1024 * 1024
_WRONG_SHARD = "WrongShard"


class AggregatedStream(KinesisStream):
    """A stream, written to by PutRecords in aggregates of the producer library, each for one shard.

    Each user record has its own acknowledgement. Consumers drop user records of an aggregate that fall outside of its
    shard, so the shards are asked for with ListShards, and again after a resharding: user records that an aggregate has
    taken to a shard that is not theirs are sent again. Those whose shard is not listed yet go alone meanwhile.
    """

    def __init__(self, aws: AwsOptions | AwsSession, *, aggregation: AggregationConfig, **stream: Any) -> None:
        """`stream` are the arguments of `KinesisStream`."""
        super().__init__(aws, **stream)
        self._aggregation = aggregation
        # What answers have shown to be closed, whatever a list that lags behind says, until one shows the opposite: a
        # list may also be ahead, and the ids of a stream that was created again start from the beginning.
        self._closed = set[str]()
        self._shards = ShardRanges(())
        self._refreshing = asyncio.Lock()

    async def learn(self, client: JsonClient) -> None:
        """Ask for the shards."""
        await super().learn(client)
        # Rows become aggregates, so encoding them in CBOR early would be wasted.
        self._entries.leave_in_cbor = False
        await self._refresh(client, self._shards)

    async def _refresh(self, client: JsonClient, known: ShardRanges) -> None:
        async with self._refreshing:
            if self._shards is not known:
                # Another request has learnt it while this one waited.
                return
            answer = await look_up(client, "ListShards", self.parameter)
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
        requests = _requests(packed)
        parts = [[place for aggregate in aggregates for place in aggregate.places] for aggregates in requests]
        following = iter(requests)

        async def call(places: Sequence[int]) -> list[EntryFailure]:
            return await self._put(client, next(following), hash_keys, shards)

        await self.send_in_parts(parts, call, {}, len(entries), result_handler)

    async def _put(
        self, client: JsonClient, aggregates: Sequence[Aggregate], hash_keys: Sequence[int], shards: ShardRanges
    ) -> list[EntryFailure]:
        """Put the aggregates of one request. Returns the user records that were not accepted, or went astray."""
        records = [aggregate.to_entry() for aggregate in aggregates]
        answer = await self.put(client, records)
        refused = {failure.index: failure for failure in self.codec.failures(answer, len(records))}
        went_to = self.codec.shards(answer)
        failures: list[EntryFailure] = []
        for index, aggregate in enumerate(aggregates):
            failure = refused.get(index)
            if failure is not None:
                failures += (replace(failure, index=place) for place in aggregate.places)
                continue
            self._closed.discard(went_to[index] or "")
            if len(aggregate) > 1 and went_to[index] != shards.shard_of(aggregate.hash_key):
                message = f"the stream was resharded: its aggregate went to {went_to[index]}"
                places = await self._astray(client, aggregate, hash_keys, went_to[index] or "", shards)
                failures += (EntryFailure(place, _WRONG_SHARD, message, throttled=False) for place in places)
        return failures

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
    """Cut the aggregates into requests by the limits of PutRecords."""
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
