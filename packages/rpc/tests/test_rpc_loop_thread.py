import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from penstock.rpc import LoopThread, LoopThreadClosedError, LoopThreadForkedError

WAIT_SECONDS = 10.0
CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("CALLER")


class Endless:
    """A coroutine that waits for ever, and tells when it began and that it was cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.cancelled = threading.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def give(value: str) -> str:
    await asyncio.sleep(0)
    return value


def test_a_call_returns_or_raises_what_its_coroutine_does() -> None:
    """Results and errors come as they are, from a daemon thread of the given name."""

    async def fail() -> None:
        raise KeyError("lost")

    async def where() -> threading.Thread:
        return threading.current_thread()

    with LoopThread("penstock test") as loop:
        assert loop.call(give("a")) == "a"
        with pytest.raises(KeyError, match="lost"):
            loop.call(fail())
        thread = loop.call(where())
        assert thread.name == "penstock test"
        assert thread.daemon
    assert not thread.is_alive()


def test_the_callers_context_goes_along() -> None:
    """A span of the caller is the parent of what happens on the loop."""

    async def read() -> str:
        return CALLER.get()

    token = CALLER.set("driver")
    try:
        with LoopThread("penstock test") as loop:
            assert loop.call(read()) == "driver"
    finally:
        CALLER.reset(token)


def test_a_call_that_takes_too_long_is_cancelled() -> None:
    """The time-out ends the wait, and the coroutine too."""
    endless = Endless()
    with LoopThread("penstock test") as loop:
        with pytest.raises(TimeoutError):
            loop.call(endless.run(), timeout_seconds=0.01)
        assert endless.cancelled.wait(WAIT_SECONDS)


def test_an_interrupt_cancels_the_call() -> None:
    """Ctrl-C in the thread that waits ends what it waits for."""
    endless, waiting, raised = Endless(), threading.get_ident(), threading.Event()

    def once(_number: int, _frame: object) -> None:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        endless.began.wait(WAIT_SECONDS)
        # Python may miss the first one when it comes just as the thread begins to wait.
        while not raised.wait(0.05):
            signal.pthread_kill(waiting, signal.SIGINT)

    previous = signal.signal(signal.SIGINT, once)
    thread = threading.Thread(target=interrupt)
    try:
        with LoopThread("penstock test") as loop:
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                loop.call(endless.run(), WAIT_SECONDS)
            assert endless.cancelled.wait(WAIT_SECONDS)
    finally:
        raised.set()
        thread.join()
        signal.signal(signal.SIGINT, previous)


def test_closing_ends_calls_in_progress_then_runs_what_is_last() -> None:
    """Waiting callers get an error; resources are released when no caller uses them; a second close does nothing."""
    endless = Endless()
    seen: list[str | bool] = []
    loop = LoopThread("penstock test")

    def wait() -> None:
        try:
            loop.call(endless.run())
        except LoopThreadClosedError as error:
            seen.append(error.name)

    async def last() -> None:
        seen.append(endless.cancelled.is_set())

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert endless.began.wait(WAIT_SECONDS)
    loop.close(last)
    loop.close(last)
    waiting.join(WAIT_SECONDS)
    assert sorted(map(str, seen)) == ["True", "penstock test"]
    assert loop.is_closed
    with pytest.raises(LoopThreadClosedError):
        loop.call(give("a"))


def test_a_task_that_does_not_end_does_not_hold_up_closing() -> None:
    """What ignores its cancellation is left to die with the process."""
    began = threading.Event()

    async def stubborn() -> None:
        began.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(stubborn(), name="stubborn")

    loop = LoopThread("penstock test")
    task = loop.call(start())
    assert began.wait(WAIT_SECONDS)
    loop.close(timeout_seconds=0.05)
    assert loop.is_closed
    assert not task.done()


def test_a_coroutine_of_the_loop_may_not_wait_for_itself() -> None:
    """It would never end: the error says what to do."""
    with LoopThread("penstock test") as loop:

        async def call_again() -> str:
            return loop.call(give("a"))

        with pytest.raises(RuntimeError, match="await there"):
            loop.call(call_again())


def test_an_async_generator_is_iterated_and_closed_on_the_loop() -> None:
    """Leaving the iterator early ends the generator, in its own loop."""
    ended: list[threading.Thread] = []

    async def count() -> AsyncGenerator[int, None]:
        try:
            for number in range(1000):
                await asyncio.sleep(0)
                yield number
        finally:
            ended.append(threading.current_thread())

    with LoopThread("penstock test") as loop:
        assert list(loop.iterate(count())) == list(range(1000))
        items = loop.iterate(count())
        assert next(items) == 0
        items.close()
        assert [thread.name for thread in ended] == ["penstock test"] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_leaves_the_parents_loop_alone() -> None:
    """A child has no such thread: a call says so instead of waiting for ever, and the parent still works."""
    with LoopThread("penstock test") as loop:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                loop.call(give("a"))
            except LoopThreadForkedError as error:
                loop.close()
                status = 0 if error.used_in == os.getpid() != error.made_in else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert loop.call(give("a")) == "a"


def test_closing_releases_callers_that_wait_for_an_endless_call() -> None:
    """The coroutine ignores its cancellation; its caller gets the error anyway."""
    began = threading.Event()
    seen: list[str] = []

    async def stubborn() -> None:
        began.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    def wait() -> None:
        try:
            loop.call(stubborn())
        except LoopThreadClosedError as error:
            seen.append(error.name)

    loop = LoopThread("penstock test")
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert began.wait(WAIT_SECONDS)
    loop.close(timeout_seconds=0.05)
    waiting.join(WAIT_SECONDS)
    assert seen == ["penstock test"]


def test_an_interrupt_of_an_iteration_comes_through_while_its_generator_tidies_up() -> None:
    """It is ended once, after the step that was interrupted: the generator is never used by two steps at once."""
    tidied = threading.Event()

    async def items() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            tidied.set()

    with LoopThread("penstock test") as loop:
        call = loop.call
        iterator = loop.iterate(items())
        assert next(iterator) == 1

        def interrupted(coroutine: Coroutine[Any, Any, Any]) -> None:
            loop.call = call  # type: ignore[method-assign]  # once
            with pytest.raises(TimeoutError):
                call(coroutine, 0.2)
            raise KeyboardInterrupt

        loop.call = interrupted  # type: ignore[method-assign,assignment]
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert tidied.wait(WAIT_SECONDS)
