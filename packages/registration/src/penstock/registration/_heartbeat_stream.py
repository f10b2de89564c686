"""One open Heartbeat call, as a conversation: a request, its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb


class HeartbeatStream:
    """Sends heartbeats one after the other. After any error, a cancellation included, end it and open another."""

    def __init__(self, call: Callable[[AsyncIterator[pb.HeartbeatRequest]], Any]) -> None:
        # At most one heartbeat is on its way, and the end.
        self._requests: asyncio.Queue[pb.HeartbeatRequest | None] = asyncio.Queue(maxsize=2)
        # The requests are an iterator, because gRPC's own queue leaks a task when an intercepted call is cancelled.
        self._call = call(self._send())
        self._answers: AsyncIterator[pb.HeartbeatResponse] = aiter(self._call)

    async def beat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse | None:
        """The answer to a heartbeat; None when the registry ended the stream.

        Raises:
            grpc.RpcError: the stream broke.
        """
        self._requests.put_nowait(request)
        return await anext(self._answers, None)

    def end(self) -> None:
        """Close the stream."""
        self._requests.put_nowait(None)
        self._call.cancel()

    async def _send(self) -> AsyncIterator[pb.HeartbeatRequest]:
        while (request := await self._requests.get()) is not None:
            yield request
