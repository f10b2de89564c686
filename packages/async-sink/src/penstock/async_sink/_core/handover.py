"""What becomes of entries that are given up."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from penstock.async_sink._core.dispatcher import Dispatcher
from penstock.async_sink._core.entries import RequestEntryWrapper
from penstock.async_sink._core.settlement import Termination
from penstock.async_sink._core.terminal import TerminalRecord, TerminalRecordHandler
from penstock.async_sink._telemetry.sink_telemetry import SinkTelemetry
from penstock.async_sink.errors import RecordsRejectedError, RejectedRecord, SinkError

R = TypeVar("R")


def _rejected(termination: Termination[R]) -> RejectedRecord:
    wrapper, failure = termination.wrapper, termination.failure
    return RejectedRecord(wrapper.number, wrapper.attempts, failure.error_code, failure.error_message)


class Handover(Generic[R]):
    """Hands entries that are given up to their listeners, or to the terminal record handler."""

    def __init__(
        self,
        name: str,
        destination: str,
        dispatcher: Dispatcher[R],
        telemetry: SinkTelemetry,
        terminal: TerminalRecordHandler | None,
        tasks: set[asyncio.Future[None]],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        """`tasks` are the writer's, which waits for them when it closes; `ended` is told when an asynchronous handler
        is done, with its error if it failed."""
        self._name = name
        self._destination = destination
        self._dispatcher = dispatcher
        self._telemetry = telemetry
        self._terminal = terminal
        self._takes_many = terminal is not None and terminal.takes_many
        self._tasks = tasks
        self._ended = ended

    def give_up(self, terminated: Sequence[Termination[R]], failed: bool) -> BaseException | None:
        """Tell the listeners; entries that have none go to the handler. The error that ends the writer, if any: then
        they stay in its snapshot. A writer that has `failed` hands nothing over any more."""
        if not terminated:
            return None
        self._telemetry.terminated(terminated)
        orphans: list[Termination[R]] = []
        told: list[RequestEntryWrapper[R]] = []
        for each in terminated:
            wrapper = each.wrapper
            if wrapper.listener is None:
                orphans.append(each)
            else:
                wrapper.listener.rejected(wrapper.index, wrapper.attempts, each.failure)
                told.append(wrapper)
        self._dispatcher.release_terminal(told)
        if not orphans:
            return None
        if self._terminal is None or failed:
            self.keep([each.wrapper for each in orphans])
            return RecordsRejectedError([_rejected(each) for each in orphans])
        error: BaseException | None = None
        for group in [orphans] if self._takes_many else [[each] for each in orphans]:
            if error is None:
                error = self._hand(self._terminal, group)
            else:
                self.keep([each.wrapper for each in group])
        return error

    def _hand(self, handler: TerminalRecordHandler, group: Sequence[Termination[R]]) -> BaseException | None:
        wrappers = [each.wrapper for each in group]
        try:
            pending = handler.handle([TerminalRecord.of(self._destination, each) for each in group])
        except Exception as error:
            self.keep(wrappers)
            return error
        if pending is None:
            self._handled(wrappers)
            return None
        handling = asyncio.ensure_future(pending)
        handing_over = asyncio.get_running_loop().create_task(
            self._hand_over(handling, wrappers), name=f"{self._name} hands {len(wrappers)} record(s) over"
        )
        for task in (handling, handing_over):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    async def _hand_over(self, pending: Awaitable[None], wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        try:
            await pending
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not the writer that closes: something in the handler was cancelled. Nobody would ever take these.
            self.keep(wrappers)
            self._ended(SinkError(f"{self._name}: its terminal record handler was cancelled"))
            return
        except Exception as error:
            self.keep(wrappers)
            self._ended(error)
            return
        self._handled(wrappers)
        self._ended(None)

    def keep(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """Nobody takes these; they go back to the buffer, for the snapshot."""
        self._dispatcher.release_terminal(wrappers, keep=True)

    def _handled(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        self._dispatcher.release_terminal(wrappers)
        self._telemetry.dead_lettered(len(wrappers))
