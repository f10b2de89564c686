"""Where the next batch is cut."""

from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from penstock.async_sink._buffer import RequestBuffer
from penstock.async_sink._entries import RequestEntryWrapper

R = TypeVar("R")


@dataclass(frozen=True)
class BatchExtent:
    """How much of the buffer's head the next batch takes."""

    batch_size: int
    size_in_bytes: int


@dataclass(eq=False)
class Batch(Generic[R]):
    """Entries that leave in one request."""

    wrappers: list[RequestEntryWrapper[R]]
    size_in_bytes: int
    submitted_at: float
    """Monotonic seconds."""
    reason: str = ""
    """Why it left, as `SinkMetrics.flush_reasons` names it."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return len(self.wrappers)

    @property
    def entries(self) -> list[R]:
        """What is sent, in order."""
        return [wrapper.entry for wrapper in self.wrappers]

    @property
    def attempt(self) -> int:
        """The highest number of submissions among the entries, this one included."""
        return max(wrapper.attempts for wrapper in self.wrappers)


class BatchCreator:
    """Takes from the head up to a number of entries, and stops before the bytes would pass their limit.

    An exact fit is allowed. Measuring comes before taking, so that a rate limiting strategy is asked about the batch
    that would really leave, not about the one that was hoped for.
    """

    def __init__(self, max_batch_size: int, max_batch_size_in_bytes: int) -> None:
        self._max_batch_size = max_batch_size
        self._max_batch_size_in_bytes = max_batch_size_in_bytes

    def measure(self, buffer: RequestBuffer[R], strategy_max_batch_size: int, now: float) -> BatchExtent:
        """Extent of the next batch; an entry that still backs off ends it."""
        limit = max(1, min(self._max_batch_size, strategy_max_batch_size))
        room = self._max_batch_size_in_bytes
        count = size = 0
        for wrapper in islice(buffer, limit):
            following = size + wrapper.size_in_bytes
            if following > room or wrapper.not_before > now:
                break
            count += 1
            size = following
        return BatchExtent(count, size)

    def create(self, buffer: RequestBuffer[R], extent: BatchExtent, now: float) -> Batch[R]:
        """Take a measured batch out of the buffer; each entry counts one more submission."""
        wrappers = buffer.take(extent.batch_size, extent.size_in_bytes)
        for wrapper in wrappers:
            wrapper.attempts += 1
        return Batch(wrappers, extent.size_in_bytes, now)
