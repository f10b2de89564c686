"""The writer: an asyncio shell around the dispatcher's decisions (FLIP-171)."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AsyncExitStack
from random import random as default_random
from typing import ClassVar, Generic, Self, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from penstock.async_sink._config import AsyncSinkConfig, Ordering
from penstock.async_sink._core.dispatcher import Dispatcher
from penstock.async_sink._core.entries import (
    EVERYTHING_IS_FATAL,
    BufferedRequestState,
    ElementConverter,
    EntryListener,
    FatalExceptionClassifier,
    RequestEntryWrapper,
    elements_of,
    function_of,
)
from penstock.async_sink._core.guard import Guard, GuardedStrategy
from penstock.async_sink._core.pump import Clock, LoopClock, RequestPump, Submit
from penstock.async_sink._core.runs import EntryRows, EntryRun, Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._metrics import SinkGauges, SinkMetrics
from penstock.async_sink._rate.defaults import aimd_strategy
from penstock.async_sink._rate.strategy import RateLimitingStrategy
from penstock.async_sink._spans import SinkTelemetry
from penstock.async_sink.errors import BufferFullError, RecordError, SinkError

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes
R = TypeVar("R")
_SHARED_ROWS = 64


class AsyncSinkWriter(ABC, Generic[I, R]):
    """Buffers entries, sends them in batches as fast as the destination takes them, and sends again what failed.

    A destination of your own implements `submit_request_entries` and `get_size_in_bytes`. The writer is an async
    context manager: leaving its block flushes everything, leaving it by an exception keeps what was not acknowledged
    for `snapshot_state`. Delivery is at least once: a request without an answer is sent again.

    All calls come from one event loop; several of its tasks may write at the same time. `write` and `write_many` wait
    only while the buffer is full, or while the lane (the shard) of the entry has its share of the buffer; calls wait
    independently of each other. Once the writer has failed, every call raises the error that ended it.
    """

    requests_are_atomic: ClassVar[bool] = False
    """Whether the destination accepts or refuses each request whole; then a strict order can keep its batches."""

    def __init__(
        self,
        config: AsyncSinkConfig | None = None,
        *,
        destination: str = "",
        converter: ElementConverter[I, R] | Callable[[I], R] | None = None,
        strategy: RateLimitingStrategy | None = None,
        classifier: FatalExceptionClassifier = EVERYTHING_IS_FATAL,
        terminal: TerminalRecordHandler | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = default_random,
        initial_states: Iterable[BufferedRequestState[R]] = (),
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Make a writer.

        `classifier` decides about exceptions that `submit_request_entries` raises: fatal ones end the writer (all of
        them, by default), for others the request is sent again. `terminal` takes records that are given up; without it
        they end the writer, which keeps them for its snapshot. `random` gives [0, 1).

        Raises:
            RecordError: an entry of the initial states is larger than the limit.
        """
        self._config = config or AsyncSinkConfig()
        self._destination = destination or type(self).__name__
        self._convert = None if converter is None else function_of(converter)
        self._strategy = strategy or aimd_strategy(self._config)
        self._guard = Guard(type(self).__name__)
        single = self._config.ordering is Ordering.STRICT and not self.requests_are_atomic
        self._complete = GuardedStrategy(
            self._strategy,
            self._guard,
            # Where a destination may accept a part of a request, a strict order needs requests of one entry.
            1 if single else self._config.max_batch_size,
            self._config.max_batch_size_in_bytes,
        )
        self._classifier = classifier
        self._clock = clock
        self._terminal = terminal
        self._dispatcher: Dispatcher[R] = Dispatcher(
            self._config,
            self._complete,
            random,
            key_of=self._guarded_key,
        )
        keeps_keys = self._dispatcher.buffer.keeps_keys
        self._size_of = self._size_with_key if keeps_keys else self.get_size_in_bytes
        self._submit: Submit[R] = self.submit_request_entries
        self._pump: RequestPump[R] | None = None
        self._closing = AsyncExitStack()
        self._records_written = 0
        self._failure_was_raised = False
        self.restore(initial_states)
        # Last: metrics are collected on another thread, which asks for the gauges.
        self._telemetry = SinkTelemetry(
            self._destination,
            tracer_provider,
            meter_provider,
            max_batch_size=self._config.max_batch_size,
            gauges=self.gauges,
        )

    @property
    def config(self) -> AsyncSinkConfig:
        """The writer's limits."""
        return self._config

    @property
    def destination(self) -> str:
        """Name of the destination."""
        return self._destination

    @property
    def records_written(self) -> int:
        """Records written so far, restored ones included."""
        return self._records_written

    @property
    def metrics(self) -> SinkMetrics:
        """Numbers since the writer was made."""
        return self._telemetry.metrics

    @property
    def strategy(self) -> RateLimitingStrategy:
        """The rate limiting strategy in use."""
        return self._strategy

    @property
    def gives_up_records(self) -> bool:
        """Whether a terminal record handler takes records that cannot be written."""
        return self._terminal is not None

    @property
    def buffered_entries(self) -> int:
        """Entries that wait to be sent."""
        return len(self._dispatcher.buffer)

    @property
    def held_back_entries(self) -> int:
        """Those of the buffered entries that wait for room in their lane, or for another entry of their key."""
        return self._dispatcher.buffer.held_back

    @property
    def in_flight_requests(self) -> int:
        """Requests that wait for their answer."""
        return len(self._dispatcher.in_flight)

    @property
    def in_flight_messages(self) -> int:
        """Entries that wait for their answer."""
        return self._dispatcher.in_flight_messages

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the writer."""
        return self._pump.failure if self._pump is not None else None

    def gauges(self) -> SinkGauges:
        """The writer at this moment."""
        buffer, pump = self._dispatcher.buffer, self._pump
        oldest = buffer.oldest_written_at()
        return SinkGauges(
            buffer_records=len(buffer),
            buffer_bytes=buffer.total_size_in_bytes,
            buffer_age_seconds=0.0 if oldest is None or pump is None else pump.now() - oldest,
            in_flight_requests=self.in_flight_requests,
            in_flight_messages=self.in_flight_messages,
            limit=self._complete.limit,
            held=None if pump is None else pump.held.record,
        )

    @abstractmethod
    async def submit_request_entries(self, entries: Sequence[R], result_handler: ResultHandler[R]) -> None:
        """Send the entries in one request, and give the answer to the handler before returning.

        Several run at the same time. A time-out cancels it. An exception goes through the classifier.
        """

    @abstractmethod
    def get_size_in_bytes(self, entry: R) -> int:
        """Bytes of an entry, as the destination's limits count them; 0 if bytes do not matter."""

    def get_order_key(self, entry: R) -> Hashable:
        """The key of an entry, for an order per key; None: the entry has no order. By default its `partition_key`.

        Raises:
            AttributeError: it has none, and the writer does not say what the key is.
        """
        key: Hashable = entry.partition_key  # type: ignore[attr-defined]  # as the docstring says
        return key

    def _size_with_key(self, entry: R) -> int:
        size = self.get_size_in_bytes(entry)
        key = self.get_order_key(entry)
        try:
            hash(key)
        except TypeError as error:
            # Checked now: later, no caller would get the error.
            reason = f"the key of its order cannot be compared ({error}): it is to be a string, a number or a tuple"
            raise RecordError(self._records_written, reason) from error
        return size

    def _guarded_key(self, entry: R) -> Hashable:
        key = self._guard.call(None, self.get_order_key, entry)
        return key if self._guard.ran(hash, key) else None

    async def open_destination(self) -> None:
        """Open what requests need, such as a connection pool. Called once."""

    async def close_destination(self) -> None:
        """Close what `open_destination` opened. Called once, after the last request."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await self.open_destination()
            opening.push_async_callback(self.close_destination)
            if self._terminal is not None:
                await self._terminal.open()
                opening.push_async_callback(self._terminal.close)
            self._pump = RequestPump(
                type(self).__name__,
                self._config,
                self._dispatcher,
                self._telemetry,
                self._submit,
                self._classifier,
                self._clock or LoopClock(),
                self._guard,
                self._terminal,
                self._destination,
            )
            self._closing = opening.pop_all()
        if self._dispatcher.buffer:
            now = self._pump.now()
            for wrapper in self._dispatcher.buffer.fall_apart():
                wrapper.written_at = now
            self._pump.arm()
            self._pump.pump()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error_and_traceback: object) -> None:
        try:
            # A failure that the caller has seen is not raised at it a second time.
            if kind is None and not self._failure_was_raised and self._pump is not None:
                await self.flush(end_of_input=True)
        finally:
            await self.close()

    async def close(self) -> None:
        """End without flushing. What was not acknowledged stays in `snapshot_state`. Safe to call again.

        Raises:
            Exception: code that the writer was given has raised it, and no other call has raised it so far.
        """
        pump, self._pump = self._pump, None
        if pump is not None:
            async with self._closing:
                await pump.close()
            if self._guard.error is not None and not self._failure_was_raised:
                self._failure_was_raised = True
                raise self._guard.error

    async def write(self, element: I, *, listener: EntryListener | None = None, index: int = 0) -> None:
        """Write one element. Waits only while the buffer is full, or while the lane (the shard) or the key of the entry
        has its share of the buffer, for `max_block_time` at most; cancelled then, the element is not written.

        `listener` learns what becomes of the entry, under `index`.

        Raises:
            RecordError: the entry is larger than the limit; the writer goes on.
            BufferFullError: there was no room in time; the element is not written, the writer goes on.
            SinkError: the writer has failed.
        """
        pump = self._pump
        if pump is None or pump.failure is not None or self._guard.error is not None:
            pump = self._open_pump()
        entry = cast("R", element) if self._convert is None else self._converted(pump, element)
        size = self._size_of(entry)
        if size > self._config.max_record_size_in_bytes:
            raise RecordError.too_large(self._records_written, size, self._config.max_record_size_in_bytes)
        dispatcher, lane = self._dispatcher, None
        if dispatcher.has_shares:
            lane = dispatcher.buffer.lane_of(entry)
        if dispatcher.full(size, entry, lane) is not None:
            await self._wait_for_room(pump, size, entry, lane)
        number, context = self._records_written, otel_context.get_current()
        self._records_written = number + 1
        due = dispatcher.add(
            RequestEntryWrapper(entry, size, number, context, listener, index, 0, 0.0, pump.now(), 0, lane)
        )
        if pump.buffer_deadline.at is None:
            pump.arm()
        if due and pump.pump():
            # A caller that never waits would keep the new requests from starting.
            await asyncio.sleep(0)

    def write_nowait(
        self, elements: Sequence[I], *, listener: EntryListener | None = None, first_index: int = 0
    ) -> int:
        """Write elements in their order, without waiting, up to the first one that finds no room. Returns how many were
        written.

        Room is judged as by `write`: if the lane (the shard) of an element has its share of the buffer, elements for
        other lanes may still have room. The caller keeps the elements that were not written, and may write elements for
        other lanes meanwhile. The requests are sent when the caller awaits something next. `listener` knows the first
        element by `first_index`.

        Raises:
            RecordError: the next element is larger than the limit; those before it are written, `records_written` says
                how many.
            SinkError: the writer has failed.
        """
        dispatcher, done, step = self._dispatcher, 0, self._config.max_batch_size
        context = otel_context.get_current()
        while done < len(elements):
            pump = self._open_pump()
            rows = self._rows_of(cast("Sequence[R]", elements[done : done + step])) if self._convert is None else None
            if rows is None:
                # The first of them alone: it raises if it cannot be written.
                entry, size = self._entry_of(pump, elements[done])
                rows = EntryRows.of([entry], [size])
            upto, start, count = 0, -1, len(rows.ends) - 1
            while start < upto < count:
                start = upto
                upto, _ = self._add_rows(pump, rows, upto, context, listener, first_index + done)
            done += upto
            if upto < count:
                (entry,) = rows.entries(upto, upto + 1)
                size, lane = rows.ends[upto + 1] - rows.ends[upto], dispatcher.buffer.lane_of(entry)
                full = dispatcher.full(size, entry, lane)
                if full is not None:
                    dispatcher.make_room(full, lane)
                    pump.pump()
                    self._open_pump()
                    if dispatcher.full(size, entry, lane) is not None:
                        break
        return done

    def _entry_of(self, pump: RequestPump[R], element: I) -> tuple[R, int]:
        entry = cast("R", element) if self._convert is None else self._converted(pump, element)
        size = self._size_of(entry)
        if size > self._config.max_record_size_in_bytes:
            raise RecordError.too_large(self._records_written, size, self._config.max_record_size_in_bytes)
        return entry, size

    def _rows_of(self, entries: Sequence[R]) -> EntryRows[R] | None:
        """Entries with their sizes; None if one of them cannot be written."""
        try:
            sizes = list(map(self._size_of, entries))
        except Exception:
            return None
        return None if max(sizes) > self._config.max_record_size_in_bytes else EntryRows.of(entries, sizes)

    async def write_many(self, elements: Iterable[I], *, listener: EntryListener | None = None) -> None:
        """Write elements in their order; `listener` knows them by their place. With a converter, a record batch or
        table of Arrow is an iterable of its rows, as dictionaries.

        Raises:
            SinkError: NOT_ELEMENTS: text, bytes, a mapping or a DataFrame is not an iterable of elements.
            RecordError: an entry is larger than the limit; those before it are written.
            BufferFullError: there was no room in time; those that had room are written, `records_written` says how
                many.
            SinkError: the writer has failed.
        """
        elements = elements_of(elements, has_converter=self._convert is not None)
        if self._convert is not None or not isinstance(elements, list | tuple):
            # A converter may ask how many were written, and no more is taken of an iterator than can be written.
            for index, element in enumerate(elements):
                await self.write(element, listener=listener, index=index)
            return
        for start in range(0, len(elements), step := self._config.max_batch_size):
            self._open_pump()
            rows = self._rows_of(cast("Sequence[R]", elements[start : start + step]))
            if rows is not None:
                await self._write_rows(rows, listener=listener, first_index=start)
                continue
            # One of them cannot be written: `write` says which, when those before it are written.
            for index, element in enumerate(elements[start : start + step], start=start):
                await self.write(element, listener=listener, index=index)

    def _converted(self, pump: RequestPump[R], element: I) -> R:
        assert self._convert is not None
        try:
            return self._convert(element, self)
        except RecordError:
            raise
        except Exception as error:
            self._guard.caught(error)
            pump.check()
            self._failure_was_raised = True
            raise

    def _open_pump(self) -> RequestPump[R]:
        pump = self._pump
        if pump is None:
            raise SinkError.of("WRITER_CLOSED", writer=type(self).__name__)
        if self._guard.error is not None:
            pump.check()
        if pump.failure is not None:
            self._failure_was_raised = True
            raise pump.failure
        return pump

    async def _write_rows(self, rows: Rows[R], *, listener: EntryListener | None, first_index: int = 0) -> None:
        """Write rows whose sizes are checked. Batches leave as if they were written one by one."""
        done, count, context = 0, len(rows.ends) - 1, otel_context.get_current()
        while done < count:
            pump = self._open_pump()
            upto, started = self._add_rows(pump, rows, done, context, listener, first_index)
            if upto == done:
                (entry,) = rows.entries(done, done + 1)
                lane = self._dispatcher.buffer.lane_of(entry)
                await self._wait_for_room(pump, rows.ends[done + 1] - rows.ends[done], entry, lane)
            elif started:
                await asyncio.sleep(0)
            done = upto

    def _add_rows(
        self,
        pump: RequestPump[R],
        rows: Rows[R],
        done: int,
        context: Context,
        listener: EntryListener | None,
        first_index: int,
    ) -> tuple[int, int]:
        """Add rows from `done` on, up to one without room, and no further than where a batch is due. Returns how far it
        came, and how many requests were started."""
        dispatcher = self._dispatcher
        if dispatcher.full(rows.ends[done + 1] - rows.ends[done]) is not None:
            return done, 0
        upto = dispatcher.rows_until(rows.ends, done)
        if dispatcher.has_shares:
            # Entries behind one without room are made for nothing.
            upto = min(upto, done + _SHARED_ROWS)
        run = EntryRun(
            rows.cut(done, upto),
            number=self._records_written,
            context=context,
            listener=listener,
            index=first_index + done,
            written_at=pump.now(),
        )
        if dispatcher.has_shares:
            added, due = dispatcher.add_shared(run)
            if not added:
                return done, 0
            upto = done + added
        else:
            due = dispatcher.add_run(run)
        self._records_written += upto - done
        if pump.buffer_deadline.at is None:
            pump.arm()
        return upto, pump.pump() if due else 0

    async def _wait_for_room(self, pump: RequestPump[R], size: int, entry: R, lane: str | None) -> None:
        began, dispatcher = pump.now(), self._dispatcher
        reason = full = dispatcher.full(size, entry, lane)
        limit = None if self._config.max_block_time is None else self._config.max_block_time.total_seconds()
        timer = None if limit is None else pump.call_at(began + limit, pump.changed.notify)
        try:
            while full is not None:
                dispatcher.make_room(full, lane)
                started = pump.pump()
                # The pump itself may have ended the writer: an entry expired and there is no handler.
                self._open_pump()
                full = dispatcher.full(size, entry, lane)
                if full is None:
                    # A request left, or a handler took such an entry, just now: nothing else would wake this call.
                    if started:
                        # Those who never wait would keep it from starting.
                        await asyncio.sleep(0)
                        self._open_pump()
                        full = dispatcher.full(size, entry, lane)
                    continue
                if limit is not None and pump.now() - began >= limit:
                    raise BufferFullError(dispatcher.waiting, dispatcher.waiting_bytes, limit, full, lane)
                await pump.changed.wait()
                self._open_pump()
                full = dispatcher.full(size, entry, lane)
        finally:
            if timer is not None:
                timer.cancel()
            self._telemetry.waited(f"buffer_{reason}", pump.now() - began)

    async def flush(self, end_of_input: bool = False) -> None:
        """Wait until nothing is in flight; with `end_of_input`, until everything is acknowledged.

        Without `end_of_input`, entries that failed are back in the buffer afterwards, at its head, and what a terminal
        record handler was given is with it.

        Raises:
            SinkError: the writer has failed.
        """
        pump, dispatcher = self._open_pump(), self._dispatcher
        if end_of_input:
            try:
                with dispatcher.draining():
                    pump.pump()
                    # The pump itself may have ended the writer: an entry expired and there is no handler.
                    self._open_pump()
                    while dispatcher.unsettled:
                        await pump.changed.wait()
                        self._open_pump()
            finally:
                # Before the caller's own span ends, which is the parent of the span of these requests.
                self._telemetry.spans.flush()
            return
        try:
            with dispatcher.suspended():
                # In the snapshot that is taken next, what is on its way to the handler would be there twice.
                while dispatcher.in_flight or dispatcher.terminal:
                    await pump.changed.wait()
                    self._open_pump()
        finally:
            # Later, so that a snapshot that is taken next sees the buffer as it was settled.
            asyncio.get_running_loop().call_soon(pump.pump)

    def wake(self) -> None:
        """Ask the rate limiting strategy again: something other than an answer or the time has changed its mind."""
        self._dispatcher.unblock()
        if self._pump is not None:
            self._pump.pump()

    def fail(self, error: BaseException) -> None:
        """End the writer from outside of a request: its callers get the error, its entries stay for the snapshot."""
        if self._pump is not None:
            self._pump.fail(error)

    def snapshot_state(self) -> list[BufferedRequestState[R]]:
        """Everything that was written and not acknowledged, in the order of writing, and the state of the sink itself:
        one state, or none if both are empty.

        Call `flush()` first: what is still in flight is in the snapshot too, and would be sent twice after a restore.
        """
        wrappers = self._pump.unacknowledged() if self._pump is not None else list(self._dispatcher.buffer)
        sink_state = self.sink_state()
        return [BufferedRequestState.of(wrappers, sink_state)] if wrappers or sink_state else []

    def sink_state(self) -> bytes:
        """What a sink of your own saves in each snapshot beside its entries, such as an offset of its source; nothing
        by default.

        Its writer finds the bytes in the `sink_state` of each of its initial states, and restores them in its
        constructor.
        """
        return b""

    def restore(self, states: Iterable[BufferedRequestState[R]]) -> None:
        """Take over what writers left behind, state by state, behind what is in the buffer.

        Raises:
            RecordError: an entry is larger than the limit; then nothing was taken over.
        """
        wrappers: list[RequestEntryWrapper[R]] = []
        # Time to live begins anew: the clock of the writer that they come from may be another one.
        written_at = self._pump.now() if self._pump is not None else 0.0
        for state in states:
            for entry, _ in state.entries:
                number = self._records_written + len(wrappers)
                # Measured again: the limit, or the measure, may be another one now.
                size = self._size_of(entry)
                if size > self._config.max_record_size_in_bytes:
                    raise RecordError.too_large(number, size, self._config.max_record_size_in_bytes)
                wrappers.append(
                    RequestEntryWrapper(entry, size, number, otel_context.get_current(), written_at=written_at)
                )
        self._records_written += len(wrappers)
        for wrapper in wrappers:
            self._dispatcher.add(wrapper)
        if self._pump is not None and wrappers:
            self._pump.arm()
            self._pump.pump()


class AsyncSinkBase(ABC, Generic[I, R]):
    """Describes a destination and makes its writers. Holds plain values only, so that it can be pickled."""

    @abstractmethod
    def create_writer(self) -> AsyncSinkWriter[I, R]:
        """A writer with an empty buffer. Enter it with `async with`."""

    @abstractmethod
    def restore_writer(self, states: Iterable[BufferedRequestState[R]]) -> AsyncSinkWriter[I, R]:
        """A writer that begins with what others left behind.

        Raises:
            RecordError: an entry is larger than the limit.
        """
