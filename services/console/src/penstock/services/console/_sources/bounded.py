"""Clients that trust no service: an answer may come too late, be too large, or hold too many entries."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import grpc

from penstock.efo_consumer import RemoteShardReader, ShardStats
from penstock.operator_attributes import RemoteStageScheduler
from penstock.registration import RemoteConsumerRegistry, RemoteReaderDirectory
from penstock.rpc import ClientSecurity, PenstockRpcError, RemoteApi, open_aio_channel

P = ParamSpec("P")
R = TypeVar("R")
MOST: Final = 1_000
"""Entries of one list that are looked at, such as sessions, shards of a session, jobs, consumers and readers."""
MOST_NESTED: Final = 5_000
"""Entries that are looked at of the lists inside the entries of an answer, in all."""
MOST_CHARACTERS: Final = 1_024
"""Length of a text in an answer; the rest is cut."""
CALL_SECONDS: Final = 2.0
MOST_ANSWER_BYTES: Final = 1024 * 1024
_END_OF_DATES_MILLIS: Final = 253_402_300_800_000
_COUNTS: Final = {"shards": "shard_count"}
"""By list: the field that says how long it is. A list without one is shown whole, or its owner is left out."""


def bounded(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The same call of a `Bounded` client, within its bounds.

    The result is made of the answer in a thread, because a thousand entries take a while. The call raises TimeoutError
    where the service does not answer in `CALL_SECONDS`.
    """
    name, signature = method.__name__, inspect.signature(method)

    async def ask(self: Bounded, *arguments: Any, **named: Any) -> Any:
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        async with asyncio.timeout(CALL_SECONDS):
            answer = await self._all(name, given, self._is_enough)
        return await asyncio.to_thread(self._bounded, name, answer, given)

    return wraps(method)(ask)  # type: ignore[return-value]  # as it


class Bounded(RemoteApi):
    """The bounds of a client: seconds, bytes and entries of each answer."""

    most = MOST
    """Entries of a list that are looked at."""
    most_nested = MOST_NESTED
    """The same of the lists inside its entries, in all."""
    left_out = 0
    """Entries of the last answer that were not looked at."""

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = open_bounded(self._endpoint, self._security)
        return self._channel

    def _is_enough(self, answer: Any) -> bool:
        return is_enough(answer, self.most)

    def _bounded(self, name: str, answer: Any, arguments: dict[str, Any]) -> Any:
        self.left_out = cut(answer, self.most, self.most_nested)
        return self.contract.result(name, answer, arguments)


class BoundedReader(Bounded, RemoteShardReader):
    """A shard reader."""

    sessions = bounded(RemoteShardReader.sessions)

    def _bounded(self, name: str, answer: Any, arguments: dict[str, Any]) -> Any:
        sessions = super()._bounded(name, answer, arguments)
        return [replace(one, shards=tuple(map(_with_a_date, one.shards))) for one in sessions]


def _with_a_date(stats: ShardStats) -> ShardStats:
    since = date_millis(stats.condition.since_millis)
    if since == stats.condition.since_millis:
        return stats
    return replace(stats, condition=replace(stats.condition, since_millis=since))


def date_millis(millis: int) -> int:
    """The milliseconds since the epoch, or 0 (unknown) where they are outside the range of dates."""
    return millis if 0 <= millis < _END_OF_DATES_MILLIS else 0


class BoundedRegistry(Bounded, RemoteConsumerRegistry):
    """A consumer registry."""

    list_consumers = bounded(RemoteConsumerRegistry.list_consumers)


class BoundedScheduler(Bounded, RemoteStageScheduler):
    """A stage scheduler."""

    list_jobs = bounded(RemoteStageScheduler.list_jobs)
    get_plan = bounded(RemoteStageScheduler.get_plan)


class BoundedDirectory(Bounded, RemoteReaderDirectory):
    """A directory of readers."""

    most_nested = 20 * MOST

    readers = bounded(RemoteReaderDirectory.readers)


def open_bounded(endpoint: str, security: ClientSecurity | None) -> grpc.aio.Channel:
    """A channel that takes no larger answer than `MOST_ANSWER_BYTES`."""
    return open_aio_channel(endpoint, security, max_message_bytes=MOST_ANSWER_BYTES)


def is_enough(answer: Any, most: int = MOST) -> bool:
    """Whether no further page of a list is asked for."""
    lists = (value for field, value in answer.ListFields() if field.is_repeated)
    return any(len(value) > most for value in lists) or answer.ByteSize() > MOST_ANSWER_BYTES // 2


def cut(answer: Any, most: int = MOST, most_nested: int = MOST_NESTED) -> int:
    """Cut an answer to its bounds, in place; returns how many entries of its lists are left out.

    Args:
        answer: a message.
        most: entries of one list.
        most_nested: entries of the lists inside its entries, in all. The first ones are kept.

    Raises:
        PenstockRpcError: the answer is one value, and has too many entries.
    """
    has_more = getattr(answer, "next_page_token", "") != ""
    # The pages that were not asked for have at least one entry.
    left_out, room = int(has_more), most_nested
    for field, value in answer.ListFields():
        if not field.is_repeated:
            if field.message_type is not None and _trim(value, room, room) is None:
                raise PenstockRpcError(f"the answer has more than {room:,} entries")
            continue
        left_out += max(0, len(value) - most)
        del value[most:]
        if has_more and field.message_type is not None and any(_is_whole(one) for one in field.message_type.fields):
            # Its lists may continue on the next page.
            left_out += 1
            del value[-1:]
        too_long = []
        for place, entry in enumerate(value if field.message_type is not None else ()):
            used = _trim(entry, room, most)
            if used is None:
                too_long.append(place)
            else:
                room -= used
        left_out += len(too_long)
        for place in reversed(too_long):
            del value[place]
    return left_out


def _is_whole(field: Any) -> bool:
    return bool(field.is_repeated) and field.name not in _COUNTS


def _trim(message: Any, room: int, most: int) -> int | None:
    """Cut texts and counted lists of a message; returns the entries of its lists, or None where they do not fit."""
    used = 0
    for field, value in message.ListFields():
        if field.is_repeated:
            fits = min(most, room - used)
            if len(value) > fits:
                count = _COUNTS.get(field.name)
                if count is None or not hasattr(message, count):
                    return None
                setattr(message, count, max(getattr(message, count), len(value)))
                del value[fits:]
            used += len(value)
        entries = value if field.is_repeated else (value,)
        if field.message_type is not None:
            for entry in entries:
                inner = _trim(entry, room - used, most)
                if inner is None:
                    return None
                used += inner
        elif field.type == field.TYPE_STRING and any(len(text) > MOST_CHARACTERS for text in entries):
            short = [text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…" for text in entries]
            if field.is_repeated:
                value[:] = short
            else:
                setattr(message, field.name, short[0])
    return used


def why(error: BaseException, patience: float = CALL_SECONDS) -> str:
    """Why a service gave no answer that can be used, for people; `patience` are the seconds that it had."""
    call = error if isinstance(error, grpc.aio.AioRpcError) else error.__cause__
    if isinstance(call, grpc.aio.AioRpcError):
        details = call.details() or ""
        # Neither gRPC's core nor its Python layer says it in another way.
        if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return f"its answer is larger than {MOST_ANSWER_BYTES // 1024**2} MiB"
    if "Connection refused" in str(error):
        # gRPC says it in three sentences, with the address in each.
        return "nothing listens there (connection refused)"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"[:MOST_CHARACTERS]
    if isinstance(error, TimeoutError):
        return f"no answer in {patience:g} s"
    return (str(error) or type(error).__name__)[:MOST_CHARACTERS]
