"""An asynchronous class for callers that have no event loop, with the same methods."""

from __future__ import annotations

import concurrent.futures
import inspect
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from penstock.rpc._loop_thread import LoopThread
from penstock.rpc.errors import LoopThreadClosedError, LoopThreadForkedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator


class _Closes(Protocol):
    async def close(self) -> None: ...


Api = TypeVar("Api", bound=_Closes)
P = ParamSpec("P")
T = TypeVar("T")


class Synchronous(Generic[Api]):
    """An object with coroutines, `_api`, whose methods other threads call; a context manager.

    It lives on a daemon thread, which never keeps the process alive, and in the process that opened it: after a fork,
    calls raise what `_forked` makes, and `close` does nothing. Methods are `synchronous(Class.method)`.
    """

    def __init__(self, name: str, open_api: Callable[[], Coroutine[Any, Any, Api]]) -> None:
        self._thread = LoopThread(name)
        try:
            self._api = self._thread.call(open_api())
        except BaseException:
            self._thread.close()
            raise

    def _closed(self) -> Exception:
        """The error of a call after `close`."""
        raise NotImplementedError

    def _forked(self, *, made_in: int, used_in: int) -> Exception:
        """The error of a call in a forked process."""
        raise NotImplementedError

    async def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What each call does on the loop; a subclass may refuse there."""
        return await call()

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with self._errors():
            return self._thread.call(self._run(call))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except LoopThreadForkedError as error:
            raise self._forked(made_in=error.made_in, used_in=error.used_in) from error
        except (LoopThreadClosedError, concurrent.futures.CancelledError) as error:
            raise self._closed() from error

    def close(self) -> None:
        """Cancel calls in progress and release everything. May be repeated."""
        self._thread.close(self._api.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@overload
def synchronous(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]: ...


@overload
def synchronous(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Iterator[T]]: ...


def synchronous(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a `Synchronous`: calls the method of this name, waits for it, and returns or raises what it does.

    An async generator becomes an iterator; closing it early ends the generator.
    """
    name = method.__name__

    def call(self: Synchronous[Any], *arguments: Any, **named: Any) -> Any:
        return self._call(partial(getattr(self._api, name), *arguments, **named))

    def follow(self: Synchronous[Any], *arguments: Any, **named: Any) -> Iterator[Any]:
        with self._errors():
            yield from self._thread.iterate(getattr(self._api, name)(*arguments, **named))

    return wraps(method)(call if inspect.iscoroutinefunction(method) else follow)
