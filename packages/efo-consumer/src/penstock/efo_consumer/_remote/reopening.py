"""A remote shard reader whose session outlives restarts of its service."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer._reader.follow import follow_steps
from penstock.efo_consumer._remote.client import RemoteShardReader
from penstock.efo_consumer._remote.members import KnownStats, Members
from penstock.efo_consumer._remote.resume import (
    PATIENCE_SECONDS,
    Patience,
    read_retrievals,
    retrievals,
    while_alive,
)
from penstock.efo_consumer.errors import ReaderUnavailableError, SessionNotFoundError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardRange
    from penstock.efo_consumer._publish.config import Deaggregation
    from penstock.efo_consumer._reader.api import (
        OpenRequest,
        PositionsOptions,
        PositionsSnapshot,
        RangeOptions,
        ShardReader,
        ShardStats,
    )
    from penstock.rpc import ClientSecurity

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ReopeningShardReader:
    """A `ShardReader` over one endpoint, for one session, that outlives restarts of the service.

    A service keeps nothing: after a restart it does not know the session, which is opened again where the caller
    stands, by the number of the caller's run: a predecessor that asks first gets no session for longer than until the
    newer run asks. Ranges are facts that any reader can give, so nothing is lost or doubled. Calls are tried again
    while the service does not answer, except the first `open`, for which a wrong address fails at once, and `commit`
    and `stats`, for which nobody waits.

    Args:
        endpoint: `host:port`.
        security: TLS and token.
        patience_seconds: how long calls are tried again.
        clock: monotonic seconds.
        connect: makes the reader of the endpoint.
    """

    is_draining = False

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        connect: Callable[[str, ClientSecurity | None], ShardReader] = RemoteShardReader,
    ) -> None:
        self.endpoint = endpoint
        self._reader = connect(endpoint, security)
        # A lease of no end: there is nobody to whom its shards could move.
        self._members = Members([endpoint], math.inf)
        self._known = KnownStats(clock)
        self._start = StreamPositions({})
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._sleep = sleep
        self._request: OpenRequest | None = None

    @property
    def deaggregates(self) -> Deaggregation | None:
        """See `ShardReader.deaggregates`."""
        return self._reader.deaggregates

    @property
    def away(self) -> list[str]:
        """The endpoint, while it does not answer."""
        return [member.endpoint for member in self._members.lost()]

    async def open(self, request: OpenRequest) -> int:
        """See `ShardReader.open`."""
        probe = partial(self._reader.stats, request.session_id)
        epoch = await while_alive(self.endpoint, self._reader.open(request), probe)
        self._request, self._start = replace(request, epoch=epoch), request.positions
        self._members.serve(self.endpoint)
        return epoch

    async def positions(
        self, session_id: str, epoch: int, start: StreamPositions, **options: Unpack[PositionsOptions]
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`.

        Raises:
            ReaderUnavailableError: the service did not come back in time.
        """

        self._start = start
        patience, is_forgotten = Patience(self._patience_seconds), False
        while True:
            request = self._check(session_id, epoch)
            try:
                if not self._members[self.endpoint].is_open:
                    await self._call(session_id, self._reader.open(replace(request, positions=start)))
                return await self._call(session_id, self._reader.positions(session_id, epoch, start, **options))
            except SessionNotFoundError:
                if is_forgotten:
                    raise
                is_forgotten = True
                options.pop("wait_seconds", None)
            except ReaderUnavailableError as error:
                is_forgotten = False
                await self._sleep(patience.pause(error, self._clock()))

    async def read_range(
        self, session_id: str, ranges: Sequence[ShardRange], *, epoch: int = 0, **options: Unpack[RangeOptions]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `ShardReader.read_range`."""
        if epoch:
            self._check(session_id, epoch)

        def read(_: str, left: Sequence[ShardRange]) -> AsyncGenerator[pa.RecordBatch, None]:
            return self._reader.read_range(session_id, left, **options)

        asked = retrievals(ranges, [self.endpoint], list, self._patience_seconds)
        async with aclosing(read_retrievals(asked, read, self._clock, self._sleep)) as batches:
            async for batch in batches:
                yield batch

    follow = follow_steps

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """See `ShardReader.commit`. A service that does not answer holds nothing that matters."""
        self._check(session_id, epoch)
        if not self._members.lost():
            with suppress(ReaderUnavailableError, SessionNotFoundError):
                await self._call(session_id, self._reader.commit(session_id, epoch, positions))

    async def stats(self, session_id: str) -> list[ShardStats]:
        """See `ShardReader.stats`; what was reported last while the service does not answer, with the cause."""
        stats: list[ShardStats] = []
        member = self._members[self.endpoint]
        if member.failed_at is None:
            with suppress(ReaderUnavailableError, SessionNotFoundError):
                stats = await self._call(session_id, self._reader.stats(session_id))
                self._known.update(stats)
        if member.failed_at is None:
            return stats
        return self._known.waiting(self._start, member.failed_at, f"waits for its reader: {member.failure}")

    async def close_session(self, session_id: str, epoch: int) -> None:
        """See `ShardReader.close_session`."""
        if self._members[self.endpoint].is_open and self._request is not None and epoch == self._request.epoch:
            await self._call(session_id, self._reader.close_session(session_id, epoch))
            self._members.forget(self.endpoint)

    async def aclose(self) -> None:
        """Close the connection; the session stays."""
        await self._reader.aclose()

    async def _call(self, session_id: str, answer: Awaitable[_T]) -> _T:
        """Give the service's answer, and note whether it is there and knows the session."""
        try:
            found = await while_alive(self.endpoint, answer, partial(self._reader.stats, session_id))
        except ReaderUnavailableError as error:
            if self._members.fail(error, self._clock()):
                _log.warning("%s; all shards of %s wait for it", error, session_id)
            raise
        except SessionNotFoundError:
            _log.warning("shard reader at %s does not know the session any more; opening it again", self.endpoint)
            self._members.forget(self.endpoint)
            raise
        self._members.serve(self.endpoint)
        return found

    def _check(self, session_id: str, epoch: int) -> OpenRequest:
        if self._request is None or self._request.session_id != session_id:
            raise SessionNotFoundError(session_id=session_id)
        if epoch != self._request.epoch:
            raise StaleEpochError(session_id=session_id, epoch=epoch, current_epoch=self._request.epoch)
        return self._request
