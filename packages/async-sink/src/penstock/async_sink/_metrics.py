"""Numbers about a writer."""

from dataclasses import dataclass


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
    """Entries that the destination refused for good."""
    timed_out: int = 0
    """Requests without an answer in time."""
    current_send_time_ms: float = 0.0
    """Milliseconds that the latest request took, whether it succeeded or not (currentSendTime)."""
