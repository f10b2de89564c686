"""Heartbeats of one open call, taken together as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb

_CAPACITY: Final = 1_000
"""Heartbeats that wait; a client that sends faster than they are written is held back by HTTP/2's flow control."""


class HeartbeatInbox:
    """Reads requests ahead, so that those that arrive while the store writes are written together next.

    An async context manager: its task ends with it.
    """

    def __init__(self, requests: AsyncIterator[pb.HeartbeatRequest], draining: asyncio.Event) -> None:
        self._requests = requests
        self._draining = draining
        self._queue: asyncio.Queue[pb.HeartbeatRequest | None] = asyncio.Queue(_CAPACITY)
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._read(), name="read heartbeats"),
            asyncio.create_task(self._wait_for_drain(), name="wait for drain"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self) -> list[pb.HeartbeatRequest]:
        """All that have arrived, at least one; none when the client closed its side or the server drains."""
        taken: list[pb.HeartbeatRequest] = []
        while not self._ended and (not taken or not self._queue.empty()):
            request = await self._queue.get()
            if request is None:
                self._ended = True
            else:
                taken.append(request)
        return taken

    async def _read(self) -> None:
        # A call that breaks ends like one that is closed. Not after a cancellation: nobody would make room for it.
        with contextlib.suppress(Exception):
            async for request in self._requests:
                await self._queue.put(request)
        await self._queue.put(None)

    async def _wait_for_drain(self) -> None:
        await self._draining.wait()
        await self._queue.put(None)
