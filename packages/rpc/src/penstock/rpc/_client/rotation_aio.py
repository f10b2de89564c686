"""An asyncio channel that goes on with a new one when the files of its credentials have changed."""

# The published stubs make the multi-callables generic, which they are not at run time.
# mypy: disable-error-code="type-arg,misc,override"

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from penstock.rpc._client.rotation import Generation, Generations, Method, Methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.rpc._security.security import ClientSecurity


class RotatingAioChannel(Methods, grpc.aio.Channel):
    """Calls go to the channel of the present files; those in progress end on theirs, which is closed thereafter."""

    def __init__(self, security: ClientSecurity, open_one: Callable[[], grpc.aio.Channel]) -> None:
        self._token = security.token_source()
        self._generations = Generations(security, open_one)
        self._retired: set[Generation] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def call(self, method: Method, _: str, *arguments: Any, **options: Any) -> Any:
        """Begin a call on the channel of the present files."""
        ended = self._generations.renew()
        if ended is not None:
            self._retired.add(ended)
            self._close_if_idle(ended)
        generation = self._generations.now
        call = method.on(generation)(*arguments, **options)
        generation.calls += 1

        def done(_: Any) -> None:
            generation.calls -= 1
            self._close_if_idle(generation)

        call.add_done_callback(done)
        return call

    def _close_if_idle(self, generation: Generation) -> None:
        if generation.calls == 0 and generation in self._retired:
            self._retired.discard(generation)
            task = asyncio.get_running_loop().create_task(
                generation.channel.close(), name="close a channel of old files"
            )
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Of the present channel."""
        state: grpc.ChannelConnectivity = self._generations.now.channel.get_state(try_to_connect)
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Of the present channel."""
        await self._generations.now.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until the present channel is connected."""
        await self._generations.now.channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Close all; calls in progress get `grace` seconds."""
        generations = [self._generations.now, *self._retired]
        self._retired.clear()
        await asyncio.gather(*(one.channel.close(grace) for one in generations), *self._closing)

    async def __aenter__(self) -> RotatingAioChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
