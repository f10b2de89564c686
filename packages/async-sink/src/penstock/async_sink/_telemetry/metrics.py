"""Numbers about a writer."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class SinkMetrics:
    """Numbers since the writer was made. Kept up to date by the writer; read only for everybody else."""

    records_out: int = 0
    """Entries that the destination has accepted, each counted once however often it was sent."""
    bytes_out: int = 0
    """Bytes of those entries."""
    submitted: int = 0
    """Entries sent, counted again each time."""
    bytes_submitted: int = 0
    """Bytes sent, counted again each time."""
    requests: int = 0
    """Requests sent."""
    failed: int = 0
    """Entries that came back, for whatever reason, counted again each time (numRecordsOutErrors)."""
    retried: int = 0
    """Entries that were put back to be sent again, counted again each time."""
    throttled: int = 0
    """Entries that came back because the destination was full, counted again each time."""
    rejected: int = 0
    """Entries that were given up because the destination refused them, for good or too often."""
    expired: int = 0
    """Entries that were given up because their time to live was over."""
    dead_lettered: int = 0
    """Entries that the terminal record handler has taken."""
    timed_out: int = 0
    """Requests without an answer in time."""
    last_failure: str = ""
    """Code and words of the latest failure of an entry, also of one that was sent again; empty before the first."""
    current_send_time_ms: float = 0.0
    """Milliseconds that the latest request took, whether it succeeded or not (currentSendTime)."""
    max_batch_size: int = 1
    """The largest request, for `fill_ratio`."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Accepted entries by the number of their submissions."""
    flush_reasons: Counter[str] = field(default_factory=Counter)
    """Requests by why they left: `size`, `bytes`, `time`, `flush`, `retry`, `full` (a caller waited for room), `pace`
    (shards got new tokens), `order` (what stood before them with their key was settled), `bisected` (part of a request
    that was refused whole)."""
    throttled_by_lane: Counter[str] = field(default_factory=Counter)
    """Throttled entries by lane (shard), counted again each time; where the destination names it."""
    throttled_elsewhere: int = 0
    """The others: the destination did not name their lane."""
    blocked_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by reason. Callers that waited for room, each on its own: `buffer_records`, `buffer_bytes`. Requests that
    were due and had to wait: `rate` (the strategy), `requests_in_flight`, `back_off` (strict order)."""

    @property
    def fill_ratio(self) -> float:
        """Mean share of the largest request's entries that requests had; 0 before the first."""
        return self.submitted / (self.requests * self.max_batch_size) if self.requests else 0.0


@dataclass(frozen=True, kw_only=True)
class SinkGauges:
    """A writer at this moment."""

    buffer_records: int
    """Entries that wait."""
    buffer_bytes: int
    """Their bytes."""
    buffer_age_seconds: float
    """Since the oldest of them was written; 0 when none waits."""
    in_flight_requests: int
    """Requests without an answer."""
    in_flight_messages: int
    """Their entries."""
    limit: int | None
    """The strategy's limit, in its own unit; None when it has none."""
