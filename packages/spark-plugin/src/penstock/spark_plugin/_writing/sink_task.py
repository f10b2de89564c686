"""What a write task does with its records: the writers of their streams, until everything is acknowledged."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from penstock import async_sink
from penstock.spark_plugin.errors import SparkPluginError

_WARNINGS = 4


@dataclass(frozen=True, slots=True)
class Word:
    """What to do about it."""

    seconds: float
    """Without a sign of life."""
    warn: bool = False
    over: bool = False


class Stall:
    """Counts the seconds in which records are held and nothing happens; warns four times, then it is over."""

    def __init__(self, seconds: float) -> None:
        self._limit = seconds
        self._since: float | None = None
        self._signs = 0
        self._warned = 0

    def look(self, now: float, *, held: int, signs_of_life: int) -> Word:
        """Look again; `signs_of_life` is a number that grows with each of them."""
        if self._since is None or held == 0 or signs_of_life != self._signs:
            self._since, self._signs, self._warned = now, signs_of_life, 0
        waited = now - self._since
        if waited >= self._limit:
            return Word(waited, over=True)
        due = int(waited * (_WARNINGS + 1) / self._limit)
        if due > self._warned:
            self._warned = due
            return Word(waited, warn=True)
        return Word(waited)


class WriteSummary(async_sink.WriteSummary, WriterCommitMessage):
    """What one write task did; the sink's commit message.

    `dead_letters` are the records in `deadLetterPath`; of several tasks, `seconds` are those of the longest.
    """


def total(messages: Sequence[WriterCommitMessage | None]) -> WriteSummary:
    """The sum of the commit messages of a micro-batch or job; tasks without one count nothing."""
    return WriteSummary.total(one for one in messages if isinstance(one, WriteSummary))


MAX_OPEN_SINKS = 16
"""Writers of a task that are open at the same time; the one that was used longest ago is flushed for the next."""

_log = logging.getLogger(__name__)
_TICKS = 20


@dataclass(slots=True)
class _Open:
    writer: Any
    watching: "asyncio.Task[None] | None" = None
    is_asked: bool = False
    """Whether the task waits for it: then it has something to do, whatever it says itself."""


class SinkTask:
    """Writers by stream, on the event loop of its caller. Raises what a writer raises; then nothing is acknowledged.

    A writer that gets neither an acknowledgement nor a throttle for `stall_seconds` although it has records ends with
    the code WRITE_STALLED: a wrong endpoint must not hold a task for ever. A throttle is a sign of life, and so is what
    the `gateway` that the records go through says of its destination before they have their acknowledgement.
    """

    def __init__(
        self,
        make_sink: Callable[[str], Any],
        *,
        stall_seconds: float,
        gateway: str | None = None,
        max_open: int = MAX_OPEN_SINKS,
    ) -> None:
        self._make_sink = make_sink
        self._stall_seconds = stall_seconds
        self._gateway = gateway
        self._max_open = max_open
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self.written = WriteSummary()
        """By the writers that are closed."""

    async def write(self, stream: str, batch: Any) -> None:
        """Write a record batch to a stream; waits while its writer is full."""
        one = await self._writer(stream)
        await self._unless_over(one, one.writer.write_many(batch))

    async def finish(self) -> None:
        """Wait until all writers have their acknowledgements, and close them."""
        await asyncio.gather(*map(self._flush, self._open.values()))
        for stream in list(self._open):
            await self._close(stream)

    async def abandon(self) -> None:
        """Close the writers without flushing."""
        for stream in list(self._open):
            with suppress(Exception):  # the error that led here is the one to tell
                await self._close(stream)

    async def _flush(self, one: _Open) -> None:
        await self._unless_over(one, one.writer.flush(end_of_input=True))

    async def _unless_over(self, one: _Open, work: Coroutine[Any, Any, None]) -> None:
        """Do something with a writer; the watch ends it, should the writer itself not be able to."""
        assert one.watching is not None
        doing = asyncio.create_task(work, name="write")
        one.is_asked = True
        try:
            await asyncio.wait({doing, one.watching}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await one.watching
            await doing
        finally:
            one.is_asked = False
            doing.cancel()

    async def _writer(self, stream: str) -> _Open:
        found = self._open.get(stream)
        if found is not None:
            self._open.move_to_end(stream)
            return found
        if len(self._open) >= self._max_open:
            oldest, one = next(iter(self._open.items()))
            await self._flush(one)
            await self._close(oldest)
        found = self._open[stream] = _Open(await self._make_sink(stream).create_writer().__aenter__())
        found.watching = asyncio.create_task(self._watch(stream, found), name=f"watch {stream}")
        return found

    async def _close(self, stream: str) -> None:
        one = self._open.pop(stream)
        if one.watching is not None:
            one.watching.cancel()
            await asyncio.wait({one.watching})
        await one.writer.close()
        self.written = WriteSummary.total((self.written, WriteSummary.of(one.writer.metrics)))

    def _stalled(self, stream: str, held: int, last_failure: str) -> SparkPluginError:
        behind, cure = "", "check endpointUrl, region and the network between the executors and it"
        if self._gateway is not None:
            # It reaches the destination by an endpoint of its own.
            behind = f" behind the sink gateway {self._gateway}"
            cure = f"look at what `penstock sink --endpoint {self._gateway}` shows of it, and at the gateway's log"
        return SparkPluginError.of(
            "WRITE_STALLED",
            destination=stream,
            records=held,
            seconds=self._stall_seconds,
            behind=behind,
            last_failure=last_failure or "none",
            cure=cure,
        )

    async def _watch(self, stream: str, one: _Open) -> None:
        loop, writer = asyncio.get_running_loop(), one.writer
        stall = Stall(self._stall_seconds)
        while True:
            metrics, gauges = writer.metrics, writer.gauges()
            held = gauges.buffer_records + gauges.in_flight_messages or int(one.is_asked)
            alive = metrics.records_out + metrics.dead_lettered + metrics.throttled + metrics.signs_of_life
            word = stall.look(loop.time(), held=held, signs_of_life=alive)
            if word.warn:
                _log.warning(
                    "%s has taken none of %d record(s) for %.0f s, and is tried until %g s are over: %s",
                    stream, held, word.seconds, self._stall_seconds, metrics.last_failure or "no answer",
                )  # fmt: skip
            if word.over:
                error = self._stalled(stream, held, metrics.last_failure)
                try:
                    writer.fail(error)
                except Exception:
                    _log.debug("the writer of %s is broken", stream, exc_info=True)
                raise error
            await asyncio.sleep(min(1.0, self._stall_seconds / _TICKS))
