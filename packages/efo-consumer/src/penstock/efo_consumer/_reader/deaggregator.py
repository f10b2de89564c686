"""The hash keys that each shard takes: which user records of an aggregate are its own."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.aws import AwsError
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


class Deaggregator:
    """Takes the aggregates of ranges apart. A shard's keys never change, so a stream is listed once, when needed.

    But a stream may be deleted and made anew with the same name, and then its shards have the ids of others.

    Args:
        backend: lists the shards.
    """

    def __init__(self, backend: ReaderBackend) -> None:
        self._backend = backend
        self._ranges: dict[tuple[str, str], HashKeyRange | None] = {}
        self._listed: set[str] = set()
        self._listing = asyncio.Lock()
        self._metrics = publisher_metrics()

    def learn(self, stream: str, shards: Iterable[Shard | Shard]) -> None:
        """Take the keys of shards that somebody listed or that continue another."""
        for shard in shards:
            keys = HashKeyRange.of(shard.starting_hash_key, shard.ending_hash_key)
            self._ranges[stream, shard.shard_id] = keys

    def look_again(self, streams: Iterable[str]) -> None:
        """List these streams before the next aggregate is taken apart: they may not be those of before."""
        self._listed.difference_update(streams)

    async def take_apart(
        self, records: pa.RecordBatch, stream: str, shard_id: str, *, retry_patience: timedelta
    ) -> Iterable[pa.RecordBatch]:
        """Give the user records, USER_RECORD_SCHEMA, or the records as they are when none is an aggregate.

        What an answer of ten MiB becomes could fill the memory: it is taken apart as the caller asks for more, about a
        MiB of aggregates at a time.

        They are always the same ones of the same records. Where the shard's keys are not known yet, ListShards is asked
        for as long as the patience lasts.

        Raises:
            ShardFailedError: there are aggregates, and the shard's keys cannot be told.
        """
        if not pc.call_function("starts_with", [records.column("data")], _BEGINS_WITH_MAGIC).true_count:
            return (records,)
        keys = await self._keys(stream, shard_id, retry_patience)
        return self._take_apart(records, keys, stream, shard_id)

    def _take_apart(
        self, records: pa.RecordBatch, keys: HashKeyRange | None, stream: str, shard_id: str
    ) -> Iterator[pa.RecordBatch]:
        for part in divide_aggregates(records):
            counts = DeaggregationCounts()
            given = deaggregate(part, keys, counts=counts)
            self._metrics.deaggregated(counts, stream=stream, shard_id=shard_id)
            yield given

    async def _keys(self, stream: str, shard_id: str, retry_patience: timedelta) -> HashKeyRange | None:
        key = (stream, shard_id)
        async with self._listing:
            if key in self._ranges and stream in self._listed:
                return self._ranges[key]
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
                self.learn(stream, listed)
                self._listed.add(stream)
            except (EfoConsumerError, AwsError) as error:
                code = getattr(error, "code", type(error).__name__)
                raise ShardFailedError(stream=stream, shard_id=shard_id, code=code, reason=str(error)) from error
            if key not in self._ranges:
                _log.warning("%s/%s is not listed any more: its aggregates are given whole", stream, shard_id)
                self._ranges[key] = None
            return self._ranges[key]
