"""Reads a range from Kinesis again, when no buffer holds it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.aws import AwsError
from penstock.efo_consumer._buffer.segment import position_at, rows_upto, sequence_number_at
from penstock.efo_consumer._continuity.guard import LEFT, Loss, check_streams, report
from penstock.efo_consumer._model.positions import ShardPosition, ShardRange
from penstock.efo_consumer._reader.inquiry import ShardInquiry
from penstock.efo_consumer.errors import (
    DataLossError,
    EfoConsumerError,
    RangeDeadlineError,
    ShardFailedError,
    StreamRecreatedError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._model.shards import ShardEvent
    from penstock.efo_consumer._publish.condition import ShardSign
    from penstock.efo_consumer._reader.backend import ReaderBackend

Proof = Callable[[], Awaitable[None]]
"""Proves what rests on a retention period of seconds ago; raises what `FollowedShard.prove` or `Replay.read` does."""

# GetRecords may lag by a second and call that the tip: what was promised shows up by then, or is not there.
_TIP_SECONDS = 2.0
_RETRY_SECONDS = 0.5


async def prove(proofs: Sequence[Proof]) -> None:
    """Call proofs at once: proofs of one stream then share the question how long it keeps its records.

    Raises:
        ShardReaderError: records are lost, or cannot be proved to exist.
    """
    for error in await asyncio.gather(*(proof() for proof in proofs), return_exceptions=True):
        if error is not None:
            raise error


class CheckedRead:
    """Polls a shard, and proves that nothing expired between what it gives.

    Args:
        backend: Kinesis.
        stream: name or ARN.
        shard_id: the shard.
        fail_on_data_loss: whether a loss is an error; otherwise it is counted, and what is left is given.
        created_millis: when the stream that is meant was created, if known.
    """

    def __init__(
        self,
        backend: ReaderBackend,
        stream: str,
        shard_id: str,
        *,
        fail_on_data_loss: bool,
        created_millis: int | None = None,
    ) -> None:
        self._backend = backend
        self._stream = stream
        self._shard_id = shard_id
        self._fail = fail_on_data_loss
        self._inquiry = ShardInquiry(
            backend,
            stream,
            shard_id,
            created_millis=created_millis,
            patience=lambda: backend.retry_patience,
            tell=self._report,
        )
        self._given = ShardPosition.trim_horizon()

    @property
    def is_gone(self) -> bool:
        """Whether nothing can be read any more, because the shard has expired."""
        return self._inquiry.gone is not None

    async def events(self, after: ShardPosition, *, is_open: bool | None = None) -> AsyncGenerator[ShardEvent, None]:
        """Give what the shard holds after a position, up to its end, or up to its tip while it is open.

        From a time or TRIM_HORIZON on it is what there is: only what follows is checked. Call `prove` once the last
        event that is wanted came, whatever it was.

        Args:
            after: where to begin.
            is_open: what the caller knows of the shard; None asks ListShards at the tip.

        Raises:
            DataLossError: records expired, or cannot be proved to exist, and `fail_on_data_loss` is set.
            RecordPublisherError: the shard cannot be read.
        """
        self._given = after
        read = self._inquiry.read(partial(self._checked, is_open=is_open), after, lambda: self._given)
        async with aclosing(read) as events:
            async for event in events:
                yield event

    async def _checked(self, begin: ShardPosition, *, is_open: bool | None) -> AsyncGenerator[ShardEvent, None]:
        read = self._backend.read_once(self._stream, self._shard_id, begin, is_open=is_open)
        async with aclosing(read) as events:
            async for event in events:
                records, at = event.records, self._given
                if at.sequence_number is not None and records.num_rows:
                    records = records.slice(rows_upto(records, int(at.sequence_number)))
                if records.num_rows:
                    if at.rank[0]:
                        await self._inquiry.check(at, self._backend.service_millis())
                    self._given = position_at(records, records.num_rows - 1)
                    self._inquiry.is_reported = False
                yield replace(event, records=records)

    async def prove(self) -> None:
        """Prove what rests on a retention period of seconds ago, once all events came.

        Raises:
            DataLossError: as `events`.
        """
        await self._inquiry.prove()

    def _report(self, loss: Loss, after: ShardPosition) -> None:
        report(loss, stream=self._stream, shard_id=self._shard_id, after=after, upto=LEFT, fail=self._fail)


class Replay:
    """Polls the records of a range: those that it held when it was logged, and no others.

    The range ends at its last record, which its end names. If that does not come, the oldest record that is left
    has to prove that it has expired. Offsets of version 1 do not name it, and then the range ends where a record is
    after it, the shard ends or the tip of an open shard is reached.

    Args:
        backend: Kinesis.
        shard_range: what to read.
        stall_seconds: how long answers may bring nothing new. Failures are retried for the backend's patience instead.
        fail: whether a loss is an error; otherwise it is counted, and the rest of the range is given.
        same: the streams that are known to be the ranges' streams; this one is added once that was asked.
    """

    def __init__(
        self, backend: ReaderBackend, shard_range: ShardRange, *, stall_seconds: float, fail: bool, same: set[str]
    ) -> None:
        self._backend = backend
        self._range = shard_range
        self._stall_seconds = stall_seconds
        self._deadline = math.inf
        self._limit: asyncio.Timeout | None = None
        self._fail = fail
        self._same = same
        self._inquiry = ShardInquiry(
            backend,
            shard_range.stream_name,
            shard_range.shard_id,
            created_millis=shard_range.created_millis,
            patience=lambda: backend.retry_patience,
            tell=self._report,
        )
        # Up to where the range's records were given.
        self._given = shard_range.after
        last = shard_range.upto.record
        self._last = int(last) if last else None
        after = shard_range.after.sequence_number
        self._is_empty = last == "" or (self._last is not None and after is not None and self._last <= int(after))

    async def read(self, proofs: list[Proof]) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the records, WIRE_SCHEMA.

        Args:
            proofs: takes what has to be called before the last of the records is handed on.

        Raises:
            DataLossError: records of the range expired, or cannot be proved to exist, and `fail` is set.
            StreamRecreatedError: the stream is another one of the same name.
            RangeDeadlineError: nothing new came for `stall_seconds`.
            ShardFailedError: the shard cannot be read.
        """
        if self._is_empty:
            return
        with self._errors():
            async with aclosing(self._inquiry.read(self._attempt, self._given, lambda: self._given)) as batches:
                async for batch in batches:
                    yield batch
        if not self._inquiry.is_proved:
            proofs.append(self._prove)

    async def _attempt(self, begin: ShardPosition) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give what is left of the range."""
        loop = asyncio.get_running_loop()
        began, behind = loop.time(), math.inf
        self._comes_on()
        continuation: str | None = None
        while True:
            events = self._backend.read_once(self._range.stream_name, self._range.shard_id, begin, note=self._note)
            async with aclosing(events):
                while (event := await self._next(events)) is not None:
                    millis = event.millis_behind_latest
                    leads_further = event.continuation != continuation or (millis is not None and millis < behind)
                    if event.records.num_rows or leads_further:
                        self._comes_on()
                        continuation, behind = event.continuation, behind if millis is None else millis
                    records, ends = self._select(event)
                    if records.num_rows:
                        await self._check_stream()
                        await self._check(records)
                        # Kinesis is asked from here on again, never from a position that it refused before.
                        begin = self._given
                        yield records
                        # While the caller has them, reading does not stand still.
                        self._comes_on()
                    if ends:
                        await self._check_end()
                        return
            # The tip, or the shard's end without what the range held.
            if loop.time() - began < _TIP_SECONDS:
                await asyncio.sleep(_RETRY_SECONDS)
            elif await self._is_over():
                await self._check_end()
                return
            else:
                await asyncio.sleep(_TIP_SECONDS)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise an error of reading as the failure of the shard.

        Raises:
            ShardFailedError: the shard cannot be read.
        """
        try:
            yield
        except (RangeDeadlineError, DataLossError, StreamRecreatedError):
            raise
        except (EfoConsumerError, AwsError) as error:
            raise ShardFailedError.of(error, stream=self._range.stream_name, shard_id=self._range.shard_id) from error

    async def _check_stream(self) -> None:
        """Check that the stream is not another one of the same name, which may have the same sequence numbers."""
        stream, created = self._range.stream_name, self._range.created_millis
        if created is not None and stream not in self._same:
            await check_streams(self._backend, {stream: created}, [stream])
            self._same.add(stream)

    async def _check(self, records: pa.RecordBatch) -> None:
        """Prove that nothing expired between what was given and these records."""
        first, expected, at = sequence_number_at(records, 0), self._range.upto.first_record, self._given
        self._given = position_at(records, records.num_rows - 1)
        if at.rank[0] or expected is None or self._inquiry.is_reported:
            await self._inquiry.check(at, self._backend.service_millis())
        elif first != int(expected):
            self._report(Loss(f"it began with record {expected}, and the oldest of it that is left is {first}"), at)

    async def _prove(self) -> None:
        """Prove what rests on a retention period of seconds ago.

        Raises:
            ShardReaderError: as `read`.
        """
        with self._errors():
            await self._inquiry.prove()

    async def _is_over(self) -> bool:
        """Whether no record of the range can come any more, where reading has reached the tip."""
        if self._last is None or self._given.rank >= (1, self._last):
            return True
        await self._check_stream()
        ask = partial(self._backend.oldest_record, self._range.stream_name, self._range.shard_id)
        oldest = await self._inquiry.ask(ask)
        return oldest is None or oldest.sequence_number > self._last

    async def _check_end(self) -> None:
        if self._last is not None and self._given.rank < (1, self._last):
            await self._check_stream()
            self._report(Loss(f"it ended with record {self._last}, which the stream no longer holds"), self._given)

    def _report(self, loss: Loss, after: ShardPosition) -> None:
        report(
            # A range that began at TRIM_HORIZON was promised nothing, unless it is known what it held.
            replace(loss, is_lost=loss.is_lost or self._last is not None),
            stream=self._range.stream_name,
            shard_id=self._range.shard_id,
            after=after,
            # Where no record followed, nothing is known to be left.
            upto=self._range.upto if after is self._given else LEFT,
            fail=self._fail,
        )

    def _comes_on(self) -> None:
        self._deadline = asyncio.get_running_loop().time() + self._stall_seconds

    def _note(self, sign: ShardSign, cause: str) -> None:
        # A failure that is retried is not a standstill: the patience bounds it, and the error then names the cause.
        self._comes_on()
        if self._limit is not None:
            self._limit.reschedule(self._deadline)

    async def _next(self, events: AsyncGenerator[ShardEvent, None]) -> ShardEvent | None:
        try:
            async with asyncio.timeout_at(self._deadline) as self._limit:
                return await anext(events, None)
        except TimeoutError as error:
            raise RangeDeadlineError(
                stream=self._range.stream_name,
                shard_id=self._range.shard_id,
                seconds=self._stall_seconds,
                after=str(self._given),
            ) from error
        finally:
            self._limit = None

    def _select(self, event: ShardEvent) -> tuple[pa.RecordBatch, bool]:
        """Give the event's records of the range that were not given, and whether the range ends with it."""
        records, upto = event.records, self._range.upto
        ends = bool(event.child_shards)
        # A range that began at a time or at TRIM_HORIZON begins with the record that was its first.
        passed = self._given.sequence_number or upto.first_record
        if passed is not None and records.num_rows:
            count = int(passed) if self._given.sequence_number is not None else int(passed) - 1
            records = records.slice(rows_upto(records, count))
        limit = self._last if self._last is not None else upto.sequence_number
        if limit is not None and records.num_rows:
            count = rows_upto(records, int(limit))
            ends = ends or count < records.num_rows
            records = records.slice(0, count)
            ends = ends or (count > 0 and sequence_number_at(records, count - 1) >= int(limit))
        if self._last is None and upto.sequence_number is not None and event.continuation is not None:
            ends = ends or int(event.continuation) >= int(upto.sequence_number)
        return records, ends
