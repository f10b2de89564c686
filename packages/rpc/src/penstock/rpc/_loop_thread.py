"""An event loop for callers that have none: a Spark driver or task, a notebook."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from penstock.rpc.errors import LoopThreadClosedError, LoopThreadForkedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator


class Signal:
    """Waiters wait for the next notification, then look at the state again. For one event loop."""

    def __init__(self) -> None:
        # Ordered: who waits longest looks first, so that those who wait for room take turns.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify(self) -> None:
        """Wake all who wait now."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_seconds: float | None = None) -> None:
        """Return at the next notification, or when the time is over, which None never is."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await waiter
        finally:
            self._waiters.pop(waiter, None)


T = TypeVar("T")
CLOSE_SECONDS = 5.0
"""How long `close` waits by default."""


class LoopThread:
    """An event loop on a thread of its own, whose coroutines other threads call; a context manager.

    The thread is a daemon: it never keeps a process alive. It belongs to the process that made it: a child that was
    forked has no such thread, and must make its own. Trace context and other context variables of the caller go along.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._waited_for: set[concurrent.futures.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run a coroutine on the loop, wait for it, and return or raise what it does.

        When the wait ends early, by a time-out or an interrupt such as Ctrl-C, the coroutine is cancelled.

        Raises:
            LoopThreadClosedError: the loop is closed, or was closed meanwhile.
            LoopThreadForkedError: this process is a fork of the one that made the loop.
            RuntimeError: called from a coroutine on this very loop, which would wait for itself.
            TimeoutError: it took longer than `timeout_seconds`.
        """
        try:
            self._refuse_if_unusable()
        except BaseException:
            # It will not run: without this, Python would warn of a coroutine that was never awaited.
            coroutine.close()
            raise
        under_way = _Call(coroutine)
        try:
            with self._lock:
                if self._closed:
                    raise LoopThreadClosedError(self._name)
                future = asyncio.run_coroutine_threadsafe(under_way.run(), self._loop)
                self._waited_for.add(future)
            future.add_done_callback(self._waited_for.discard)
            return future.result(timeout_seconds)
        except concurrent.futures.CancelledError as error:
            if self._closed:
                raise LoopThreadClosedError(self._name) from error
            raise
        except BaseException:
            # An interrupt may come before there is a future: it is not by the future that the coroutine is cancelled.
            under_way.abandon(self._loop)
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Give what an async generator of this loop gives. Closing the iterator closes it there.

        Raises:
            LoopThreadClosedError: the loop is closed, or was closed meanwhile.
            LoopThreadForkedError: this process is a fork of the one that made the loop.
        """

        # One at a time: a step that was interrupted may still be tidying up when the end comes.
        turn = asyncio.Lock()

        async def following() -> tuple[T] | None:
            async with turn:
                async for item in items:
                    return (item,)
                return None

        async def end() -> None:
            async with turn:
                await items.aclose()

        try:
            while (item := self.call(following())) is not None:
                yield item[0]
        finally:
            # Closed meanwhile, or forked: then it has ended, or is not ours to end.
            with suppress(LoopThreadClosedError, LoopThreadForkedError):
                self.call(end())

    def close(
        self,
        last: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        timeout_seconds: float = CLOSE_SECONDS,
    ) -> None:
        """Cancel what still runs, then run `last`, then end the loop and its thread. A second call does nothing.

        In a forked child it does nothing either. What takes longer than `timeout_seconds` is left to die with the
        process; whoever waits for it gets a LoopThreadClosedError.

        Raises:
            RuntimeError: called from a coroutine on this very loop.
        """
        if os.getpid() != self._process_id:
            return
        self._refuse_own_thread()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        ending = asyncio.run_coroutine_threadsafe(_end(last), self._loop)
        try:
            with suppress(TimeoutError):
                ending.result(timeout_seconds)
        finally:
            ending.cancel()
            # What does not end stays behind; who waits for it does not.
            for future in list(self._waited_for):
                future.cancel()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_unusable(self) -> None:
        # Before the lock is taken, which another thread of the parent may have held when it forked.
        if os.getpid() != self._process_id:
            raise LoopThreadForkedError(self._name, made_in=self._process_id, used_in=os.getpid())
        self._refuse_own_thread()
        if self._closed:
            raise LoopThreadClosedError(self._name)

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"a coroutine of the loop {self._name!r} would wait for itself: await there instead")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


class _Call(Generic[T]):
    """A coroutine on the loop, which its caller may abandon at any moment."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._abandoned = False

    async def run(self) -> T:
        if self._abandoned:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel it, from another thread. Nothing happens when it has ended."""
        try:
            loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            # The loop is closed.
            self._coroutine.close()

    def _cancel(self) -> None:
        self._abandoned = True
        if self._task is None:
            self._coroutine.close()
        else:
            self._task.cancel()


async def _end(last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    try:
        if last is not None:
            await last()
    finally:
        await asyncio.get_running_loop().shutdown_asyncgens()
