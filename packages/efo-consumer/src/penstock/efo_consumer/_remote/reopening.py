"""A remote shard reader whose session outlives restarts of its service."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from penstock.efo_consumer._reader.follow import follow_steps
from penstock.efo_consumer._remote.client import RemoteShardReader
from penstock.efo_consumer._remote.resume import PATIENCE_SECONDS, Patience, read_retrievals, retrievals
from penstock.efo_consumer.errors import ReaderUnavailableError, SessionNotFoundError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardRange, StreamPositions
    from penstock.efo_consumer._reader.api import (
        OpenRequest,
        PositionsOptions,
        PositionsSnapshot,
        RangeOptions,
        ShardReader,
        ShardStats,
    )
    from penstock.rpc import ClientSecurity

_log = logging.getLogger(__name__)


class ReopeningShardReader:
    """A `ShardReader` over one endpoint, for one session, that outlives restarts of the service.

    A service keeps nothing: after a restart it does not know the session, which is opened again where the caller
    stands. Ranges are facts that any reader can give, so nothing is lost or doubled. Calls are tried again while the
    service cannot be reached, except the first `open`: a wrong address fails at once.

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
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._sleep = sleep
        self._request: OpenRequest | None = None
        self._epoch = 0
        """What the caller was given."""
        self._served_epoch = 0
        """The service's own, newer after each restart; 0 while it does not know the session."""

    async def open(self, request: OpenRequest) -> int:
        """See `ShardReader.open`."""
        self._served_epoch = await self._reader.open(request)
        self._request = request
        self._epoch = self._served_epoch
        return self._epoch

    async def positions(
        self, session_id: str, epoch: int, start: StreamPositions, **options: Unpack[PositionsOptions]
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`.

        Raises:
            ReaderUnavailableError: the service did not come back in time.
        """

        patience, is_forgotten = Patience(self._patience_seconds), False
        while True:
            self._check(session_id, epoch)
            try:
                if not self._served_epoch:
                    assert self._request is not None
                    self._served_epoch = await self._reader.open(replace(self._request, positions=start))
                return await self._reader.positions(session_id, self._served_epoch, start, **options)
            except SessionNotFoundError:
                self._forget()
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

        asked = retrievals(ranges, [self.endpoint], [self.endpoint], self._patience_seconds)
        async with aclosing(read_retrievals(asked, read, self._clock, self._sleep)) as batches:
            async for batch in batches:
                yield batch

    follow = follow_steps

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """See `ShardReader.commit`. A service that is gone holds nothing that matters."""
        self._check(session_id, epoch)
        if self._served_epoch:
            with suppress(ReaderUnavailableError):
                try:
                    await self._reader.commit(session_id, self._served_epoch, positions)
                except SessionNotFoundError:
                    self._forget()

    async def stats(self, session_id: str) -> list[ShardStats]:
        """See `ShardReader.stats`; nothing while the service is away."""
        try:
            return await self._reader.stats(session_id)
        except ReaderUnavailableError as error:
            _log.debug("no numbers: %s", error)
        except SessionNotFoundError:
            self._forget()
        return []

    async def close_session(self, session_id: str, epoch: int) -> None:
        """See `ShardReader.close_session`."""
        if self._served_epoch and epoch == self._epoch:
            await self._reader.close_session(session_id, self._served_epoch)

    async def aclose(self) -> None:
        """Close the connection; the session stays."""
        await self._reader.aclose()

    def _forget(self) -> None:
        _log.warning("shard reader at %s does not know the session any more; opening it again", self.endpoint)
        self._served_epoch = 0

    def _check(self, session_id: str, epoch: int) -> None:
        if self._request is None or self._request.session_id != session_id:
            raise SessionNotFoundError(session_id=session_id)
        if epoch != self._epoch:
            raise StaleEpochError(session_id=session_id, epoch=epoch, current_epoch=self._epoch)
