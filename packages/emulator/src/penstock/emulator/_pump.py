"""The shell around a subscription: waits, encodes, sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ._eventstream import encode_event, initial_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._clock import Clock
    from ._subscription import Subscription


async def pump(subscription: Subscription, clock: Clock, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Send a subscription's frames until it ends.

    `send` returns when the transport has taken the frame: the next event is put together only then, so a stalled client
    holds one frame and no more. Cancellation closes the subscription.
    """
    changed = asyncio.Event()
    subscription.on_change = changed.set
    try:
        await send(initial_response())
        while True:
            changed.clear()
            event = subscription.poll(clock.time())
            if event is not None:
                await send(encode_event(event))
                # A fast client never makes `send` wait; the other connections want their turn.
                await asyncio.sleep(0)
            elif not subscription.ended:
                timer = clock.call_at(subscription.deadline(clock.time()), changed.set)
                try:
                    await changed.wait()
                finally:
                    timer.cancel()
            if subscription.ended:
                return
    finally:
        subscription.close()
