"""The shell around a subscription: waits, encodes, sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.emulator._http.eventstream import encode_event, initial_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.emulator._clock import Clock
    from penstock.emulator._state.subscription import Subscription

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
