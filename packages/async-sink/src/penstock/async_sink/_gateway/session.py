"""One client's stream of batches, and the credits that limit it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._rate.strategy import RequestInfo, ResultInfo
from penstock.async_sink.errors import SinkError, SinkOptionError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.rpc import Signal


@dataclass(frozen=True, kw_only=True)
class CreditWindow:
    """How much a client may have sent without an acknowledgement. The same for every client.

    Raises:
        SinkOptionError: a batch of the destination's largest size would not fit.
    """

    entries: int = 5_000
    """Entries."""
    bytes: int = 16 * 1024 * 1024
    """Bytes, by the destination's measure."""
    largest_batch_entries: int = 500
    """Entries of a batch that must fit. Default: the limit of PutRecords."""
    largest_batch_bytes: int = 5 * 1024 * 1024
    """Bytes of a batch that must fit. Default: the limit of the Kinesis sink."""

    def __post_init__(self) -> None:
        if self.entries < self.largest_batch_entries:
            raise SinkOptionError("credit_entries", f"{self.entries} must be at least {self.largest_batch_entries}")
        if self.bytes < self.largest_batch_bytes:
            raise SinkOptionError("credit_bytes", f"{self.bytes} must be at least {self.largest_batch_bytes}")


class CreditStrategy:
    """The client's credits as a rate limiting strategy."""

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size
        self._window_entries = max_batch_size
        self._window_bytes: int | None = None
        self._never_covered = 0
        self._entries = 0
        self._bytes = 0

    def open(self, entries: int, size_in_bytes: int) -> None:
        """The first grant of a connection: how much may be sent without an answer."""
        self._window_entries = entries
        self._window_bytes = size_in_bytes
        self.grant(entries, size_in_bytes)

    def check(self) -> None:
        """Check a batch before it is sent.

        Raises:
            SinkOptionError: the batch is larger than the gateway's window.
        """
        if self._never_covered:
            raise SinkOptionError(
                "max_batch_size_in_bytes",
                f"a batch of {self._never_covered} bytes is more than the {self._window_bytes} that the gateway grants "
                "a client: make this option smaller, or the gateway's --credit-bytes larger",
            )

    def grant(self, entries: int, size_in_bytes: int) -> None:
        """Add credits."""
        self._entries += entries
        self._bytes += size_in_bytes

    def revoke(self) -> None:
        """Remove all credits after a disconnect."""
        self._entries = 0
        self._bytes = 0

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Spend the credits of a batch."""
        if self._is_never_covered(request):
            self._never_covered = request.size_in_bytes
        self._entries -= request.batch_size
        self._bytes -= request.size_in_bytes

    def _is_never_covered(self, request: RequestInfo) -> bool:
        return self._window_bytes is not None and request.size_in_bytes > self._window_bytes

    def register_completed_request(self, result: ResultInfo) -> None:
        """Does nothing: the gateway grants new credits."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether the credits do not cover the batch. A batch larger than the window passes, and raises an error."""
        if self._is_never_covered(request):
            return False
        return request.batch_size > self._entries or request.size_in_bytes > self._bytes

    def get_max_batch_size(self) -> int:
        """The configured size, up to the gateway's window."""
        return min(self._max_batch_size, self._window_entries)

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """A day: the writer is woken when a grant arrives."""
        return 86_400.0


class Orphanage:
    """Accepted entries of ended streams that are not written yet.

    It prevents a client from filling the gateway by disconnecting and sending again: new streams get no credits while
    these entries amount to a window.
    """

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self._abandoned = False
        self._changed = Signal()

    def taken(self, entries: int, size_in_bytes: int) -> None:
        """Add entries whose stream has ended."""
        self.entries += entries
        self.bytes += size_in_bytes

    def settled(self, entries: int, size_in_bytes: int) -> None:
        """Remove settled entries."""
        self.entries -= entries
        self.bytes -= size_in_bytes
        self._changed.notify()

    def abandon(self) -> None:
        """The destination has failed: nothing more is settled here. Waiting streams resume and get its error."""
        self._abandoned = True
        self._changed.notify()

    async def wait_for_room(self, window: CreditWindow) -> None:
        """Wait until less than a window of entries is left."""
        while not self._abandoned and (self.entries >= window.entries or self.bytes >= window.bytes):
            await self._changed.wait()


