"""The Heartbeat call at both of its ends: the client's stream, and what the servicer takes from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final, Self

import grpc

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb

_IN_FLIGHT: Final = 1_000
"""Heartbeats without an answer; whoever has one more waits."""


class HeartbeatStream:
    """Sends heartbeats without waiting for the answers of earlier ones. Over once any of them fails."""

    def __init__(self, call: Callable[[AsyncIterator[pb.HeartbeatRequest]], Any]) -> None:
        # Room for all that are in flight, and for the end.
        self._requests: asyncio.Queue[pb.HeartbeatRequest | None] = asyncio.Queue(_IN_FLIGHT + 1)
        self._places = asyncio.Semaphore(_IN_FLIGHT)
        self._unanswered: deque[asyncio.Future[pb.HeartbeatResponse | None]] = deque()
        # The requests are an iterator, because gRPC's own queue leaks a task when an intercepted call is cancelled.
        self._call = call(self._send())
        self._reading = asyncio.create_task(self._read(), name="read answers to heartbeats")

    @property
    def is_over(self) -> bool:
        """Whether no more answers come."""
        return self._reading.done()

    async def beat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse | None:
        """The answer to a heartbeat; None when the registry ended the stream before.

        Cancelling stops the waiting; the answer is dropped when it comes.

        Raises:
            grpc.RpcError: the stream broke.
        """
        async with self._places:
            if self.is_over:
                return None
            answer: asyncio.Future[pb.HeartbeatResponse | None] = asyncio.get_running_loop().create_future()
            # Both at once: answers are matched by their order.
            self._unanswered.append(answer)
            self._requests.put_nowait(request)
            return await answer

    def end(self) -> None:
        """Close the stream. Heartbeats without an answer count as ended by the registry."""
        self._call.cancel()
        self._reading.cancel()

    async def wait_ended(self) -> None:
        """Return when nothing of the stream is left."""
        await asyncio.wait({self._reading})

    async def _send(self) -> AsyncIterator[pb.HeartbeatRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self) -> None:
        error: BaseException | None = None
        try:
            async for response in self._call:
                answer = self._unanswered.popleft()
                if not answer.done():
                    answer.set_result(response)
        except grpc.RpcError as broken:
            error = broken
        finally:
            self._requests_end()
            while self._unanswered:
                answer = self._unanswered.popleft()
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)

    def _requests_end(self) -> None:
        """Let the sender end: nobody reads what it would send."""
        while not self._requests.empty():
            self._requests.get_nowait()
        self._requests.put_nowait(None)


_WAITING: Final = 1_000
"""Heartbeats that wait; a client that sends faster than they are written is held back by HTTP/2's flow control."""


class HeartbeatInbox:
    """Reads requests ahead, so that those that arrive while the store writes are written together next.

    An async context manager: its task ends with it.
    """

    def __init__(self, requests: AsyncIterator[pb.HeartbeatRequest], draining: asyncio.Event) -> None:
        self._requests = requests
        self._draining = draining
        self._queue: asyncio.Queue[pb.HeartbeatRequest | None] = asyncio.Queue(_WAITING)
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
