"""Channels that reconnect when the files of their credentials have changed: blocking, and for asyncio."""

# The published stubs make the multi-callables generic, which they are not at run time.
# mypy: disable-error-code="type-arg,misc,override"

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.rpc._security.files import FileChanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.rpc._security.security import ClientSecurity


class Generation:
    """A channel of one state of the files, and how many of its calls are open."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.calls = 0
        self.retired = False


_OPTIONS: Final = ("timeout", "metadata", "credentials", "wait_for_ready", "compression")


class Method:
    """A method with its serializers, whichever channel it is called on.

    Args:
        channel: that makes the calls.
        kind: of the method, such as `unary_stream`.
        method: its full path.
        arguments: of the channel's method of this kind, and `options`.
        token: to send with each call; asked each time.
    """

    def __init__(
        self,
        channel: Any,
        kind: str,
        method: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        token: Callable[[], str] | None,
    ) -> None:
        # Whether the method is registered means nothing but speed, and its number belongs to one channel: left out.
        names = ("request_serializer", "response_deserializer")
        given = {**dict(zip(names, arguments, strict=False)), **options}
        self.kind = kind
        self._channel = channel
        self._method = method
        self._serializers = tuple(given.get(name) for name in names)
        self._token = token
        self._made: tuple[Generation, Any] | None = None

    def on(self, generation: Generation) -> Any:
        """The channel's own multi-callable, made once a channel."""
        made = self._made
        if made is None or made[0] is not generation:
            made = generation, getattr(generation.channel, self.kind)(self._method, *self._serializers)
            self._made = made
        return made[1]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call it as a stub does."""
        options = {**dict(zip(_OPTIONS, arguments[1:], strict=False)), **options}
        if self._token is not None:
            authorization = ("authorization", f"Bearer {self._token()}")
            options["metadata"] = (*(options.get("metadata") or ()), authorization)
        return self._channel.call(self, *arguments[:1], **options)


def _of_kind(kind: str) -> Any:
    def make(self: Methods, method: str, *arguments: Any, **options: Any) -> Method:
        return Method(self, kind, method, arguments, options, self._token)

    return make


class Methods:
    """What channels of both kinds have: a `Method` for each method of a stub."""

    _token: Callable[[], str] | None

    unary_unary = _of_kind("unary_unary")
    unary_stream = _of_kind("unary_stream")
    stream_unary = _of_kind("stream_unary")
    stream_stream = _of_kind("stream_stream")


class Generations:
    """The channel to use now. What changed is looked at with each call; what is broken changes nothing."""

    def __init__(self, security: ClientSecurity, open_one: Callable[[], Any]) -> None:
        self._security = security
        self._open_one = open_one
        self._changes = FileChanges(security.stamp, "the channel stays as it was")
        self.now = Generation(open_one())

    def renew(self) -> Generation | None:
        """Take over changed files. Gives the generation that ends thereby, if one does."""
        following = self._changes.take_over(self._following)
        if following is None:
            return None
        ended, self.now = self.now, following
        ended.retired = True
        return ended

    def _following(self) -> Generation:
        self._security.check_files()
        # It connects when it is called first: nothing is to be closed where it is not taken.
        return Generation(self._open_one())


class RotatingChannel(Methods):
    """Calls go to the channel of the present files; those in progress end on theirs, which is closed thereafter."""

    def __init__(self, security: ClientSecurity, open_one: Callable[[], grpc.Channel]) -> None:
        self._token = security.token_source()
        self._generations = Generations(security, open_one)
        self._lock = threading.Lock()
        self._retired: set[Generation] = set()

    def call(self, method: Method, *arguments: Any, **options: Any) -> Any:
        """Make a call, or begin one, on the channel of the present files."""
        generation = self._begin()
        try:
            call = method.on(generation)(*arguments, **options)
        except BaseException:
            self._end(generation)
            raise
        if method.kind.endswith("_stream"):
            call.add_done_callback(lambda _: self._end(generation))
        else:
            self._end(generation)
        return call

    def _begin(self) -> Generation:
        """The generation for a call that begins now."""
        with self._lock:
            ended = self._generations.renew()
            if ended is not None:
                self._retired.add(ended)
            now = self._generations.now
            now.calls += 1
        self._close_idle()
        return now

    def _end(self, generation: Generation) -> None:
        """A call has ended."""
        with self._lock:
            generation.calls -= 1
        # Not from here: this may be a thread of the channel itself.

    def _close_idle(self) -> None:
        with self._lock:
            idle = [one for one in self._retired if one.calls == 0]
            self._retired.difference_update(idle)
        for one in idle:
            one.channel.close()

    def close(self) -> None:
        """Close all; calls in progress are cancelled."""
        with self._lock:
            channels = [self._generations.now, *self._retired]
            self._retired.clear()
        for one in channels:
            one.channel.close()

    def __enter__(self) -> RotatingChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RotatingAioChannel(Methods):
    """Calls go to the channel of the present files; those in progress end on theirs, which is closed thereafter."""

    def __init__(self, security: ClientSecurity, open_one: Callable[[], grpc.aio.Channel]) -> None:
        self._token = security.token_source()
        self._generations = Generations(security, open_one)
        self._retired: set[Generation] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def call(self, method: Method, *arguments: Any, **options: Any) -> Any:
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

    async def close(self, grace: float | None = None) -> None:
        """Close all; calls in progress get `grace` seconds."""
        generations = [self._generations.now, *self._retired]
        self._retired.clear()
        await asyncio.gather(*(one.channel.close(grace) for one in generations), *self._closing)

    async def __aenter__(self) -> RotatingAioChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
