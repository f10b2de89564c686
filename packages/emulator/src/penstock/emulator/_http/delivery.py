"""How answers and event streams go out when faults have their way with them."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.emulator._clock import sleep
from penstock.emulator._http.codec import encode_event, initial_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.emulator._clock import Clock
    from penstock.emulator._faults import Fault, FaultPlan, Target
    from penstock.emulator._state.subscription import Subscription

    Send = Callable[[bytes], Awaitable[None]]

# A drip leaves in as many drops a second, or in single bytes.
_DROPS_PER_SECOND = 10


class CutConnection(ConnectionResetError):
    """The connection has to be reset, now."""


class CutStream(Exception):
    """The HTTP/2 stream has to be reset, now; over HTTP/1.1, the connection."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What happens to an answer on its way."""

    faults: tuple[Fault, ...]

    @property
    def delay_seconds(self) -> float:
        """How long the answer waits."""
        return sum(fault.seconds for fault in self.faults if fault.kind == "delay")

    @property
    def is_lost(self) -> bool:
        """Whether the caller never gets the answer whole."""
        return any(fault.kind in ("reset", "silence") for fault in self.faults)

    @property
    def applies(self) -> bool:
        """Whether the operation is carried out."""
        return all(fault.applies for fault in self.faults if fault.kind in ("reset", "silence"))


async def send_body(body: bytes, faults: tuple[Fault, ...], clock: Clock, send: Send) -> None:
    """Send a body or a frame as the faults want it.

    Raises:
        CutConnection, CutStream: half of it was sent, and that was all.
    """
    for fault in faults:
        if fault.kind == "silence":
            await asyncio.get_running_loop().create_future()
        if fault.kind == "reset":
            await send(body[: max(1, len(body) // 2)])
            raise CutConnection if fault.scope == "connection" else CutStream
    for fault in faults:
        if fault.kind == "drip":
            drop = max(1, int(fault.bytes_per_second / _DROPS_PER_SECOND))
            for start in range(0, len(body), drop):
                await send(body[start : start + drop])
                await sleep(clock, drop / fault.bytes_per_second)
            return
    await send(body)


class FaultySend:
    """Stands between a subscription's pump and its connection, and gives each event to the fault plan."""

    def __init__(
        self, send: Send, *, subscription: Subscription, target: Target, plan: FaultPlan, clock: Clock
    ) -> None:
        self._send = send
        self._subscription = subscription
        self._target = target
        self._plan = plan
        self._clock = clock
        self._begun = False

    async def __call__(self, frame: bytes) -> None:
        """Send a frame, or what becomes of it; the initial response always passes."""
        faults = self._plan.on_event(self._target) if self._begun and self._plan else []
        self._begun = True
        if not faults:
            await self._send(frame)
            return
        for fault in faults:
            if fault.kind == "stream_error":
                # In place of the event, and the last that is sent: the client resumes after the event before it.
                self._subscription.close()
                frame = encode_event(fault.error(self._target.operation))
                break
        if any(fault.kind == "corrupt_crc" for fault in faults):
            frame = frame[:-1] + bytes([frame[-1] ^ 0xFF])
        await send_body(frame, tuple(faults), self._clock, self._send)


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a TCP reset, not with an orderly end."""
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None:
        # Lingering for no time is what makes the kernel send RST.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# How long a client that does not read may keep a subscription that is over. Seconds of real time, whatever the clock.
_PATIENCE_SECONDS = 1.0


async def pump(subscription: Subscription, clock: Clock, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Send a subscription's frames until it ends.

    `send` returns when the transport has taken the frame: the next event is put together only then, so a stalled
    client holds one frame and no more. Cancellation closes the subscription.

    Raises:
        TimeoutError: the subscription is over, and the client does not take the frame that is under way. The stream
            has to be cut.
    """
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    sending = False

    async with asyncio.timeout(None) as limit:

        async def push(frame: bytes) -> None:
            nonlocal sending
            sending = True
            await send(frame)
            sending = False

        def check() -> None:
            changed.set()
            if sending and subscription.is_over(clock.time()):
                limit.reschedule(loop.time() + _PATIENCE_SECONDS)

        subscription.on_change = check
        expiry = clock.call_at(subscription.expires, check)
        try:
            await push(initial_response())
            while not subscription.ended:
                changed.clear()
                event = subscription.poll(clock.time())
                if event is not None:
                    await push(encode_event(event))
                    # A fast client never makes `send` wait; the other connections want their turn.
                    await asyncio.sleep(0)
                elif not subscription.ended:
                    timer = clock.call_at(subscription.deadline(clock.time()), changed.set)
                    try:
                        await changed.wait()
                    finally:
                        timer.cancel()
        finally:
            expiry.cancel()
            subscription.close()
