"""How rows get into the buffer, and what waits for room there."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from opentelemetry import context as otel_context

from penstock.async_sink._core.entries import EntryListener
from penstock.async_sink._core.pump import RequestPump
from penstock.async_sink._core.runs import EntryRows, EntryRun, Rows
from penstock.async_sink._core.writer_view import WriterView
from penstock.async_sink.errors import BufferFullError, WriterClosedError

R = TypeVar("R")


class Intake(WriterView[R]):
    """Takes rows in runs, as long as there is room for them."""

    _failure_was_raised = False

    def _open_pump(self) -> RequestPump[R]:
        pump = self._pump
        if pump is None:
            raise WriterClosedError(type(self).__name__)
        if pump.failure is not None:
            self._failure_was_raised = True
            raise pump.failure
        return pump

    def _sizes(self, entries: Sequence[R], size_of: Callable[[R], int]) -> list[int]:
        """Bytes of each entry; none if one of them cannot be written."""
        try:
            sizes = list(map(size_of, entries))
        except Exception:
            return []
        return sizes if max(sizes) <= self._config.max_record_size_in_bytes else []

    async def _write_entries(
        self, entries: Sequence[R], sizes: Iterable[int], *, listener: EntryListener | None, first_index: int
    ) -> None:
        """Write entries whose sizes are known and checked."""
        await self._write_rows(EntryRows.of(entries, sizes), listener=listener, first_index=first_index)

    async def _write_rows(self, rows: Rows[R], *, listener: EntryListener | None, first_index: int = 0) -> None:
        """Write rows whose sizes are checked. Batches leave as if they were written one by one."""
        dispatcher, context, ends = self._dispatcher, otel_context.get_current(), rows.ends
        done, count = 0, len(ends) - 1
        while done < count:
            pump = self._open_pump()
            size = ends[done + 1] - ends[done]
            if not dispatcher.held.has_room(size):
                await self._wait_for_room(pump, size)
            upto = dispatcher.rows_until(ends, done)
            due = dispatcher.add_run(
                EntryRun(
                    rows.cut(done, upto),
                    number=self._records_written,
                    context=context,
                    listener=listener,
                    index=first_index + done,
                    written_at=pump.now(),
                )
            )
            self._records_written += upto - done
            done = upto
            pump.arm()
            if due and pump.pump():
                await asyncio.sleep(0)

    async def _wait_for_room(self, pump: RequestPump[R], size: int) -> None:
        began, dispatcher, held = pump.now(), self._dispatcher, self._dispatcher.held
        reason = "records" if held.is_full_by_number else "bytes"
        limit = None if self._config.max_block_time is None else self._config.max_block_time.total_seconds()
        timer = None if limit is None else pump.call_at(began + limit, pump.changed.notify)
        try:
            while not held.has_room(size):
                dispatcher.demand.one_batch()
                started = pump.pump()
                # It may have ended the writer itself: an entry's time was over, and nobody takes it.
                self._open_pump()
                if held.has_room(size):
                    # A request left, or a handler took such an entry, just now: nothing else would wake this call.
                    if started:
                        # Those who never wait would keep it from starting.
                        await asyncio.sleep(0)
                        self._open_pump()
                        continue
                    break
                if limit is not None and pump.now() - began >= limit:
                    raise BufferFullError(held.waiting, held.waiting_bytes, limit, reason)
                await pump.changed.wait()
                self._open_pump()
        finally:
            if timer is not None:
                timer.cancel()
            self._telemetry.waited(f"buffer_{reason}", pump.now() - began)
