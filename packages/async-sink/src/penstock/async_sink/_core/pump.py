"""Executes the dispatcher's decisions: requests as tasks, with time-outs, answers and spans."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from opentelemetry.trace import Span

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.dispatcher import Dispatcher
from penstock.async_sink._core.entries import (
    EntryRunListener,
    FatalExceptionClassifier,
    RequestEntryWrapper,
)
from penstock.async_sink._core.guard import Guard
from penstock.async_sink._core.held import LOOK_SECONDS, HeldRecords
from penstock.async_sink._core.runs import Batch, Part
from penstock.async_sink._core.settlement import Outcome, ResultHandler, all_failed
from penstock.async_sink._core.terminal import Handover, TerminalRecordHandler
from penstock.async_sink._spans import SinkTelemetry
from penstock.async_sink.errors import SinkError
from penstock.rpc import Signal


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """Monotonic seconds, and callbacks at a time."""

    def now(self) -> float:
        """Monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at that time, once, on the loop."""


class LoopClock:
    """The clock of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        """The loop's time."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at that time of the loop."""
        return self._loop.call_at(when, callback)


class Deadline:
    """Calls back at a time that only moves to later ones.

    Cancelling it leaves its timer to run out: nearly every batch leaves, and is answered, before its deadline.
    """

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self.at: float | None = None
        """Monotonic seconds; None while there is nothing to call back for."""
        self._clock, self._callback = clock, callback
        self._timer: Timer | None = None

    def set(self, when: float) -> None:
        """Call back at that time."""
        self.at = when
        if self._timer is None:
            self._timer = self._clock.call_at(when, self._time_has_come)

    def close(self) -> None:
        """Forget the timer too."""
        self.at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_has_come(self) -> None:
        self._timer = None
        if self.at is None:
            return
        if self.at > self._clock.now():
            self._timer = self._clock.call_at(self.at, self._time_has_come)
            return
        self.at = None
        self._callback()


_logger = logging.getLogger(__name__)

R = TypeVar("R")
Submit = Callable[[Sequence[R], ResultHandler[R]], Awaitable[None]]


class _Request(ResultHandler[R]):
    """A request in flight, until its answer or time-out."""

    batch: Batch[R]
    span: Span | None
    expires_at: float
    task: asyncio.Task[None] | None = None


def _throttled_lanes(outcome: Outcome) -> Counter[str]:
    lanes = outcome.lanes
    return Counter(lane for each in outcome.failures if each.throttled and (lane := lanes[each.index]) is not None)


