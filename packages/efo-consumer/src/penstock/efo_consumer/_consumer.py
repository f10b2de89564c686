"""Reading streams without Spark: batches as they come, each with the positions that it leads to."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer._checkpoint import SqliteCheckpointStore
from penstock.efo_consumer._consumer_leases import ConsumerLeases
from penstock.efo_consumer._initial import resolve_initial_positions
from penstock.efo_consumer._kinesis_backend import KinesisBackend
from penstock.efo_consumer._positions import StreamPositions
from penstock.efo_consumer._publisher import RecordPublisherType
from penstock.efo_consumer._reader import LocalShardReader
from penstock.efo_consumer._reader_api import OpenRequest
from penstock.efo_consumer._reader_config import ReaderConfig
from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence
    from types import TracebackType

    from penstock.efo_consumer._checkpoint import CheckpointStore
    from penstock.efo_consumer._reader_api import FollowedBatch, ShardReader, ShardStats, StreamConsumer
    from penstock.efo_consumer._starting_position import StartingPosition


@dataclass(frozen=True)
class ConsumerBatch:
    """Records, and where they lead.

    Attributes:
        records: READ_SCHEMA, at least one; in sequence order within each shard.
        positions: behind all records so far. Whoever begins there misses nothing and repeats nothing.
        millis_behind_latest: the largest of all open shards, by Kinesis; -1 when one is not known yet.
    """

    records: pa.RecordBatch
    positions: StreamPositions
    millis_behind_latest: int


class Consumer:
    """An async iterator of the batches of one or more streams; an async context manager, used once.

    Nothing is read ahead of the caller but what the reader's buffers hold. Leaving the iteration keeps the
    subscriptions; leaving the context ends them.

    Args:
        streams: their names.
        efo: the name of the stream consumer to read by, registered on entry and deregistered on exit unless it was
            there before; None reads by polling.
        name: under which checkpoints are kept and leases are held: the same after a restart. Default: `efo`, or
            `default`.
        start: where to begin without a checkpoint: LATEST, TRIM_HORIZON, a time, or positions, such as of a batch.
        checkpoints: where checkpoints are kept: a SQLite file, or a store; None keeps none.
        aws: credentials, region and endpoint.
        config: bounds and times of the reader.
        max_records: of a batch; 0 for no bound.
        max_bytes: of a batch, about; 0 for 4 MiB.
        with_encryption_type: add the columns `encryptionType` and `explicitHashKey`.
        reader: instead of one in this process, such as a `RemoteShardReader`; not closed.
        registry_path: the registry's SQLite file. Default: in the user's state directory.
    """

    def __init__(
        self,
        streams: str | Sequence[str],
        *,
        efo: str | None = None,
        name: str | None = None,
        start: StreamPositions | StartingPosition | str = "LATEST",
        checkpoints: Path | CheckpointStore | None = None,
        aws: AwsOptions | None = None,
        config: ReaderConfig | None = None,
        max_records: int = 0,
        max_bytes: int = 0,
        with_encryption_type: bool = False,
        reader: ShardReader | None = None,
        registry_path: Path | None = None,
    ) -> None:
        self.streams = [streams] if isinstance(streams, str) else list(streams)
        if not self.streams or not all(self.streams):
            raise EfoConsumerConfigError(option="streams", reason="needs the name of a stream, or several")
        self.name = name or efo or "default"
        self._efo = efo
        self._start = start
        self._store = SqliteCheckpointStore(checkpoints) if isinstance(checkpoints, Path) else checkpoints
        self._aws = aws or AwsOptions()
        self._config = config or ReaderConfig()
        self._limits = (max_records, max_bytes, with_encryption_type)
        self._given_reader = reader
        self._leases = ConsumerLeases(self._aws, registry_path)
        self._exits = AsyncExitStack()
        self._reader: ShardReader | None = None
        self._epoch = 0
        self._positions = StreamPositions({})
        self._saved: StreamPositions | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            session = AwsSession(self._aws)
            self._positions = await self._begin(session)
            self._saved = self._positions
            consumers: tuple[StreamConsumer, ...] = ()
            if self._efo is not None:
                exits.push_async_callback(self._leases.aclose)
                consumers = await self._leases.acquire(self.streams, self._efo, self.name)
            reader = self._given_reader
            if reader is None:
                backend = KinesisBackend(session, self._config.publisher)
                reader = await exits.enter_async_context(LocalShardReader(backend, self._config))
            request = OpenRequest(
                session_id=self.name,
                positions=self._positions,
                record_publisher=RecordPublisherType.POLLING if self._efo is None else RecordPublisherType.EFO,
                consumers=consumers,
            )
            self._epoch = await reader.open(request)
            exits.push_async_callback(reader.close_session, self.name, self._epoch)
            self._reader = reader
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reader = None
        await self._exits.aclose()

    @property
    def positions(self) -> StreamPositions:
        """Behind the batch that came last."""
        return self._positions

    def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        return self._iterate()

    async def checkpoint(self, batch: ConsumerBatch) -> None:
        """Keep the batch's positions for the next start, and drop what lies before them from memory.

        Raises:
            EfoConsumerConfigError: the consumer has no place for checkpoints.
            CheckpointError: it cannot be written.
        """
        if self._store is None:
            raise EfoConsumerConfigError(option="checkpoints", reason="is needed for a checkpoint; else use commit")
        await self._store.save(self.name, batch.positions)
        self._saved = batch.positions
        await self.commit(batch)

    async def commit(self, batch: ConsumerBatch) -> None:
        """Drop what lies before the batch's positions from memory: the caller keeps the positions itself."""
        await self._open_reader().commit(self.name, self._epoch, batch.positions)

    async def stats(self) -> list[ShardStats]:
        """Give the numbers of each shard."""
        return await self._open_reader().stats(self.name)

    async def _iterate(self) -> AsyncGenerator[ConsumerBatch, None]:
        max_records, max_bytes, with_encryption_type = self._limits
        steps = self._open_reader().follow(
            self.name,
            self._epoch,
            self._positions,
            max_records=max_records,
            max_bytes=max_bytes,
            with_encryption_type=with_encryption_type,
        )
        parts: list[pa.RecordBatch] = []
        async with aclosing(steps):
            while (step := await self._next(steps)) is not None:
                if step.records is not None:
                    parts.append(step.records)
                if step.reached is None:
                    continue
                before, self._positions = self._positions, step.reached.positions
                if parts:
                    records = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
                    parts = []
                    yield ConsumerBatch(records, self._positions, step.reached.millis_behind_latest)
                elif self._store is not None and self._saved == before:
                    # Nothing is in the caller's hands: idle shards' positions must not grow older than the retention.
                    await self._store.save(self.name, self._positions)
                    self._saved = self._positions

    async def _next(self, steps: AsyncGenerator[FollowedBatch, None]) -> FollowedBatch | None:
        step = asyncio.ensure_future(anext(steps, None))
        lost = asyncio.ensure_future(self._leases.lost())
        try:
            await asyncio.wait((step, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise lost.result()
            return await step
        finally:
            step.cancel()
            lost.cancel()
            await asyncio.gather(step, lost, return_exceptions=True)

    async def _begin(self, session: AwsSession) -> StreamPositions:
        saved = await self._store.load(self.name) if self._store is not None else None
        start = self._start
        if saved is None and isinstance(start, StreamPositions):
            saved = start
        known = {} if saved is None else {s: shards for s, shards in saved.streams.items() if s in self.streams}
        new = [stream for stream in self.streams if stream not in known]
        if new:
            if isinstance(start, StreamPositions):
                raise EfoConsumerConfigError(option="start", reason=f"has no positions in {', '.join(new)}")
            found = await asyncio.to_thread(resolve_initial_positions, session, new, start)
            known |= found.streams
        return StreamPositions(known)

    def _open_reader(self) -> ShardReader:
        if self._reader is None:
            raise RuntimeError("use the consumer within `async with`")
        return self._reader