class BatchTracker:
    """Waits until every entry of a batch is settled; an entry listener."""

    def __init__(
        self,
        batch_id: int,
        entry_count: int,
        size: int,
        settled: "Callable[[BatchTracker], None]",
        abandoned: Callable[[BaseException], None],
    ) -> None:
        self.batch_id = batch_id
        self.entry_count = entry_count
        self.size_in_bytes = size
        self.retries = 0
        self.failed: dict[int, EntryFailure] = {}
        self._left = entry_count
        self._settled = settled
        self._abandoned = abandoned

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        """One more entry is written."""
        self._count(attempts)

    def acknowledged_many(self, first_index: int, count: int, attempts: int) -> None:
        """Consecutive entries are written."""
        self._count(attempts, count)

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        """One more entry is refused permanently."""
        self.failed[entry_index] = failure
        self._count(attempts)

    def _count(self, attempts: int, entries: int = 1) -> None:
        self.retries += (attempts - 1) * entries
        self._left -= entries
        if self._left == 0:
            self._settled(self)

    def abandoned(self, error: BaseException) -> None:
        """The shared writer has failed."""
        self._abandoned(error)

    def answer(self) -> pb.WriteResponse:
        """The answer for the whole batch."""
        if not self.failed:
            acknowledgement = pb.Acknowledgement(batch_id=self.batch_id, retries=self.retries)
            return pb.WriteResponse(acknowledgement=acknowledgement)
        entries = [
            pb.FailedEntry(index=index, error_code=failure.error_code, error_message=failure.error_message)
            for index, failure in sorted(self.failed.items())
        ]
        return pb.WriteResponse(failure=pb.Failure(batch_id=self.batch_id, failed_entries=entries))


class ClientSession:
    """Credits, unanswered batches and outgoing answers of one stream. No I/O.

    Credits are restored when their grant is sent: a client that reads no answers runs out of credits, so they limit
    what waits here.
    """

    def __init__(self, window: CreditWindow) -> None:
        self._entries_left, self._bytes_left = window.entries, window.bytes
        self._pending: set[BatchTracker] = set()
        self._orphanage: Orphanage | None = None
        self._window = window
        self._answers: deque[pb.WriteResponse] = deque()
        self.changed = Signal()
        self.ended = asyncio.Event()
        """Set when the stream has ended."""
        self.error: BaseException | None = None
        """The error that ends the stream after the answers so far."""
        self._reading = True
        self.awaits_credit = False
        """Whether the client has no credits yet and accepts a sign of life before them."""
        # The account begins with the first credit.
        self._opened = False
        self._is_over = False

    def open_credit(self, orphanage: Orphanage) -> None:
        """Grant the whole window. Entries that remain at the end are counted in `orphanage`."""
        self._orphanage = orphanage
        self.awaits_credit = False
        self._say(pb.WriteResponse(credit=pb.Credit(entries=self._window.entries, bytes=self._window.bytes)))

    def _say(self, answer: pb.WriteResponse) -> None:
        self._answers.append(answer)
        self.changed.notify()

    def accept(self, batch_id: int, entry_count: int, size: int) -> BatchTracker:
        """Accept a batch.

        Raises:
            SinkError: GATEWAY_CREDITS: the client's credits do not cover it.
        """
        if entry_count > self._entries_left or size > self._bytes_left:
            raise SinkError.of(
                "GATEWAY_CREDITS",
                entries=entry_count,
                size_in_bytes=size,
                entries_left=self._entries_left,
                bytes_left=self._bytes_left,
            )
        self._entries_left -= entry_count
        self._bytes_left -= size
        tracker = BatchTracker(batch_id, entry_count, size, self._settled, self.fail)
        self._pending.add(tracker)
        return tracker

    def say_progress(self) -> None:
        """Send a waiting client an empty grant, which adds no credits, because the destination is working. Not sent if
        another message waits to be read."""
        if (self._pending or self.awaits_credit) and not self._answers:
            self._say(pb.WriteResponse(credit=pb.Credit()))

    def end(self) -> None:
        """End the stream: unwritten batches need no answer."""
        self._answers.clear()
        self._is_over = True
        if self._orphanage is not None:
            for tracker in self._pending:
                self._orphanage.taken(tracker.entry_count, tracker.size_in_bytes)
        self.ended.set()

    def _settled(self, tracker: BatchTracker) -> None:
        self._pending.discard(tracker)
        if self._is_over and self._orphanage is not None:
            self._orphanage.settled(tracker.entry_count, tracker.size_in_bytes)
            return
        self._say(tracker.answer())
        self._say(pb.WriteResponse(credit=pb.Credit(entries=tracker.entry_count, bytes=tracker.size_in_bytes)))

    def fail(self, error: BaseException) -> None:
        """End the stream with this error; the first error counts."""
        if self._is_over and self._orphanage is not None:
            self._orphanage.abandon()
        if self.error is None:
            self.error = error
            self.changed.notify()

    def end_reading(self) -> None:
        """No more batches arrive; the stream ends when the accepted batches are answered."""
        self._reading = False
        self.changed.notify()

    async def wait_until_settled(self) -> None:
        """Wait until every accepted batch has its answer, or the stream has an error."""
        while self._pending and self.error is None:
            await self.changed.wait()

    async def next_answer(self) -> pb.WriteResponse | None:
        """The next message to the client; None when the stream ends."""
        while True:
            if self._answers:
                answer = self._answers.popleft()
                if answer.WhichOneof("message") == "credit" and answer.credit.entries:
                    if self._opened:
                        self._entries_left += answer.credit.entries
                        self._bytes_left += answer.credit.bytes
                    self._opened = True
                return answer
            if self.error is not None or (not self._reading and not self._pending):
                return None
            await self.changed.wait()
