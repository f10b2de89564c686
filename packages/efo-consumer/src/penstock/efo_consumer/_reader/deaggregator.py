"""Aggregates become user records: which of them a shard delivers, and what is counted and logged about the others."""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.segment import arrived_millis_at
from penstock.efo_consumer._continuity.rule import CLOCK_MARGIN_MILLIS, SHORTEST_RETENTION_MILLIS
from penstock.efo_consumer._model.hash_keys import ShardKeys, StreamKeys
from penstock.efo_consumer._publish.condition import unnoted
from penstock.efo_consumer._publish.metrics import publisher_metrics
from penstock.efo_consumer._publish.retries import bear
from penstock.efo_consumer._wire.kpl import MAGIC, DeaggregationCounts, deaggregate, divide_aggregates
from penstock.efo_consumer.errors import EfoConsumerError, ShardFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
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


_MEANINGS: Final = {
    "user_records_of_siblings": (
        "%s: %d user records of an aggregate in %s are dropped. Their keys belong to the other shard of a split, and a "
        "producer with an old list of shards sends them there again, as the Kinesis Producer Library does. A producer "
        "that packs user records without regard to shards does not, and they are lost: read with deaggregate=all then"
    ),
    "user_records_outside_shard": (
        "%s: %d user records of an aggregate in %s have keys of other shards, which no split explains. They are "
        "delivered. Their producer packs user records without regard to shards, and would lose some of them in a "
        "shard that a split makes: read with deaggregate=all, or let the producer pack them by shard"
    ),
    "malformed_user_records": (
        "%s: %d user records of an aggregate in %s have a partition key or explicit hash key that Kinesis would not "
        "accept. They are delivered with what is known of the key: correct their producer"
    ),
    "malformed": (
        "%s: %d records of %s begin like an aggregate of the Kinesis Producer Library, but are damaged or something "
        "else. They are delivered unchanged"
    ),
}
"""By count, what the first one of a stream means: the stream, the number and the shard are filled in."""
_logged: Final = set[tuple[str, str]]()


def unpack_aggregates(
    records: pa.RecordBatch,
    keys: ShardKeys | None,
    *,
    stream: str,
    shard_id: str,
    tally: DeaggregationCounts | None = None,
) -> Iterator[pa.RecordBatch]:
    """Give the user records of a batch, USER_RECORD_SCHEMA, about a MiB of aggregates at a time.

    Everything is counted in the metrics. The first time that a process drops user records of a stream, or finds some
    that do not belong to their shard or are malformed, it logs a warning.

    Args:
        records: WIRE_SCHEMA.
        keys: the keys of the shard, as for `deaggregate`.
        stream: for metrics and warnings.
        shard_id: for metrics and warnings.
        tally: incremented as well, if given.
    """
    metrics = publisher_metrics()
    for part in divide_aggregates(records):
        counts = DeaggregationCounts()
        rows = deaggregate(part, keys, counts=counts)
        metrics.deaggregated(counts, stream=stream, shard_id=shard_id)
        for name, meaning in _MEANINGS.items():
            number = getattr(counts, name)
            if number and (stream, name) not in _logged:
                _logged.add((stream, name))
                _log.warning(meaning, stream, number, shard_id)
        if tally is not None:
            tally.add(counts)
        yield rows


class Deaggregator:
    """Takes the aggregates of ranges apart. A shard's keys never change, so a stream is listed once, when needed.

    But a stream may be deleted and created again with the same name, and then its shards have the ids of others.

    Args:
        backend: lists the shards.
        keeps_all: whether user records are never dropped; then no shard is listed.
    """

    def __init__(self, backend: ReaderBackend, *, keeps_all: bool = False) -> None:
        self._backend = backend
        self.keeps_all = keeps_all
        self._streams: dict[str, StreamKeys] = {}
        self._created: dict[str, int] = {}
        self._expired: set[tuple[str, str]] = set()
        self._listed_at: dict[str, float] = {}
        self._listing: dict[str, asyncio.Lock] = {}

    def learn(self, stream: str, shards: Iterable[Shard]) -> None:
        """Take the keys of shards that were listed, or that continue another shard."""
        self._streams.setdefault(stream, StreamKeys()).learn(shards)

    def look_again(self, streams: Iterable[str], created: Mapping[str, int]) -> None:
        """List these streams before the next aggregate is taken apart: another stream may have the same name now.

        Args:
            streams: the streams.
            created: when each was created, in milliseconds since the epoch; without those for which that is unknown.
        """
        again = set(streams)
        self._listed_at = {stream: at for stream, at in self._listed_at.items() if stream not in again}
        self._expired = {key for key in self._expired if key[0] not in again}
        for stream, millis in created.items():
            # Parents that have left the list are remembered, unless the stream is a different one.
            if self._created.get(stream, millis) != millis:
                self._streams.pop(stream, None)
        self._created |= created

    async def take_apart(
        self,
        records: pa.RecordBatch,
        stream: str,
        shard_id: str,
        *,
        retry_patience: timedelta,
        tally: DeaggregationCounts | None = None,
    ) -> Iterable[pa.RecordBatch]:
        """Give the user records, USER_RECORD_SCHEMA, or the records as they are when none is an aggregate.

        What an answer of ten MiB becomes could fill the memory: it is taken apart as the caller asks for more, about a
        MiB of aggregates at a time.

        They are always the same ones of the same records. Where the shard's keys are not known yet, ListShards is asked
        for as long as the patience lasts, and again for up to a minute while it does not show a shard that must be
        there. The keys of a shard that has expired are unknown: its user records come with user records of other
        shards.

        Raises:
            ShardFailedError: there are aggregates, and the shard's hash keys are unknown.
        """
        if not pc.call_function("starts_with", [records.column("data")], _BEGINS_WITH_MAGIC).true_count:
            return (records,)
        keys = None
        if not self.keeps_all:
            arrived_millis = arrived_millis_at(records, records.num_rows - 1)
            keys = await self._keys(stream, shard_id, retry_patience, arrived_millis)
        return unpack_aggregates(records, keys, stream=stream, shard_id=shard_id, tally=tally)

    async def _keys(
        self, stream: str, shard_id: str, retry_patience: timedelta, arrived_millis: int
    ) -> ShardKeys | None:
        """Give the shard's keys; None if it has expired.

        Args:
            arrived_millis: when a record of it arrived.
        """
        key = (stream, shard_id)
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            known = self._known(stream, shard_id) if stream in self._listed_at else None
            if known is None and not (key in self._expired and self._may_have_expired(arrived_millis)):
                await self._list(stream, shard_id, retry_patience)
                known = self._known(stream, shard_id)
            if known is not None:
                return known
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

    def _known(self, stream: str, shard_id: str) -> ShardKeys | None:
        keys = self._streams.get(stream)
        return None if keys is None else keys.of(shard_id)

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
                raise ShardFailedError.of(error, stream=stream, shard_id=shard_id) from error
            self.learn(stream, listed)
            self._listed_at[stream] = now