class RequestPump(Generic[R]):
    """Starts requests while the dispatcher returns batches, settles answers, and runs the buffer's timer."""

    def __init__(
        self,
        name: str,
        config: AsyncSinkConfig,
        dispatcher: Dispatcher[R],
        telemetry: SinkTelemetry,
        submit: Submit[R],
        classifier: FatalExceptionClassifier,
        clock: Clock,
        guard: Guard,
        terminal: TerminalRecordHandler | None = None,
        destination: str = "",
    ) -> None:
        self._name = name
        self._destination = destination
        self._config = config
        self._dispatcher = dispatcher
        self._telemetry = telemetry
        self._submit = submit
        self._classifier = classifier
        self._clock = clock
        self._guard = guard
        self.now = clock.now
        """Monotonic seconds."""
        self._max_time_in_buffer = config.max_time_in_buffer.total_seconds()
        self._request_timeout = config.request_timeout.total_seconds()
        # In the order of sending: they are settled in it when the writer closes.
        self._requests: dict[_Request[R], None] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._handover: Handover[R] = Handover(
            name, destination, dispatcher, telemetry, terminal, guard, self._tasks, self._handed_over
        )
        self.buffer_deadline = Deadline(clock, self._time_is_up)
        """When all of the buffer leaves; set while something is in it."""
        self._request_deadline = Deadline(clock, self._expire_requests)
        self._wake_timer: Timer | None = None
        self._wake_at: float | None = None
        self._spans_timer: Timer | None = None
        self._look_timer: Timer | None = None
        self.held: HeldRecords[R] = HeldRecords(dispatcher)
        """The record that keeps a flush waiting."""
        self._closed = False
        self._goes_on = True
        self.changed = Signal()
        self.failure: BaseException | None = None

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back at that time."""
        return self._clock.call_at(when, callback)

    def arm(self) -> None:
        """Start the timer of the buffer, unless it is running: an entry was added to an empty buffer."""
        if self.buffer_deadline.at is None:
            self.buffer_deadline.set(self._clock.now() + self._max_time_in_buffer)

    def _time_is_up(self) -> None:
        # Only marks and starts: what the strategy holds back follows as answers come, and the loop never waits here.
        self._dispatcher.time_is_up()
        self.pump()

    def pump(self) -> int:
        """Start every request that may be sent now. Returns their number; never waits."""
        guard, started = self._guard, 0
        if guard.error is None and self.failure is None and not self._closed:
            try:
                started = self._start_what_may_leave()
            except Exception as error:
                guard.caught(error)
        if guard.error is not None:
            self.check()
        return started

    def check(self) -> None:
        """End the writer if the user's code has raised."""
        if self._guard.error is not None:
            self.fail(self._guard.error)

    def _start_what_may_leave(self) -> int:
        now = self._clock.now()
        started = 0
        while (batch := self._dispatcher.next_batch(now)) is not None:
            self._start(batch, now)
            started += 1
        if started:
            # They have left room.
            self.changed.notify()
        self._telemetry.blocked(self._dispatcher.blocked_by, now)
        # Failed entries use the rate as well: with a backlog the rate always holds entries back, whatever is wrong.
        if self._dispatcher.is_paced and self._goes_on:
            self._telemetry.metrics.signs_of_life += 1
        if expired := self._dispatcher.take_expired():
            error = self._handover.give_up(expired, failed=self.failure is not None)
            if error is not None:
                self.fail(error)
            self.changed.notify()
        self._schedule_wake()
        if self._dispatcher.buffer:
            # The remaining entries are sent when the timer expires, even without another write.
            self.arm()
        else:
            self.buffer_deadline.at = None
        if self._look_timer is None:
            if self._dispatcher.unsettled:
                self._look_timer = self._clock.call_at(now + LOOK_SECONDS, self._look)
        elif self.held.record is not None and not self._dispatcher.unsettled:
            self.held.clear()
        return started

    def _look(self) -> None:
        self._look_timer = None
        if not self._dispatcher.unsettled:
            return
        now = self._clock.now()
        self._look_timer = self._clock.call_at(now + LOOK_SECONDS, self._look)
        if self.held.look(now) and (held := self.held.record) is not None:
            _logger.warning(
                "%s: record %d has waited %.0f s for %s%s after %d attempt(s), latest code: %s; %d record(s) are held",
                self._destination,
                held.record_number,
                held.seconds,
                held.reason.replace("_", " "),
                f" of {held.lane}" if held.lane else "",
                held.attempts,
                held.error_code or "none",
                held.records,
            )

    def _stop_looking(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        self.held.clear()

    def _schedule_wake(self) -> None:
        when = self._dispatcher.ask_again_at
        if when == self._wake_at:
            return
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        self._wake_at = when
        if when is not None:
            self._wake_timer = self._clock.call_at(when, self._wake)

    def _wake(self) -> None:
        self._wake_timer = None
        self._wake_at = None
        self.pump()

    def _start(self, batch: Batch[R], now: float) -> None:
        request = _Request(batch, self._settle, self._dispatcher.lane_limiter)
        request.batch, request.span = batch, self._telemetry.start(batch, now)
        self._requests[request] = None
        request.expires_at = now + self._request_timeout
        if self._request_deadline.at is None:
            self._request_deadline.set(request.expires_at)
        name = f"{self._name} from record {batch.parts[0].number}"
        request.task = task = asyncio.get_running_loop().create_task(self._run(request), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: _Request[R]) -> None:
        entries = request.batch.entries
        token = self._telemetry.enter(request.span, request.batch.parts[0].context)
        try:
            await self._submit(entries, request)
        except asyncio.CancelledError:
            # If the writer cancels a request, it also answers it; this cancellation came from the destination.
            if not (request.answered or self._closed):
                request.complete_exceptionally(self._unanswered(len(entries)))
            raise
        except Exception as error:
            if request.answered:
                # The answer counts; the error would be lost silently.
                _logger.warning("%s raised after its answer", self._name, exc_info=error)
                return
            fatal = self._guard.call(error, self._classifier.fatal_error, error)
            if fatal is not None:
                request.complete_exceptionally(fatal)
            else:
                request.retry_failures(all_failed(len(entries), code=type(error).__name__, message=str(error)))
            return
        finally:
            self._telemetry.leave(token)
        if not request.answered:
            request.complete_exceptionally(self._unanswered(len(entries)))

    def _unanswered(self, entries: int) -> SinkError:
        return SinkError.of("UNANSWERED_REQUEST", writer=self._name, entries=entries)

    def _expire_requests(self) -> None:
        now = self._clock.now()
        # In the order in which they were sent: the first ones expire first. An expired one may fail them all.
        for request in list(self._requests):
            if request.expires_at > now:
                break
            if request in self._requests:
                self._expire(request)
        first = next(iter(self._requests), None)
        if first is not None and self._request_deadline.at is None:
            self._request_deadline.set(first.expires_at)

    def _expire(self, request: _Request[R]) -> None:
        batch = request.batch
        self._telemetry.metrics.timed_out += 1
        if self._config.fail_on_timeout:
            error = SinkError.of(
                "REQUEST_TIMED_OUT",
                entries=batch.size,
                first_record_number=batch.first_number,
                seconds=self._request_timeout,
            )
            request.complete_exceptionally(error)
        else:
            request.retry_failures(all_failed(batch.size, code="RequestTimeout"))
        if request.task is not None:
            request.task.cancel()

    def _settle(self, request: ResultHandler[R], outcome: Outcome) -> None:
        try:
            self._take_answer(request, outcome)
        except Exception as error:
            self._guard.caught(error)
        self.pump()
        self.changed.notify()

    def _take_answer(self, request: ResultHandler[R], outcome: Outcome) -> None:
        assert isinstance(request, _Request)
        self._requests.pop(request, None)
        now, batch = self._clock.now(), request.batch
        give_up = outcome.error is not None or self.failure is not None or self._closed
        settlement = self._dispatcher.settle(batch, outcome.failures, now, give_up=give_up, lanes=outcome.lanes)
        self._goes_on = settlement.throttled > 0 or len(settlement.retried) < batch.size
        error = outcome.error
        if error is None and settlement.terminated:
            error = self._handover.give_up(settlement.terminated, failed=self.failure is not None)
        acknowledged = settlement.acknowledged
        if outcome.failures and not self._closed:
            latest = outcome.failures[-1]
            words = (part for part in (latest.error_code, latest.error_message) if part)
            self._telemetry.metrics.last_failure = ": ".join(words)
        self._telemetry.end(
            request.span,
            batch,
            now,
            acknowledged=acknowledged,
            accepted=settlement.accepted,
            accepted_bytes=settlement.accepted_bytes,
            failed=len(outcome.failures),
            # Abandoned entries stay in the snapshot and are not sent again.
            retried=0 if give_up else len(settlement.retried) + len(settlement.spoilt),
            throttled_lanes=_throttled_lanes(outcome) if outcome.failures and outcome.lanes else None,
            throttled=settlement.throttled,
            error=error,
        )
        flush_at = self._telemetry.spans.flush_at
        if flush_at is not None and self._spans_timer is None and not self._closed:
            self._spans_timer = self._clock.call_at(flush_at, self._flush_spans)
        for part in acknowledged:
            if part.listener is not None:
                self._acknowledge(part)
        if error is not None:
            self.fail(error)

    def _acknowledge(self, part: Part[R]) -> None:
        listener = part.listener
        assert listener is not None
        if part.count > 1 and isinstance(listener, EntryRunListener):
            self._guard.ran(listener.acknowledged_many, part.index, part.count, part.attempts)
            return
        for index in range(part.index, part.index + part.count):
            self._guard.ran(listener.acknowledged, index, part.attempts)

    def _flush_spans(self) -> None:
        self._spans_timer = None
        self._telemetry.spans.flush()

    def _handed_over(self) -> None:
        self.pump()
        self.changed.notify()

    def fail(self, error: BaseException) -> None:
        """End the writer. Callers get the first error, and entries stay in the snapshot."""
        if self.failure is not None:
            return
        # What the user's code raised came before.
        self.failure = error = self._guard.error or error
        self.buffer_deadline.at = None
        self._stop_looking()
        listeners = {}
        for wrapper in self.unacknowledged():
            if wrapper.listener is not None:
                listeners[id(wrapper.listener)] = wrapper.listener
        for listener in listeners.values():
            self._guard.ran(listener.abandoned, error)
        self.changed.notify()

    def unacknowledged(self) -> list[RequestEntryWrapper[R]]:
        """Entries in the buffer, in flight, and not yet taken by the terminal handler, in the order of writing."""
        held = [wrapper for request in self._requests for wrapper in request.batch.wrappers]
        held.extend(self._dispatcher.terminal)
        held.extend(self._dispatcher.buffer)
        held.sort(key=lambda wrapper: wrapper.number)
        return held

    async def close(self) -> None:
        """Cancel requests in flight and wait for their tasks; unanswered entries return to the buffer."""
        self._closed = True
        self.buffer_deadline.close()
        self._request_deadline.close()
        self._stop_looking()
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        if self._spans_timer is not None:
            self._spans_timer.cancel()
            self._spans_timer = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            # Also when this is cancelled: the snapshot is to hold what was in flight.
            self._handover.keep(list(self._dispatcher.terminal))
            for request in list(self._requests):
                request.retry_failures(all_failed(request.batch.size, code="WriterClosed"))
            self._telemetry.spans.flush()
            self.changed.notify()
