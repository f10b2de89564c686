"""Where records go that cannot be written."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from penstock.async_sink._core.entries import FailedAttempt
from penstock.async_sink._core.settlement import TerminalReason, Termination
from penstock.async_sink._core.writer_protocol import DeadLetterWriter

R = TypeVar("R")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TerminalRecord(Generic[R]):
    """A record that is not sent again, with what befell it."""

    destination: str
    """Name of the destination that did not take it."""
    entry: R
    """What was sent."""
    record_number: int
    """Counts the writer's records from zero, in the order of writing."""
    size_in_bytes: int
    """By the writer's measure."""
    attempts: int
    """How often it was submitted."""
    reason: TerminalReason
    """Why it is given up."""
    error_code: str
    """The destination's last code, empty when it gave none; `TimeToLiveExpired` if its time ran out while it waited."""
    error_message: str
    """The destination's last words."""
    history: tuple[FailedAttempt, ...]
    """Its latest failures, oldest first, 20 at most."""

    @classmethod
    def of(cls, destination: str, termination: Termination[R]) -> "TerminalRecord[R]":
        """The record of what the writer gave up."""
        wrapper, failure = termination.wrapper, termination.failure
        return cls(
            destination=destination,
            entry=wrapper.entry,
            record_number=wrapper.number,
            size_in_bytes=wrapper.size_in_bytes,
            attempts=wrapper.attempts,
            reason=termination.reason,
            error_code=failure.error_code,
            error_message=failure.error_message,
            history=tuple(wrapper.history or ()),
        )


class TerminalRecordHandler(Protocol):
    """Takes care of records that cannot be written.

    Until `handle` has returned, or what it returned has been awaited, the records count as held: they take room in the
    buffer, `flush(end_of_input=True)` waits for them, and they are in the snapshot. An error ends the writer, and the
    records of that call stay in its snapshot.
    """

    @property
    def takes_many(self) -> bool:
        """Whether a call may bring several records; else each comes in a call of its own. It is asked once, when the
        writer is opened."""

    async def open(self) -> None:
        """The writer opens."""

    async def close(self) -> None:
        """The writer is closed, after the last call of `handle`."""

    def handle(self, records: Sequence[TerminalRecord[Any]]) -> Awaitable[None] | None:
        """Take records that were given up at the same time."""


class CallbackHandler:
    """Calls a function with each record; it may be asynchronous. What it raises ends the writer."""

    takes_many = False

    def __init__(self, callback: Callable[[TerminalRecord[Any]], Awaitable[None] | None]) -> None:
        self._callback = callback

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    def handle(self, records: Sequence[TerminalRecord[Any]]) -> Awaitable[None] | None:
        """Call the function."""
        (record,) = records
        return self._callback(record)


class DropHandler:
    """Drops records, logs their number, and counts them; the writer's metrics count them as `dead_lettered`."""

    takes_many = True

    def __init__(self) -> None:
        self.dropped = 0
        """Records so far."""

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    def handle(self, records: Sequence[TerminalRecord[Any]]) -> None:
        """Drop the records."""
        self.dropped += len(records)
        first = records[0]
        _logger.warning(
            "%s: dropped %d record(s), the first is %d: %s %s",
            first.destination,
            len(records),
            first.record_number,
            first.reason.value,
            first.error_code,
        )


class DeadLetterHandler:
    """Writes records to another sink, such as another stream, a queue or a file; they count once it has them.

    `make_writer` makes its writer, whose converter turns a `TerminalRecord` into what that destination takes: the
    record, the error and the history. If the dead letters cannot be written either, the writer ends; those of the same
    call that were written before are then in its snapshot too.
    """

    takes_many = True

    def __init__(self, make_writer: Callable[[], DeadLetterWriter]) -> None:
        self._make_writer = make_writer
        self._writer: DeadLetterWriter | None = None
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Open the dead letters' writer."""
        self._writer = await self._make_writer().__aenter__()

    async def close(self) -> None:
        """Close it; every record that was handled is written already."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    async def handle(self, records: Sequence[TerminalRecord[Any]]) -> None:
        """Write the records and wait until they are accepted."""
        assert self._writer is not None
        async with self._writing:
            for record in records:
                await self._writer.write(record)
            await self._writer.flush(end_of_input=True)
