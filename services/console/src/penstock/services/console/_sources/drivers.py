"""The readers of drivers: listed by a directory, then each that gave a token for it asked for its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc

from penstock.efo_consumer import (
    EfoConsumerError,
    RemoteShardReader,
    SessionInfo,
    ShardCondition,
    ShardState,
    ShardStats,
)
from penstock.registration import AnnouncedReader, ReaderDirectory
from penstock.rpc import ClientSecurity, PenstockRpcError
from penstock.services.console._values import DriverReader, Kind

_AT_ONCE: Final = 32
_READER_SECONDS: Final = 1.5
_ALL_SECONDS: Final = 4.0
"""Below the collector's patience: those that do not answer take no others with them."""
_MOST_ASKED: Final = 500
_STATES: Final = {one.value: one for one in ShardState}
_Key = tuple[str, str]


class DriversSource:
    """Asks a directory for readers, and the readers themselves for their sessions.

    Args:
        make: makes the directory; it is made anew after a failure.
        address: where that is, for people.
    """

    kind = Kind.DRIVERS

    def __init__(self, make: Callable[[], ReaderDirectory], address: str) -> None:
        self.address = address
        self._make = make
        self._directory: ReaderDirectory | None = None
        self._clients: dict[_Key, RemoteShardReader] = {}

    async def fetch(self) -> tuple[DriverReader, ...]:
        """The readers that are announced, with their sessions, or why a reader does not report them.

        Raises:
            RegistrationError: the directory does not answer.
        """
        if self._directory is None:
            self._directory = self._make()
        announced = await self._directory.readers()
        to_ask = [one for one in announced if one.is_asked]
        await self._forget_but({_key(one) for one in to_ask})
        slots = asyncio.Semaphore(_AT_ONCE)
        asked = {
            _key(one): asyncio.create_task(self._sessions(one, slots), name="ask a driver's reader")
            for one in to_ask[:_MOST_ASKED]
        }
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=_ALL_SECONDS)
        finally:
            for task in asked.values():
                task.cancel()
            await asyncio.gather(*asked.values(), return_exceptions=True)
        return tuple(_driver_reader(one, asked.get(_key(one))) for one in announced)

    async def close(self) -> None:
        """End the connections."""
        directory, self._directory = self._directory, None
        await self._forget_but(set())
        if directory is not None:
            await directory.close()

    async def _sessions(self, reader: AnnouncedReader, slots: asyncio.Semaphore) -> tuple[SessionInfo, ...] | str:
        key = _key(reader)
        async with slots:
            client = self._clients.get(key)
            if client is None:
                # As tasks call it: a driver has no certificate, and the token is good for a look alone.
                security = ClientSecurity(token=reader.view_token, allow_plain_text_token=True)
                client = self._clients[key] = RemoteShardReader(reader.address, security)
            try:
                async with asyncio.timeout(_READER_SECONDS):
                    return tuple(await client.sessions(with_shards=True))
            except TimeoutError:
                return f"no answer in {_READER_SECONDS:g} s"
            except grpc.aio.AioRpcError as error:
                return error.code().name
            except (EfoConsumerError, PenstockRpcError, OSError) as error:
                return "nothing listens there" if "refused" in str(error) else str(error)

    async def _forget_but(self, wanted: set[_Key]) -> None:
        gone = [self._clients.pop(key) for key in self._clients.keys() - wanted]
        await asyncio.gather(*(one.aclose() for one in gone), return_exceptions=True)


def _key(reader: AnnouncedReader) -> _Key:
    return reader.job_id, reader.reader_id


def _told_by_driver(reader: AnnouncedReader) -> tuple[SessionInfo, ...]:
    """The session of a reader that is not asked, with those of its shards that were announced."""
    shards = tuple(
        ShardStats(
            stream_name=one.stream_name,
            shard_id=one.shard_id,
            millis_behind_latest=one.millis_behind_latest,
            records=one.records,
            bytes=one.bytes,
            subscriptions=0,
            buffered_records=0,
            buffered_bytes=one.buffered_bytes,
            replays=one.replays,
            losses=one.losses,
            condition=ShardCondition(_STATES.get(one.state, ShardState.READING), one.since_millis, one.cause),
        )
        for one in reader.worst_shards
    )
    if not shards:
        return ()
    session = SessionInfo(
        session_id=reader.query or reader.job_id,
        epoch=0,
        idle_seconds=reader.silent_seconds,
        time_to_live_seconds=None,
        shard_count=reader.shards,
        shards=shards,
        owner=reader.owner,
    )
    return (session,)


def _driver_reader(reader: AnnouncedReader, task: asyncio.Task[tuple[SessionInfo, ...] | str] | None) -> DriverReader:
    found: tuple[SessionInfo, ...] | str
    if not reader.is_asked:
        found = _told_by_driver(reader)
    elif task is None:
        found = f"only {_MOST_ASKED:,} readers are asked"
    else:
        found = "no answer in time" if task.cancelled() else task.result()
    has_answered = not isinstance(found, str)
    return DriverReader(
        job_id=reader.job_id,
        address=reader.address,
        query=reader.query,
        owner=reader.owner,
        stream_names=reader.stream_names,
        shards=reader.shards,
        troubled_shards=reader.troubled_shards,
        millis_behind_latest=reader.millis_behind_latest,
        condition=reader.condition,
        age_seconds=reader.age_seconds,
        silent_seconds=reader.silent_seconds,
        on_executor=not reader.is_asked,
        sessions=found if has_answered else (),  # type: ignore[arg-type]  # told apart above
        reason="" if has_answered else str(found),
    )
