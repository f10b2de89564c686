"""The hash keys that each shard takes: which user records of an aggregate are its own."""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.segment import arrived_millis_at
from penstock.efo_consumer._continuity.rule import CLOCK_MARGIN_MILLIS, SHORTEST_RETENTION_MILLIS
from penstock.efo_consumer._publish.condition import unnoted
from penstock.efo_consumer._publish.metrics import publisher_metrics
from penstock.efo_consumer._publish.retries import bear
from penstock.efo_consumer._wire.kpl import MAGIC, DeaggregationCounts, HashKeyRange, deaggregate, divide_aggregates
from penstock.efo_consumer.errors import EfoConsumerError, ShardFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    import pyarrow as pa

    from penstock.efo_consumer._model.shards import Shard
    from penstock.efo_consumer._reader.backend import ReaderBackend

_log = logging.getLogger(__name__)
# Made once: a range may have thousands of batches.
_BEGINS_WITH_MAGIC = pc.MatchSubstringOptions(MAGIC)

# After a reshard ListShards may show the children late.
_LATE_SECONDS = 60.0
_LIST_AGAIN_SECONDS = 2.0


class Deaggregator:
    """Takes the aggregates of ranges apart. A shard's keys never change, so a stream is listed once, when needed.

    But a stream may be deleted and made anew with the same name, and then its shards have the ids of others.

    Args:
        backend: lists the shards.
    """

    def __init__(self, backend: ReaderBackend) -> None:
        self._backend = backend
        self._ranges: dict[tuple[str, str], HashKeyRange] = {}
        self._expired: set[tuple[str, str]] = set()
        self._listed_at: dict[str, float] = {}
        self._listing: dict[str, asyncio.Lock] = {}
        self._metrics = publisher_metrics()

    def learn(self, stream: str, shards: Iterable[Shard]) -> None:
        """Take the keys of shards that somebody listed or that continue another."""
        for shard in shards:
            keys = HashKeyRange.of(shard.starting_hash_key, shard.ending_hash_key)
            self._ranges[stream, shard.shard_id] = keys

    def look_again(self, streams: Iterable[str]) -> None:
        """List these streams before the next aggregate is taken apart: they may not be those of before."""
        anew = set(streams)
        self._listed_at = {stream: at for stream, at in self._listed_at.items() if stream not in anew}
        self._expired = {key for key in self._expired if key[0] not in anew}

    async def take_apart(
        self, records: pa.RecordBatch, stream: str, shard_id: str, *, retry_patience: timedelta
    ) -> Iterable[pa.RecordBatch]:
        """Give the user records, USER_RECORD_SCHEMA, or the records as they are when none is an aggregate.

        What an answer of ten MiB becomes could fill the memory: it is taken apart as the caller asks for more, about a
        MiB of aggregates at a time.

        They are always the same ones of the same records. Where the shard's keys are not known yet, ListShards is asked
        for as long as the patience lasts, and again for up to a minute while it does not show a shard that must be
        there. The keys of a shard that has expired are not known to anybody: its user records come with those of other
        shards.

        Raises:
            ShardFailedError: there are aggregates, and the shard's hash keys are unknown.
        """
        if not pc.call_function("starts_with", [records.column("data")], _BEGINS_WITH_MAGIC).true_count:
            return (records,)
        arrived_millis = arrived_millis_at(records, records.num_rows - 1)
        keys = await self._keys(stream, shard_id, retry_patience, arrived_millis)
        return self._take_apart(records, keys, stream, shard_id)

    def _take_apart(
        self, records: pa.RecordBatch, keys: HashKeyRange | None, stream: str, shard_id: str
    ) -> Iterator[pa.RecordBatch]:
        for part in divide_aggregates(records):
            counts = DeaggregationCounts()
            given = deaggregate(part, keys, counts=counts)
            self._metrics.deaggregated(counts, stream=stream, shard_id=shard_id)
            yield given

    async def _keys(
        self, stream: str, shard_id: str, retry_patience: timedelta, arrived_millis: int
    ) -> HashKeyRange | None:
        """Give the shard's keys; None if it has expired.

        Args:
            arrived_millis: when a record of it arrived.
        """
        key = (stream, shard_id)
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            is_known = key in self._ranges and stream in self._listed_at
            if not is_known and not (key in self._expired and self._may_have_expired(arrived_millis)):
                await self._list(stream, shard_id, retry_patience)
            if key in self._ranges:
                return self._ranges[key]
            if self._may_have_expired(arrived_millis):
                if key not in self._expired:
                    self._expired.add(key)
                    _log.warning(
                        "%s/%s is not listed any more: its aggregates are taken apart with user records of other "
                        "shards left in",
                        stream,
                        shard_id,
                    )
                return None
            if clock() - began >= _LATE_SECONDS:
                raise ShardFailedError(
                    stream=stream,
                    shard_id=shard_id,
                    code="ShardNotListed",
                    reason=f"for {_LATE_SECONDS:g} s ListShards has not shown the shard, whose records hold aggregates:"
                    " without its hash keys its own user records cannot be found",
                )
            # Without the lock: the keys of other shards may be known.
            await asyncio.sleep(_LIST_AGAIN_SECONDS)

    def _may_have_expired(self, arrived_millis: int) -> bool:
        """Whether a shard with a record that arrived then may be gone: it is listed for as long as that is kept."""
        age_millis = self._backend.service_millis() - arrived_millis
        return age_millis >= SHORTEST_RETENTION_MILLIS - CLOCK_MARGIN_MILLIS

    async def _list(self, stream: str, shard_id: str, retry_patience: timedelta) -> None:
        """List the stream, unless that has just been done."""
        clock = asyncio.get_running_loop().time
        async with self._listing.setdefault(stream, asyncio.Lock()):
            now = clock()
            # All shards of a reshard may wait for the list.
            if now - self._listed_at.get(stream, -math.inf) < _LIST_AGAIN_SECONDS:
                return
            try:
                listed = await bear(
                    partial(self._backend.list_shards, stream),
                    stream=stream,
                    shard_id=shard_id,
                    operation="ListShards",
                    patience_seconds=retry_patience.total_seconds(),
                    note=unnoted,
                    service_seconds=lambda: self._backend.service_millis() / 1000,
                )
            except (EfoConsumerError, AwsError) as error:
                code = getattr(error, "code", type(error).__name__)
                raise ShardFailedError(stream=stream, shard_id=shard_id, code=code, reason=str(error)) from error
            self.learn(stream, listed)
            self._listed_at[stream] = now
