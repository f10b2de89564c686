"""A fleet of readers in memory whose members can be cut off, on a loop whose time is moved: for random scenarios."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import pyarrow as pa

from penstock.efo_consumer import LocalShardReader, ReaderConfig, ReaderUnavailableError, ShardRange
from penstock.efo_consumer.testing import FakeKinesis

T = TypeVar("T")


class _SkippingSelector(selectors.DefaultSelector):
    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if timeout is None and not ready:
            raise AssertionError("everybody waits, and no timer would wake anybody")
        if not ready and timeout:
            self.skipped += timeout
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """Runs timers at once, in order: after a sleep the time has passed."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Seconds that were slept."""
        return float(self._skipping.skipped)


def in_skipped_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it on a loop that skips waiting times."""
    loop = SkippingLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


class Member:
    """A reader at an endpoint: it can be cut off, heal, and be restarted."""

    def __init__(self, endpoint: str, kinesis: FakeKinesis, config: ReaderConfig, clock: Callable[[], float]) -> None:
        self.endpoint = endpoint
        self._kinesis = kinesis
        self._config = config
        self._clock = clock
        self.cut = asyncio.Event()
        self.batches_until_cut: int | None = None
        self.local = self._start()

    def _start(self) -> LocalShardReader:
        return LocalShardReader(self._kinesis, self._config, clock=self._clock)

    async def restart(self) -> None:
        """Lose all sessions and buffers."""
        old, self.local = self.local, self._start()
        await old.aclose()

    def batch_was_read(self) -> None:
        """Cut the reader off, if it is time."""
        if self.batches_until_cut is not None:
            self.batches_until_cut -= 1
            if self.batches_until_cut <= 0:
                self.batches_until_cut = None
                self.cut.set()

    def _unavailable(self) -> ReaderUnavailableError:
        return ReaderUnavailableError(endpoint=self.endpoint, reason="UNAVAILABLE: cut off")

    async def while_reached(self, call: Awaitable[T]) -> T:
        """Give the call's result, unless the reader is cut off before."""
        task = asyncio.ensure_future(call)
        cut = asyncio.ensure_future(self.cut.wait())
        try:
            await asyncio.wait([task, cut], return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                raise self._unavailable()
            return task.result()
        finally:
            for one in (task, cut):
                one.cancel()
            await asyncio.gather(task, cut, return_exceptions=True)


class Connection:
    """A `ShardReader` that reaches a member, or does not."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await self._member.while_reached(getattr(self._member.local, name)(*arguments, **options))

        return call

    async def read_range(
        self, session_id: str, ranges: Sequence[ShardRange], **options: Any
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `ShardReader.read_range`; can be cut off between two batches."""
        async with aclosing(self._member.local.read_range(session_id, ranges, **options)) as batches:
            while (batch := await self._member.while_reached(anext(batches, None))) is not None:
                yield batch
                self._member.batch_was_read()

    async def aclose(self) -> None:
        """The member stays for others."""
