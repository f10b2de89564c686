"""Waiting for a client until the gateway drains."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb


class UntilStopped:
    """Reads requests until the stream ends or the gateway drains."""

    def __init__(self, requests: AsyncIterator[pb.WriteRequest], stop: asyncio.Event) -> None:
        self._requests = requests
        self._stop = stop
        self.stopped = False
        self._request: pb.WriteRequest | None = None

    async def next(self) -> pb.WriteRequest | None:
        """The next request; None at the end, or when the gateway drains."""
        # A request that was read and not accepted has no acknowledgement: its client sends it again.
        return self._request if await self.unless_stopped(self._read()) else None

    async def _read(self) -> None:
        self._request = await anext(self._requests, None)

    async def unless_stopped(self, awaitable: Awaitable[Any]) -> bool:
        """Wait for that, or until the gateway drains; then what was waited for is cancelled, and the answer is False.

        Raises:
            Exception: what the awaitable raises.
        """
        wanted = asyncio.ensure_future(awaitable)
        stop = asyncio.create_task(self._stop.wait(), name="gateway drain")
        try:
            await asyncio.wait({wanted, stop}, return_when=asyncio.FIRST_COMPLETED)
            self.stopped = self._stop.is_set()
            if self.stopped:
                return False
            wanted.result()
            return True
        finally:
            for task in (wanted, stop):
                task.cancel()
            await asyncio.gather(wanted, stop, return_exceptions=True)
