"""Handlers of records that cannot be written."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.async_sink._core.dispatcher import Dispatcher
from penstock.async_sink._core.entries import FailedAttempt, RequestEntryWrapper
from penstock.async_sink._core.guard import Guard
from penstock.async_sink._core.settlement import TerminalReason, Termination
from penstock.async_sink._spans import SinkTelemetry
from penstock.async_sink.errors import RecordsRejectedError, RejectedRecord

if TYPE_CHECKING:
    from penstock.async_sink._core.writer import AsyncSinkWriter


R = TypeVar("R")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TerminalRecord(Generic[R]):
    """A record that is not sent again, with the history of its failures."""

    destination: str
    """Name of the destination that did not accept it."""
    entry: R
    """What was sent."""
    record_number: int
    """Counts the writer's records from zero, in the order of writing."""
    size_in_bytes: int
    """By the writer's measure."""
    attempts: int
    """Number of submissions."""
    reason: TerminalReason
    """Why it is abandoned."""
    error_code: str
    """The destination's last error code or empty; `TimeToLiveExpired` if the record expired while it waited."""
    error_message: str
    """The destination's last message."""
    history: tuple[FailedAttempt, ...]
    """Its latest failures, oldest first, 20 at most."""

    @classmethod
    def of(cls, destination: str, termination: Termination[R]) -> "TerminalRecord[R]":
        """Make the record of an abandoned entry."""
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
    """Handles records that cannot be written.

    The writer holds the records until `handle` has returned and its result was awaited: they use room in the buffer,
    `flush(end_of_input=True)` waits for them, and they are in the snapshot. An error ends the writer, and the records
    of that call stay in its snapshot.
    """

    @property
    def takes_many(self) -> bool:
        """Whether a call may pass several records; otherwise each record gets its own call. Read once, when the writer
        is opened."""

    async def open(self) -> None:
        """Called when the writer is opened; does nothing by default."""
        return

    async def close(self) -> None:
        """Called when the writer is closed, after the last call of `handle`; does nothing by default."""
        return

    def handle(self, records: Sequence[TerminalRecord[Any]]) -> Awaitable[None] | None:
        """Handle records that were abandoned at the same time."""


class CallbackHandler(TerminalRecordHandler):
    """Calls a function, which may be asynchronous, with each record. An error of the function ends the writer."""

    takes_many = False

    def __init__(self, callback: Callable[[TerminalRecord[Any]], Awaitable[None] | None]) -> None:
        self._callback = callback

    def handle(self, records: Sequence[TerminalRecord[Any]]) -> Awaitable[None] | None:
        """Call the function."""
        (record,) = records
        return self._callback(record)


class DropHandler(TerminalRecordHandler):
    """Drops, logs and counts records. The writer's metrics count them as `dead_lettered`."""

    takes_many = True

    def __init__(self) -> None:
        self.dropped = 0
        """Records so far."""

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
    """Writes records to another sink, such as another stream, a queue or a file.

    `make_writer` makes its writer, whose converter turns a `TerminalRecord` into what that destination takes: the
    record, the error and the history. If the dead letters cannot be written either, the writer fails. Letters of the
    same call that were already written are then in its snapshot too.
    """

    takes_many = True

    def __init__(self, make_writer: "Callable[[], AsyncSinkWriter[Any, Any]]") -> None:
        self._make_writer = make_writer
        self._writer: AsyncSinkWriter[Any, Any] | None = None
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Open the dead letters' writer."""
        self._writer = await self._make_writer().__aenter__()

    async def close(self) -> None:
        """Close the writer; every handled record is already written."""
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


def _rejected(termination: Termination[R]) -> RejectedRecord:
    wrapper, failure = termination.wrapper, termination.failure
    return RejectedRecord(wrapper.number, wrapper.attempts, failure.error_code, failure.error_message)


class Handover(Generic[R]):
    """Passes abandoned entries to their listeners or to the terminal record handler."""

    def __init__(
        self,
        name: str,
        destination: str,
        dispatcher: Dispatcher[R],
        telemetry: SinkTelemetry,
        terminal: TerminalRecordHandler | None,
        guard: Guard,
        tasks: set[asyncio.Future[None]],
        ended: Callable[[], None],
    ) -> None:
        """The writer waits for `tasks` when it closes. `ended` is called when an asynchronous handler has finished or
        failed."""
        self._name = name
        self._destination = destination
        self._dispatcher = dispatcher
        self._telemetry = telemetry
        self._terminal = terminal
        self._takes_many = terminal is not None and terminal.takes_many
        self._guard = guard
        self._tasks = tasks
        self._ended = ended

    def give_up(self, terminated: Sequence[Termination[R]], failed: bool) -> BaseException | None:
        """Call the listeners; entries without a listener go to the handler. Return the error that ends the writer, or
        None; after an error the entries stay in the snapshot. A writer that has `failed` calls no handler."""
        self._telemetry.terminated(terminated)
        orphans: list[Termination[R]] = []
        for each in terminated:
            wrapper = each.wrapper
            if wrapper.listener is None:
                orphans.append(each)
                continue
            is_told = self._guard.ran(wrapper.listener.rejected, wrapper.index, wrapper.attempts, each.failure)
            self._dispatcher.release_terminal([wrapper], keep=not is_told)
        if not orphans:
            return None
        if self._terminal is None or failed:
            self.keep([each.wrapper for each in orphans])
            return RecordsRejectedError([_rejected(each) for each in orphans])
        for group in [orphans] if self._takes_many else [[each] for each in orphans]:
            self._hand(self._terminal, group)
        return None

    def _hand(self, handler: TerminalRecordHandler, group: Sequence[Termination[R]]) -> None:
        wrappers = [each.wrapper for each in group]
        records = [TerminalRecord.of(self._destination, each) for each in group]

        def handle() -> asyncio.Future[None] | None:
            pending = handler.handle(records)
            return None if pending is None else asyncio.ensure_future(pending)

        handling = self._guard.call("failed", handle) if self._guard.error is None else "failed"
        if isinstance(handling, str):
            self.keep(wrappers)
        elif handling is None:
            self._handled(wrappers)
        else:
            handing_over = asyncio.get_running_loop().create_task(
                self._hand_over(handling, wrappers), name=f"{self._name} hands {len(wrappers)} record(s) over"
            )
            for task in (handling, handing_over):
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, pending: Awaitable[None], wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        try:
            await pending
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                # The writer closes.
                raise
            self.keep(wrappers)
            self._guard.caught(error)
        else:
            self._handled(wrappers)
        self._ended()

    def keep(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """Return entries that no handler took to the buffer, for the snapshot."""
        self._dispatcher.release_terminal(wrappers, keep=True)

    def _handled(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        self._dispatcher.release_terminal(wrappers)
        self._telemetry.dead_lettered(len(wrappers))
