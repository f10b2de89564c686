"""The readers of drivers: listed by a directory, then each that gave a token for it asked for its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import grpc

from penstock.efo_consumer import (
    EfoConsumerError,
    SessionInfo,
    ShardCondition,
    ShardState,
    ShardStats,
)
from penstock.registration import AnnouncedReader, ReaderDirectory
from penstock.rpc import ClientSecurity, PenstockRpcError
from penstock.services.console._sources.bounded import MOST, Bounded, BoundedReader, date_millis, why
from penstock.services.console._values import DriverReader, Kind

_ALL_SECONDS: Final = 4.0
"""Below the collector's patience: readers that do not answer take no others with them."""
_MOST_ASKED: Final = 500
_MOST_SHARED: Final = 10_000
"""Sessions that are looked at, and shards, of all readers together; each reader has its share of them."""
_LEAST_SHARE: Final = 20
_STATES: Final = {one.value: one for one in ShardState}
_Key = tuple[str, str]


@dataclass(frozen=True)
class _Found:
    """What a reader said when it was asked."""

    sessions: tuple[SessionInfo, ...] = ()
    left_out: int = 0
    """Sessions that were not looked at."""
    reason: str = ""
    """Why it said nothing."""


class DriversSource:
    """Asks a directory for readers, and the readers themselves for their sessions.

    Args:
        make: makes the directory, again after each failure.
        address: where that is, for people.
    """

    kind = Kind.DRIVERS

    def __init__(self, make: Callable[[], ReaderDirectory], address: str) -> None:
        self.address = address
        self._make = make
        self._directory: ReaderDirectory | None = None
        self._clients: dict[_Key, BoundedReader] = {}
        self.left_out = 0

    async def fetch(self) -> tuple[DriverReader, ...]:
        """The readers that are announced, with their sessions, or why a reader does not report them.

        Raises:
            RegistrationError: the directory does not answer.
        """
        if self._directory is None:
            self._directory = self._make()
        listed = await self._directory.readers()
        announced = listed[:MOST]
        self.left_out = len(listed) - len(announced)
        if isinstance(self._directory, Bounded):
            self.left_out += self._directory.left_out
        to_ask = [one for one in announced if one.is_asked]
        await self._forget_but({_key(one) for one in to_ask})
        share = max(_LEAST_SHARE, min(MOST, _MOST_SHARED // max(1, len(to_ask))))
        # All at once: one that keeps its caller waiting delays no other.
        asked = {
            _key(one): asyncio.create_task(self._sessions(one, share), name="ask a driver's reader")
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

    async def _sessions(self, reader: AnnouncedReader, share: int) -> _Found:
        key = _key(reader)
        client = self._clients.get(key)
        if client is None:
            # As tasks call it: a driver has no certificate, and the token is good for a look alone.
            security = ClientSecurity(token=reader.view_token, allow_plain_text_token=True)
            client = self._clients[key] = BoundedReader(reader.address, security)
        client.most = client.most_nested = share
        try:
            return _Found(tuple(await client.sessions(with_shards=True)), client.left_out)
        except (EfoConsumerError, PenstockRpcError, grpc.aio.AioRpcError, OSError, TimeoutError) as error:
            return _Found(reason=why(error))

    async def _forget_but(self, wanted: set[_Key]) -> None:
        gone = [self._clients.pop(key) for key in self._clients.keys() - wanted]
        await asyncio.gather(*(one.aclose() for one in gone), return_exceptions=True)


def _key(reader: AnnouncedReader) -> _Key:
    return reader.job_id, reader.reader_id


def _told_by_driver(reader: AnnouncedReader) -> tuple[SessionInfo, ...]:
    """The session of a reader that is not asked, with its announced shards."""
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
            condition=ShardCondition(
                _STATES.get(one.state, ShardState.READING), date_millis(one.since_millis), one.cause
            ),
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


def _driver_reader(reader: AnnouncedReader, task: asyncio.Task[_Found] | None) -> DriverReader:
    if not reader.is_asked:
        found = _Found(_told_by_driver(reader))
    elif task is None:
        found = _Found(reason=f"only {_MOST_ASKED:,} readers are asked")
    elif task.cancelled():
        found = _Found(reason="no answer in time")
    else:
        error = task.exception()
        found = task.result() if error is None else _Found(reason=f"its answer cannot be used: {why(error)}")
    sessions, strange = _of_announced(found.sessions, frozenset(reader.stream_names))
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
        sessions=sessions,
        left_out=found.left_out,
        strange_shards=strange,
        reason=found.reason,
    )


def _of_announced(sessions: tuple[SessionInfo, ...], streams: frozenset[str]) -> tuple[tuple[SessionInfo, ...], int]:
    """Sessions without shards of streams that their reader did not announce, and how many shards those are.

    A registry checks the announced streams against the rights of the job. What a reader says later is not checked.
    """
    kept, strange = [], 0
    for session in sessions:
        shards = tuple(one for one in session.shards if one.stream_name in streams)
        others = len(session.shards) - len(shards)
        strange += others
        kept.append(replace(session, shards=shards, shard_count=session.shard_count - others) if others else session)
    return tuple(kept), strange
