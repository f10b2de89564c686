"""Announces a query's readers, and their condition: otherwise only the query would know of them."""

import asyncio
import contextlib
import heapq
import logging
import os
import secrets
import socket
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from penstock.efo_consumer import EfoConsumerError, ShardStats
from penstock.registration import (
    MOST_ANNOUNCED_SHARDS,
    AnnouncedReader,
    AnnouncedShard,
    ReaderDirectory,
    ReaderFiles,
    RemoteReaderDirectory,
)
from penstock.registration.errors import RegistrationError
from penstock.rpc import LoopThread, LoopThreadClosedError, LoopThreadForkedError, PenstockRpcError
from penstock.spark_plugin._connections import service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_log = logging.getLogger(__name__)
_INTERVAL_SECONDS = 5.0
_END_SECONDS = 2.0
_ERRORS = (RegistrationError, PenstockRpcError, EfoConsumerError, LoopThreadClosedError, OSError)


class ReaderAnnouncer:
    """Announces readers every 5 seconds until it is closed: to the registry service, or in files of this user.

    A directory that cannot be reached keeps no query from reading: it is in the log, once each time that it begins.

    Args:
        options: of the query; `registryEndpoint` says where the registry is.
        job_id: of the query.
        look: what the query's shards do, by address of their reader. Readers may come and go.
        view_token: what readers take from who looks; empty where they are not to be asked.
    """

    def __init__(
        self,
        options: KinesisOptions,
        job_id: str,
        look: Callable[[], Mapping[str, Sequence[ShardStats]]],
        view_token: str = "",
    ) -> None:
        self._options = options
        self._job_id = job_id
        self._look = look
        self._view_token = view_token
        self._readers: dict[str, AnnouncedReader] = {}
        """Those that were announced, by address."""
        self._directory: ReaderDirectory = ReaderFiles()
        if options.registry_endpoint:
            self._directory = RemoteReaderDirectory(options.registry_endpoint, service_security(options))
        self._fails = False
        self._thread = LoopThread("penstock announce readers")
        self._thread.call(self._begin())

    def close(self) -> None:
        """Withdraw the readers. In a forked child it does nothing."""
        with contextlib.suppress(TimeoutError, LoopThreadClosedError, LoopThreadForkedError):
            self._thread.call(self._end(), _END_SECONDS)
        self._thread.close()

    async def _begin(self) -> None:
        self._task = asyncio.create_task(self._announce_again(), name="announce readers")

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(*_ERRORS):
            await self._withdraw_but(())
        await self._directory.close()

    async def _announce_again(self) -> None:
        while True:
            try:
                await self._announce(await asyncio.to_thread(self._look))
                self._fails = False
            except _ERRORS as error:
                if not self._fails:
                    _log.warning("this query's readers are not shown by a console: %s", error)
                self._fails = True
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def _announce(self, found: Mapping[str, Sequence[ShardStats]]) -> None:
        await self._withdraw_but(found)
        for address, stats in found.items():
            if address not in self._readers:
                self._readers[address] = self._reader_at(address)
            await self._directory.announce(described(self._readers[address], stats))

    async def _withdraw_but(self, addresses: Container[str]) -> None:
        for address in [one for one in self._readers if one not in addresses]:
            await self._directory.withdraw(self._readers[address])
            del self._readers[address]

    def _reader_at(self, address: str) -> AnnouncedReader:
        return AnnouncedReader(
            job_id=self._job_id,
            reader_id=secrets.token_hex(16),
            address=address,
            view_token=self._view_token,
            query=self._options.job_id or self._job_id,
            owner=f"host {socket.gethostname()}, process {os.getpid()}",
            stream_names=tuple(self._options.stream_name),
        )


def described(reader: AnnouncedReader, stats: Sequence[ShardStats]) -> AnnouncedReader:
    """The reader, with what its shards are doing now."""
    troubled = [one for one in stats if one.condition.is_troubled]
    worst = min((one.condition for one in troubled), key=lambda one: one.since_millis, default=None)
    lags = [one.millis_behind_latest for one in stats if one.condition.state.value != "ended"]
    words = str(worst) if worst is not None else "; ".join(sorted({one.condition.state.value for one in stats}))
    return replace(
        reader,
        # Streams may come and go while a query runs.
        stream_names=tuple(sorted({one.stream_name for one in stats})) or reader.stream_names,
        shards=len(stats),
        troubled_shards=len(troubled),
        # One that is not known could be any.
        millis_behind_latest=-1 if -1 in lags else max(lags, default=0 if stats else -1),
        condition=words[:1_000],
        worst_shards=() if reader.is_asked else _worst(stats),
    )


def _worst(stats: Sequence[ShardStats]) -> tuple[AnnouncedShard, ...]:
    def trouble(one: ShardStats) -> tuple[bool, int]:
        return one.condition.is_troubled, one.millis_behind_latest

    return tuple(
        AnnouncedShard(
            stream_name=one.stream_name,
            shard_id=one.shard_id,
            millis_behind_latest=one.millis_behind_latest,
            records=one.records,
            bytes=one.bytes,
            buffered_bytes=one.buffered_bytes,
            replays=one.replays,
            losses=one.losses,
            state=one.condition.state.value,
            since_millis=one.condition.since_millis,
            cause=one.condition.cause[:200],
        )
        for one in heapq.nlargest(MOST_ANNOUNCED_SHARDS, stats, key=trouble)
    )
