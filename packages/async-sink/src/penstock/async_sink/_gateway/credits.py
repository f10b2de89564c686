"""Back-pressure by credits: a client sends what it was allowed to, and no more."""

from dataclasses import dataclass

from penstock.async_sink._rate.strategy import RequestInfo, ResultInfo
from penstock.async_sink.errors import GatewayRefusedError, SinkOptionError


@dataclass(frozen=True, kw_only=True)
class CreditWindow:
    """What one client may have sent without an acknowledgement. The same for every client: none crowds out others.

    Raises:
        SinkOptionError: a batch of the destination's largest size would not fit.
    """

    entries: int = 5_000
    """Entries."""
    bytes: int = 16 * 1024 * 1024
    """Bytes, by the destination's measure."""
    largest_batch_entries: int = 500
    """Entries of a batch that must fit. Default: that of PutRecords."""
    largest_batch_bytes: int = 5 * 1024 * 1024
    """Bytes of a batch that must fit. Default: that of the Kinesis sink."""

    def __post_init__(self) -> None:
        if self.entries < self.largest_batch_entries:
            raise SinkOptionError("credit_entries", f"{self.entries} must be at least {self.largest_batch_entries}")
        if self.bytes < self.largest_batch_bytes:
            raise SinkOptionError("credit_bytes", f"{self.bytes} must be at least {self.largest_batch_bytes}")


class CreditAccount:
    """The gateway's side: what a client may still send."""

    def __init__(self, window: CreditWindow) -> None:
        self._entries = window.entries
        self._bytes = window.bytes

    def spend(self, entries: int, size_in_bytes: int) -> None:
        """A batch has come.

        Raises:
            GatewayRefusedError: it was not covered.
        """
        if entries > self._entries or size_in_bytes > self._bytes:
            raise GatewayRefusedError(
                "RESOURCE_EXHAUSTED",
                f"a batch of {entries} entries and {size_in_bytes} bytes exceeds the credits left, "
                f"{self._entries} entries and {self._bytes} bytes",
            )
        self._entries -= entries
        self._bytes -= size_in_bytes

    def restore(self, entries: int, size_in_bytes: int) -> None:
        """The batch is settled."""
        self._entries += entries
        self._bytes += size_in_bytes


class CreditStrategy:
    """The client's side, as a rate limiting strategy: its limit arrives as missing credits."""

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size
        self._window_entries = max_batch_size
        self._window_bytes: int | None = None
        self._never_covered = 0
        self._entries = 0
        self._bytes = 0

    @property
    def credit_entries(self) -> int:
        """Entries that may be sent now."""
        return self._entries

    def open(self, entries: int, size_in_bytes: int) -> None:
        """The first grant of a connection: all that may be sent without an answer."""
        self._window_entries = entries
        self._window_bytes = size_in_bytes
        self.grant(entries, size_in_bytes)

    def check(self) -> None:
        """Before a batch is sent.

        Raises:
            SinkOptionError: it is one that the gateway's window never covers.
        """
        if self._never_covered:
            raise SinkOptionError(
                "max_batch_size_in_bytes",
                f"a batch of {self._never_covered} bytes is more than the {self._window_bytes} that the gateway grants "
                "a client: make this option smaller, or the gateway's --credit-bytes larger",
            )

    def grant(self, entries: int, size_in_bytes: int) -> None:
        """The gateway allows that much more."""
        self._entries += entries
        self._bytes += size_in_bytes

    def revoke(self) -> None:
        """The connection is gone, and the credits with it."""
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
        """Nothing: the gateway grants new credits itself."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether the credits do not cover the batch. One that they never cover is let through to its error."""
        if self._is_never_covered(request):
            return False
        return request.batch_size > self._entries or request.size_in_bytes > self._bytes

    def get_max_batch_size(self) -> int:
        """The configured size, if the gateway ever grants that much: smaller batches make its requests smaller."""
        return min(self._max_batch_size, self._window_entries)

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """A day: the writer is woken when a grant comes."""
        return 86_400.0
