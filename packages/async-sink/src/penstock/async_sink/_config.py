"""Limits of a writer, checked once."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from penstock.async_sink.errors import SinkOptionError


class Ordering(Enum):
    """The order of records that a writer guarantees at the destination."""

    NONE = "none"
    """No order: newer entries overtake entries that failed and wait for a retry. The fastest setting."""
    PER_KEY = "per key"
    """Records with the same key arrive in the order of writing: one of them is in flight at a time, and the next is
    sent when it is accepted or abandoned. Records of different keys overtake each other. A key's rate is at most one
    record per round trip."""
    STRICT = "strict"
    """All records arrive in the order of writing: one request is in flight, and no entry overtakes a failed one. If a
    destination can accept a part of a request, each request contains one entry."""


MEBIBYTE = 1024 * 1024


def check_positive(**options: float | timedelta | None) -> None:
    """Check that options are larger than 0; None is allowed.

    Raises:
        SinkOptionError: an option is not positive.
    """
    for name, value in options.items():
        if value is not None and not value > type(value)():  # type: ignore[operator]  # of the same type
            raise SinkOptionError(name, f"{value} must be more than 0")


_DURATIONS = (
    "max_time_in_buffer",
    "request_timeout",
    "time_to_live",
    "max_block_time",
    "retry_backoff_base",
    "retry_backoff_maximum",
)


@dataclass(frozen=True, kw_only=True)
class AsyncSinkConfig:
    """Limits of a writer. The defaults fit Kinesis Data Streams, as in FLIP-171's connectors.

    At most max_buffered_requests + max_in_flight_requests x max_batch_size entries are held, of max_buffered_bytes +
    max_in_flight_requests x max_batch_size_in_bytes: with the defaults 35,000 entries of 378 MiB.

    Raises:
        SinkOptionError: a limit is out of range or contradicts another; the error names it.
    """

    max_batch_size: int = 500
    """Entries in a request. PutRecords takes 500."""
    max_in_flight_requests: int = 50
    """Requests in flight, if the rate limiting strategy allows them."""
    max_buffered_requests: int = 10_000
    """Entries that wait to be sent, without entries in flight, as in FLIP-171. Writes wait for room. A request that
    fails returns to the buffer even if it is full, and writes wait until there is room."""
    max_buffered_bytes: int = 128 * MEBIBYTE
    """Bytes of the entries that wait to be sent."""
    max_batch_size_in_bytes: int = 5 * MEBIBYTE
    """Bytes in a request, by the writer's measure of an entry. An exact fit is allowed."""
    max_record_size_in_bytes: int = MEBIBYTE
    """Bytes in an entry. A larger one raises on write."""
    max_time_in_buffer: timedelta = timedelta(seconds=5)
    """How long an entry waits for a batch to fill up."""
    request_timeout: timedelta = timedelta(minutes=10)
    """How long a request may go without an answer (FLIP-451)."""
    fail_on_timeout: bool = False
    """Whether a request without an answer fails the writer. Otherwise its entries are sent again (FLIP-451)."""
    fail_on_error: bool = False
    """Whether an entry that the destination refuses is abandoned at once instead of being sent again."""
    max_attempts: int | None = None
    """How often an entry is sent before it is abandoned; None for no limit."""
    time_to_live: timedelta | None = None
    """How long after it was written an entry may be sent; None for no limit. Checked when the entry fails and before
    it is sent."""
    ordering: Ordering = Ordering.NONE
    """The order of records that is guaranteed."""
    max_block_time: timedelta | None = None
    """How long `write` waits for room in the buffer, or in the share of its shard: None for as long as it takes, 0 to
    raise at once."""
    retry_backoff_base: timedelta = timedelta(milliseconds=50)
    """Upper bound of the random wait before the first retry; it doubles with each attempt."""
    retry_backoff_maximum: timedelta = timedelta(seconds=2)
    """Largest upper bound of the random wait."""

    def __post_init__(self) -> None:
        for name in (
            "max_batch_size",
            "max_in_flight_requests",
            "max_buffered_requests",
            "max_buffered_bytes",
            "max_batch_size_in_bytes",
            "max_record_size_in_bytes",
        ):
            value = getattr(self, name)
            if not isinstance(value, int):
                raise SinkOptionError(name, f"{value!r} must be a whole number")
            check_positive(**{name: value})
        for name in _DURATIONS:
            duration = getattr(self, name)
            may_be_none = name in ("time_to_live", "max_block_time")
            if not isinstance(duration, timedelta) and not (may_be_none and duration is None):
                raise SinkOptionError(name, f"{duration!r} must be a timedelta, such as timedelta(seconds=2)")
        check_positive(
            max_time_in_buffer=self.max_time_in_buffer,
            request_timeout=self.request_timeout,
            time_to_live=self.time_to_live,
        )
        if self.max_buffered_requests <= self.max_batch_size:
            raise SinkOptionError.out_of_bounds(
                "max_buffered_requests", self.max_buffered_requests, "more than", self.max_batch_size, "max_batch_size"
            )
        if self.max_batch_size_in_bytes < self.max_record_size_in_bytes:
            raise SinkOptionError.out_of_bounds(
                "max_batch_size_in_bytes",
                self.max_batch_size_in_bytes,
                "at least",
                self.max_record_size_in_bytes,
                "max_record_size_in_bytes",
            )
        if self.max_buffered_bytes < self.max_batch_size_in_bytes:
            raise SinkOptionError.out_of_bounds(
                "max_buffered_bytes",
                self.max_buffered_bytes,
                "at least",
                self.max_batch_size_in_bytes,
                "max_batch_size_in_bytes",
            )
        if self.max_attempts is not None and self.max_attempts < 1:
            raise SinkOptionError("max_attempts", f"{self.max_attempts} must be at least 1")
        if self.max_block_time is not None and self.max_block_time < timedelta(0):
            raise SinkOptionError("max_block_time", f"{self.max_block_time} must not be negative")
        if self.retry_backoff_base < timedelta(0):
            raise SinkOptionError("retry_backoff_base", f"{self.retry_backoff_base} must not be negative")
        if self.retry_backoff_maximum < self.retry_backoff_base:
            raise SinkOptionError(
                "retry_backoff_maximum",
                f"{self.retry_backoff_maximum} must be at least retry_backoff_base, {self.retry_backoff_base}",
            )
