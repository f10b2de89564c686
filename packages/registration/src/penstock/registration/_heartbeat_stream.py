"""One open Heartbeat call, as a conversation: many requests on their way, answers in the same order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

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
            # Both at once: answers are told apart by their order.
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
