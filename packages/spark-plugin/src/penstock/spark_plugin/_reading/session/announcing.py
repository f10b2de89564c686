"""Announces where a driver's own reader is, and how it fares: without it nobody but its query would know of it."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket

from penstock.efo_consumer import EfoConsumerError, ReaderHost, ShardStats
from penstock.registration import AnnouncedReader, ReaderDirectory, ReaderFiles, RemoteReaderDirectory
from penstock.registration.errors import RegistrationError
from penstock.rpc import LoopThread, LoopThreadClosedError, LoopThreadForkedError, PenstockRpcError
from penstock.spark_plugin._connections import service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_log = logging.getLogger(__name__)
_INTERVAL_SECONDS = 5.0
_END_SECONDS = 2.0
_ERRORS = (RegistrationError, PenstockRpcError, EfoConsumerError, LoopThreadClosedError, OSError)


class ReaderAnnouncer:
    """Announces a reader every 5 seconds until it is closed: to the registry service, or in a file of this user.

    A directory that cannot be reached keeps no query from reading: it is in the log, once each time that it begins.

    Args:
        options: of the query; `registryEndpoint` says where the registry is.
        job_id: of the query.
        host: the reader, started, with a session.
    """

    def __init__(self, options: KinesisOptions, job_id: str, host: ReaderHost) -> None:
        self._host = host
        self._reader = AnnouncedReader(
            job_id=job_id,
            reader_id=secrets.token_hex(16),
            address=host.address,
            view_token=host.view_token,
            query=options.job_id or job_id,
            owner=f"host {socket.gethostname()}, process {os.getpid()}",
            stream_names=tuple(options.stream_name),
        )
        self._directory: ReaderDirectory = ReaderFiles()
        if options.registry_endpoint:
            self._directory = RemoteReaderDirectory(options.registry_endpoint, service_security(options))
        self._fails = False
        self._thread = LoopThread("penstock announce reader")
        self._thread.call(self._begin())

    def close(self) -> None:
        """Withdraw the reader. In a forked child it does nothing."""
        with contextlib.suppress(TimeoutError, LoopThreadClosedError, LoopThreadForkedError):
            self._thread.call(self._end(), _END_SECONDS)
        self._thread.close()

    async def _begin(self) -> None:
        self._task = asyncio.create_task(self._announce_again(), name="announce reader")

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(*_ERRORS):
            await self._directory.withdraw(self._reader)
        await self._directory.close()

    async def _announce_again(self) -> None:
        while True:
            try:
                stats = await asyncio.to_thread(self._host.reader.stats)
                await self._directory.announce(described(self._reader, stats))
                self._fails = False
            except _ERRORS as error:
                if not self._fails:
                    _log.warning("this query's reader is not shown by a console: %s", error)
                self._fails = True
            await asyncio.sleep(_INTERVAL_SECONDS)


def described(reader: AnnouncedReader, stats: list[ShardStats]) -> AnnouncedReader:
    """The reader, with what its shards are doing now."""
    troubled = [one for one in stats if one.condition.is_troubled]
    worst = min((one.condition for one in troubled), key=lambda one: one.since_millis, default=None)
    lags = [one.millis_behind_latest for one in stats if one.condition.state.value != "ended"]
    words = str(worst) if worst is not None else "; ".join(sorted({one.condition.state.value for one in stats}))
    return AnnouncedReader(
        job_id=reader.job_id,
        reader_id=reader.reader_id,
        address=reader.address,
        view_token=reader.view_token,
        query=reader.query,
        owner=reader.owner,
        # Streams may come and go while a query runs.
        stream_names=tuple(sorted({one.stream_name for one in stats})) or reader.stream_names,
        shards=len(stats),
        troubled_shards=len(troubled),
        # One that is not known could be any.
        millis_behind_latest=-1 if -1 in lags else max(lags, default=0 if stats else -1),
        condition=words[:1_000],
    )
