"""Reading streams without Spark: batches as they come, each with the positions that it leads to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer._buffer.owned_folder import remove_leftovers
from penstock.efo_consumer._consumer.checkpoint import (
    S3CheckpointStore,
    SqliteCheckpointStore,
    merged,
    parse_s3_url,
    within,
)
from penstock.efo_consumer._consumer.leases import ConsumerLeases
from penstock.efo_consumer._consumer.unfinished import Unfinished
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer._publish.diagnosis import NOT_FOUND
from penstock.efo_consumer._publish.fan_out import reader_name
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer._reader.api import FollowedBatch, OpenRequest, ShardReader, ShardStats, StreamConsumer
from penstock.efo_consumer._reader.backend import KinesisBackend
from penstock.efo_consumer._reader.config import ReaderConfig
from penstock.efo_consumer._reader.local import LocalShardReader
from penstock.efo_consumer._start.initial import resolve_starts
from penstock.efo_consumer._start.position import InitialPosition
from penstock.efo_consumer.errors import EfoConsumerConfigError, EfoConsumerError, ShardFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
    from types import TracebackType

    from penstock.efo_consumer._consumer.checkpoint import CheckpointClaim, CheckpointStore
    from penstock.efo_consumer._model.schema import RecordBatch
    from penstock.rpc import ClientSecurity

LEASE_TIMEOUT = timedelta(minutes=5)
_PATIENCE = ReaderConfig().publisher.retry_patience
MAX_RECORDS = 10_000
MAX_BYTES = 10 * 1024 * 1024
_UNBOUNDED_BYTES = 1 << 50
"""More than any buffer holds; readers take 0 for a default of their own."""
_ROWS_AT_ONCE = 1_000
_TURN_SECONDS = 0.01
"""A loop whose body never waits lets other tasks, and handlers of signals, run that often."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A user record.

    Attributes:
        stream_name: the stream.
        shard_id: the shard.
        sequence_number: decimal digits; user records of one aggregate share it.
        sub_sequence_number: its place within an aggregate, from 0; 0 for a record that is in none.
        partition_key: as its producer gave it.
        approximate_arrival_timestamp: by the service's clock, in UTC.
        data: as its producer gave it.
    """

    stream_name: str
    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    partition_key: str
    approximate_arrival_timestamp: datetime
    data: bytes


_COLUMNS = (
    "streamName",
    "shardId",
    "sequenceNumber",
    "subSequenceNumber",
    "partitionKey",
    "approximateArrivalTimestamp",
    "data",
)


def records_of(batch: pa.RecordBatch) -> Iterator[ConsumerRecord]:
    """The rows of a batch in READ_SCHEMA, in order."""
    # As Python objects they take several times the memory, and the caller may leave after the first.
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        some = batch.slice(start, _ROWS_AT_ONCE)
        yield from map(ConsumerRecord, *(some.column(name).to_pylist() for name in _COLUMNS))


@dataclass(frozen=True)
class ConsumerBatch:
    """Records, and the positions behind them.

    Attributes:
        records: READ_SCHEMA, at least one; in sequence order within each shard.
        positions: behind all records up to the last one of the batch. A consumer that begins there misses no record and
            repeats none.
        millis_behind_latest: the largest of all open shards, by Kinesis; -1 when one is not known yet.
    """

    records: RecordBatch
    positions: StreamPositions
    millis_behind_latest: int


_STARTS: Final = (
    "'LATEST', 'TRIM_HORIZON', InitialPosition.parse('AT_TIMESTAMP', '2026-01-31T12:00:00Z'), positions such as of a "
    "batch, or one of the first three for each stream by its name"
)


class Consumer:
    """An async iterator of the batches of one or more streams; an async context manager, used once.

    Of several consumers of one name the newest saves checkpoints: the others' are a `CheckpointTakenOverError`. With
    `efo` one of those that share a registry reads, and the others wait; with registries of their own they take each
    other's subscriptions, until one of them fails with a `SubscriptionTakenOverError`.

    The consumer reads no further ahead than the reader's buffers hold. Leaving a loop keeps the subscriptions; leaving
    the context ends them.

    A loop over the consumer, or over its `records`, may be left by `break`, an exception or cancellation, and a new one
    may be entered. The new loop begins with what is not finished. Asking for the next record or batch finishes the one
    before; `commit` and `checkpoint` finish a batch, too. So the record or batch in whose body the loop was left is
    handed out again: of a batch only the part that `records` has not finished. Both kinds of loop may be mixed. Only
    the newest loop may be continued; asking an older one for more is a RuntimeError.

    Args:
        streams: their names.
        efo: the name of the stream consumer to read by, registered on entry and deregistered on exit unless it was
            there before; None reads by polling.
        name: under which checkpoints are kept and leases are held: the same after a restart. Default: `efo`, or
            `default`.
        start: where to begin without a checkpoint: LATEST, TRIM_HORIZON, a time, or positions, such as of a batch; or
            one of the first three for each stream by its name.
        checkpoints: where checkpoints are kept: a SQLite file, `s3://BUCKET/FOLDER` (with the credentials of `aws`, at
            S3 or `AWS_ENDPOINT_URL_S3`), or a store, in which the start is written down at once; True for a file in
            the user's state directory, which tells endpoints apart and needs a `name` or `efo`; None keeps none.
        aws: credentials, region and endpoint.
        config: bounds and times of the reader that is made here; not with `reader`, which has its own.
        max_records: the most records of a batch. An aggregate counts as one record here, and its user records stay in
            one batch. 0 for no bound. Default: 10,000.
        max_bytes: the most bytes of a batch (data and partition keys, before aggregates are taken apart); what Kinesis
            gave in one answer may exceed it. 0 for no bound but the reader's buffers. Default: 10 MiB.
        with_encryption_type: add the columns `encryptionType` and `explicitHashKey`.
        reader: instead of one in this process, such as a `FleetShardReader`; not closed.
        registry: with `efo`, what keeps the stream consumers' leases, for consumers on several machines the same: the
            path of a SQLite file, the URL of a store (`dynamodb://TABLE`, `sqlite:///PATH`), or `host:port` of a
            registry service. Default: a file in the user's state directory.
        registry_security: how a registry service is reached; in plain text by default.
        lease_timeout: with `efo`, how long to wait for another consumer of the name that holds the lease, before an
            `AcquireTimeoutError` says which; None waits without end, as a stand-by does. Default: 5 minutes.
        clock: seconds that only grow.

    Raises:
        EfoConsumerConfigError: an option cannot work, or would do nothing beside the others; the error names it.
    """

    def __init__(
        self,
        streams: str | Sequence[str],
        *,
        efo: str | None = None,
        name: str | None = None,
        start: StreamPositions | InitialPosition | str | Mapping[str, InitialPosition | str] = "LATEST",
        checkpoints: Path | str | CheckpointStore | bool | None = True,
        aws: AwsOptions | None = None,
        config: ReaderConfig | None = None,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        with_encryption_type: bool = False,
        reader: ShardReader | None = None,
        registry: Path | str | None = None,
        registry_security: ClientSecurity | None = None,
        lease_timeout: timedelta | None = LEASE_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given = streams if isinstance(streams, Iterable) else ()
        self.streams = [given] if isinstance(given, str) else list(dict.fromkeys(given))
        if not self.streams or not all(isinstance(stream, str) and stream for stream in self.streams):
            raise EfoConsumerConfigError(option="streams", reason="needs the name of a stream, or several")
        for option, bound in (("max_records", max_records), ("max_bytes", max_bytes)):
            if bound < 0:
                raise EfoConsumerConfigError(option=option, reason="must not be negative: 0 is for no bound")
        if efo is None:
            for option, is_given in (
                ("registry", registry is not None),
                ("registry_security", registry_security is not None),
                ("lease_timeout", lease_timeout != LEASE_TIMEOUT),
            ):
                if is_given:
                    reason = "is for leases on stream consumers: give efo, the name of one, or leave it out"
                    raise EfoConsumerConfigError(option=option, reason=reason)
            if config is not None and config.publisher.record_publisher is RecordPublisherType.EFO:
                reason = "its publisher is EFO: give efo, the name of a stream consumer, or let it be POLLING"
                raise EfoConsumerConfigError(option="config", reason=reason)
        if reader is not None and config is not None:
            reason = "does not reach the reader that is given: give it to that reader, or leave one of them out"
            raise EfoConsumerConfigError(option="config", reason=reason)
        _check_start(start)
        if isinstance(start, Mapping) and (unknown := sorted(start.keys() - {*self.streams})):
            reason = f"{', '.join(unknown)} is not among the streams: name it there too, or leave it out"
            raise EfoConsumerConfigError(option="start", reason=reason)
        self.name = name or efo or "default"
        self._efo = efo
        self._start = start
        self._wants_name = checkpoints is True and not (name or efo)
        self._uses_default_store = checkpoints is True and not self._wants_name
        self._store: CheckpointStore | None = None
        self._store_url = checkpoints if isinstance(checkpoints, str) else None
        if self._store_url is not None:
            parse_s3_url(self._store_url)
        if not isinstance(checkpoints, bool | str):
            self._store = SqliteCheckpointStore(checkpoints) if isinstance(checkpoints, Path) else checkpoints
        self._aws = aws or AwsOptions()
        self._config = config or ReaderConfig()
        self._limits = (max_records, max_bytes, with_encryption_type)
        self._given_reader = reader
        self._leases = ConsumerLeases(self._aws, registry, registry_security, lease_timeout)
        self._claim: CheckpointClaim | None = None
        self._exits = AsyncExitStack()
        self._reader: ShardReader | None = None
        self._request: OpenRequest | None = None
        self._epoch = 0
        self._reached = StreamPositions({})
        """Behind all that was handed out."""
        self._unfinished: Unfinished | None = None
        """What was handed out last, unless the caller has finished it."""
        self._loop = object()
        """The newest loop of the caller."""
        self._saved: StreamPositions | None = None
        self._is_due = False
        """Whether `positions` are to be saved: the caller has finished records, and asked for an interval."""
        self._due: StreamPositions | None = None
        """Positions of an earlier loop that are to be saved. Later loops may finish more, but save none of it."""
        self._saving = asyncio.Lock()
        self._interval_seconds: float | None = None
        self._clock = clock
        self._saved_at = self._turned_at = clock()
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            session = AwsSession(self._aws)
            if self._uses_default_store:
                self._store = SqliteCheckpointStore(namespace=session.endpoint_url("kinesis"))
            if self._store_url is not None:
                self._store = S3CheckpointStore(session, self._store_url)
            if self._store is not None:
                exits.push_async_callback(self._store.close)
            # Of consumers and readers that were killed.
            await asyncio.to_thread(remove_leftovers)
            saved = None if self._store is None else await self._store.load(self.name)
            self._reached = await begin(
                session, self.streams, saved, self._start, self._config.publisher.retry_patience
            )
            consumers: tuple[StreamConsumer, ...] = ()
            if self._efo is not None:
                identity = await asyncio.to_thread(self._leases.identity, self.name)
                exits.callback(identity.close)
                exits.push_async_callback(self._leases.aclose)
                consumers = await self._leases.acquire(self.streams, self._efo, identity.job_id)
            if self._store is not None:
                # Only now: while another consumer holds the lease, it is that one which saves.
                self._claim = await self._store.claim(self.name, self.streams, reader_name())
                saved = self._claim.positions
                if saved is not None:
                    self._reached = merged(self._reached, within(saved, self.streams))
            reader = self._given_reader
            if reader is None:
                backend = KinesisBackend(session, self._config.publisher)
                reader = await exits.enter_async_context(LocalShardReader(backend, self._config))
            self._request = request = OpenRequest(
                session_id=self.name,
                positions=self._reached,
                record_publisher=RecordPublisherType.POLLING if self._efo is None else RecordPublisherType.EFO,
                consumers=consumers,
            )
            self._epoch = await reader.open(request)
            exits.push_async_callback(self._close_session, reader)
            await self._keep_start(saved)
            self._reader = reader
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # A successor that took the lease has checkpoints of its own, which must not go back.
            due = self._to_save()
            if due is not None and not self._leases.are_lost:
                await self._save(due)
            # The store stays open until a save whose caller was cancelled is done.
            async with self._saving:
                pass
        finally:
            self._reader = None
            await self._exits.aclose()

    @property
    def positions(self) -> StreamPositions:
        """Behind all records that the caller has finished, exact to the record; see `Consumer` for what is finished.

        User records of one aggregate share a position: it lies before the aggregate until all of them are finished. A
        consumer that begins there repeats those that were finished, and no other record.
        """
        return self._reached if self._unfinished is None else self._unfinished.positions

    def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        return self._iterate()

    async def checkpoint(self, batch: ConsumerBatch) -> None:
        """Save the batch's positions for the next start, and free the memory of what lies before them.

        The batch is finished then.

        Raises:
            EfoConsumerConfigError: the consumer has no place for checkpoints.
            CheckpointTakenOverError: a newer consumer of the name, by whatever registry, saves checkpoints of its own.
            CheckpointError: it cannot be written.
            LeaseLostError: a successor has taken the stream consumer, and writes checkpoints of its own.
        """
        self._needed_store()
        await self._checkpoint(batch.positions)
        await self.commit(batch)

    async def commit(self, batch: ConsumerBatch) -> None:
        """Free the memory of what lies before the batch's positions: the caller keeps the positions itself.

        The batch is finished then.
        """
        if self._unfinished is not None and self._unfinished.after == batch.positions:
            self._unfinished = None
        await self._commit(batch.positions)

    async def records(self, *, checkpoint_interval: timedelta | None = None) -> AsyncGenerator[ConsumerRecord, None]:
        """Give the records one by one. Asking for the next record finishes the one before.

        Args:
            checkpoint_interval: writes a checkpoint that often, inside a batch and while nothing comes, too, and at the
                end of the context. It holds `positions`: all records that are finished, and no other record. None
                writes no checkpoint.

        Raises:
            EfoConsumerConfigError: the consumer has no place for checkpoints, the interval is negative, or columns are
                asked for that records do not have.
            CheckpointTakenOverError: a newer consumer of the name saves checkpoints of its own.
            CheckpointError: it cannot be written.
            LeaseLostError: a successor has taken the stream consumer.
            RuntimeError: a newer loop over the consumer was entered.
        """
        if self._limits[2]:
            reason = "adds columns to batches, which records do not have: iterate over the consumer, or leave it out"
            raise EfoConsumerConfigError(option="with_encryption_type", reason=reason)
        is_saved = checkpoint_interval is not None
        if checkpoint_interval is not None:
            self._needed_store()
            if checkpoint_interval < timedelta(0):
                raise EfoConsumerConfigError(option="checkpoint_interval", reason="must not be negative")
        loop = self._enter()
        self._interval_seconds = None if checkpoint_interval is None else checkpoint_interval.total_seconds()
        if self._due is None:
            self._saved_at = self._clock()
        async with aclosing(self._steps(loop)) as steps:
            async for step in steps:
                for record in records_of(step.rest):
                    yield record
                    self._check_is_newest(loop)
                    if step is not self._unfinished:
                        # It was committed as a batch meanwhile.
                        break
                    step.finished += 1
                    self._is_due = is_saved
                    if step.is_finished:
                        self._unfinished = None
                    if self._seconds_to_checkpoint() == 0:
                        await self._checkpoint_due()
                    now = self._clock()
                    if now - self._turned_at >= _TURN_SECONDS:
                        self._turned_at = now
                        await asyncio.sleep(0)
                    if self._is_over():
                        return
                await self._commit(step.after)

    def stop(self) -> None:
        """End the loop instead of giving it another record or batch: for a signal handler of the event loop.

        The record or batch that the caller has is finished by asking for the next one, as always. Loops that are
        entered later end at once.
        """
        self._stopped.set()

    async def stats(self) -> list[ShardStats]:
        """Give the numbers of each shard."""
        return await self._open_reader().stats(self.name)

    async def _close_session(self, reader: ShardReader) -> None:
        if self._efo is not None:
            with suppress(EfoConsumerError):
                stats = await reader.stats(self.name)
                self._leases.robbed = frozenset(one.stream_name for one in stats if one.taken_over)
        await reader.close_session(self.name, self._epoch)

    async def _iterate(self) -> AsyncGenerator[ConsumerBatch, None]:
        async with aclosing(self._steps(self._enter())) as steps:
            async for step in steps:
                yield ConsumerBatch(step.rest, step.after, step.millis_behind_latest)

    def _enter(self) -> object:
        """Begin a loop; the ones before it are not continued."""
        self._open_reader()
        if self._is_due:
            self._due, self._is_due = self.positions, False
        self._loop = loop = object()
        return loop

    def _check_is_newest(self, loop: object) -> None:
        if loop is not self._loop:
            raise RuntimeError("another loop over this consumer was entered since: continue that one")

    async def _steps(self, loop: object) -> AsyncGenerator[Unfinished, None]:
        """Give what is not finished, and then what the reader brings."""
        if self._unfinished is not None:
            if self._is_over():
                return
            yield self._unfinished
            self._check_is_newest(loop)
            self._unfinished = None
        is_over = False
        while not is_over:
            try:
                async with aclosing(self._follow(loop)) as steps:
                    async for step in steps:
                        yield step
                is_over = True
            except ShardFailedError as error:
                if not await self._go_on_by_other_consumers(error):
                    raise

    async def _go_on_by_other_consumers(self, error: ShardFailedError) -> bool:
        """Read on by stream consumers that were registered again, if there are such.

        They were deregistered in a pause of this process, or by a job of another registry.
        """
        request = self._request
        if self._efo is None or request is None:
            return False
        known = {one.consumer_arn for one in request.consumers}
        consumers = await self._leases.settled(self.streams)
        if {one.consumer_arn for one in consumers} == known and error.code == NOT_FOUND:
            consumers = await self._leases.registered_again(self.streams)
        arns = [one.consumer_arn for one in consumers]
        if known.issuperset(arns):
            return False
        _log.warning("reading on by stream consumers that were registered again: %s", ", ".join(arns))
        request = replace(request, positions=self._reached, consumers=consumers, epoch=self._epoch)
        self._epoch = await self._open_reader().open(request)
        self._request = request
        return True

    async def _follow(self, loop: object) -> AsyncGenerator[Unfinished, None]:
        max_records, max_bytes, with_encryption_type = self._limits
        steps = self._open_reader().follow(
            self.name,
            self._epoch,
            self._reached,
            max_records=max_records,
            max_bytes=max_bytes or _UNBOUNDED_BYTES,
            with_encryption_type=with_encryption_type,
        )
        parts: list[pa.RecordBatch] = []
        async with aclosing(steps):
            while (step := await self._next(steps)) is not None:
                self._check_is_newest(loop)
                if step.records is not None:
                    parts.append(step.records)
                if step.reached is None:
                    continue
                before, self._reached = self._reached, step.reached.positions
                if parts:
                    records = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
                    parts = []
                    self._unfinished = Unfinished(records, before, step.reached)
                    yield self._unfinished
                    self._check_is_newest(loop)
                    self._unfinished = None
                elif self._store is not None and (self._is_due or before in (self._saved, self._due)):
                    # All records are finished and saved, or are to be saved: idle shards' positions, and what is known
                    # of these, must not grow older than the retention.
                    await self._checkpoint(self._reached)

    async def _next(self, steps: AsyncGenerator[FollowedBatch, None]) -> FollowedBatch | None:
        step = asyncio.ensure_future(anext(steps, None))
        lost = asyncio.ensure_future(self._leases.lost())
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            is_over = False
            while not is_over:
                if self._seconds_to_checkpoint() == 0:
                    await self._checkpoint_due()
                # No longer than until the next checkpoint: a quiet stream brings no step after which to write it.
                done, _ = await asyncio.wait(
                    (step, lost, stopped), timeout=self._seconds_to_checkpoint(), return_when=asyncio.FIRST_COMPLETED
                )
                is_over = bool(done)
            if lost.done():
                raise lost.result()
            return None if stopped.done() else await step
        finally:
            for task in (step, lost, stopped):
                task.cancel()
            await asyncio.gather(step, lost, stopped, return_exceptions=True)

    async def _keep_start(self, saved: StreamPositions | None) -> None:
        """LATEST resolved again, by a restart before the first checkpoint, would skip records: it is written down.

        Not in the default file: who never asks for a checkpoint there begins at `start` each time.
        """
        known = set() if saved is None else saved.streams.keys()
        new = self._reached.streams.keys() - known
        if self._store is not None and new and not self._uses_default_store:
            await self._save(within(self._reached, new))
            new = set()
        self._saved = None if new else self._reached

    def _is_over(self) -> bool:
        """Whether the caller has stopped its loops.

        Raises:
            LeaseLostError: a successor has taken the stream consumer.
        """
        self._leases.check()
        return self._stopped.is_set()

    def _to_save(self) -> StreamPositions | None:
        return self.positions if self._is_due else self._due

    def _seconds_to_checkpoint(self) -> float | None:
        """Until what is finished is to be saved: 0 if it is now, None if there is nothing to save."""
        if self._interval_seconds is None or not (self._is_due or self._due is not None):
            return None
        return max(0.0, self._saved_at + self._interval_seconds - self._clock())

    async def _checkpoint_due(self) -> None:
        due = self._to_save()
        assert due is not None
        await self._checkpoint(due)

    async def _checkpoint(self, positions: StreamPositions) -> None:
        """Save what the caller has finished."""
        self._leases.check()
        await self._save(positions)
        self._saved, self._due, self._is_due, self._saved_at = positions, None, False, self._clock()

    async def _commit(self, positions: StreamPositions) -> None:
        await self._open_reader().commit(self.name, self._epoch, positions)

    async def _save(self, positions: StreamPositions) -> None:
        store, claim = self._store, self._claim
        assert store is not None
        assert claim is not None

        async def save() -> None:
            async with self._saving:
                await store.save(claim, positions)

        # Cancelling the caller does not stop a write that has begun: later ones wait until it is done.
        await asyncio.shield(save())

    def _needed_store(self) -> CheckpointStore:
        if self._store is not None:
            return self._store
        self._open_reader()
        if self._wants_name:
            raise EfoConsumerConfigError(option="name", reason="is needed for a checkpoint to be found again")
        raise EfoConsumerConfigError(option="checkpoints", reason="is needed for a checkpoint; else use commit")

    def _open_reader(self) -> ShardReader:
        if self._reader is None:
            raise RuntimeError("use the consumer within `async with`")
        return self._reader


async def begin(
    session: AwsSession,
    streams: Sequence[str],
    saved: StreamPositions | None,
    start: StreamPositions | InitialPosition | str | Mapping[str, InitialPosition | str],
    retry_patience: timedelta = _PATIENCE,
) -> StreamPositions:
    """Give a position in each of the streams.

    Args:
        session: to Kinesis, which is asked only for streams without a checkpoint.
        streams: their names.
        saved: the checkpoint; other streams in it are left out.
        start: for streams without a checkpoint; a mapping has one for each of those.
        retry_patience: longest wait for throttles, failures, and a stream that is being created; 0 means no limit.

    Raises:
        EfoConsumerConfigError: a stream has neither a checkpoint nor a start.
        InitialPositionError: the start cannot be resolved.
    """
    given = start if isinstance(start, StreamPositions) else StreamPositions({})
    found = within(given if saved is None else merged(given, saved), streams)
    new = [stream for stream in streams if stream not in found.streams]
    given_starts = _starts(new, start)
    starts = {name: _start_of(one) if isinstance(one, str) else one for name, one in given_starts.items()}
    return merged(found, await resolve_starts(session, starts, retry_patience)) if starts else found


def _check_start(start: object) -> None:
    """Refuse what is not a start, by type and, of a text, by its name.

    Raises:
        EfoConsumerConfigError: names `start`, and what it accepts.
    """
    for one in start.values() if isinstance(start, Mapping) else [start]:
        if isinstance(one, str):
            _start_of(one)
        elif not isinstance(one, InitialPosition) and (
            isinstance(start, Mapping) or not isinstance(one, StreamPositions)
        ):
            reason = f"must be {_STARTS}, not {one!r} ({type(one).__name__})"
            raise EfoConsumerConfigError(option="start", reason=reason)


def _start_of(text: str) -> InitialPosition:
    try:
        return InitialPosition.parse(text)
    except EfoConsumerConfigError as error:
        raise EfoConsumerConfigError(option="start", reason=f"must be {_STARTS}, not {text!r}") from error


def _starts(
    new: Sequence[str], start: StreamPositions | InitialPosition | str | Mapping[str, InitialPosition | str]
) -> dict[str, InitialPosition | str]:
    if isinstance(start, StreamPositions):
        missing, starts = list(new), {}
    elif isinstance(start, Mapping):
        missing, starts = [stream for stream in new if stream not in start], {**start}
    else:
        return dict.fromkeys(new, start)
    if missing:
        raise EfoConsumerConfigError(option="start", reason=f"has no positions in {', '.join(missing)}")
    return {stream: starts[stream] for stream in new}
