"""The rule of continuity: whether records may have expired between a position and what was read beyond it.

Pure: it does no I/O and takes the service's time as an argument, never this host's clock. Every way to read passes it:
following, reading a logged range again, bounded reads and the plain consumer.

Records that were not delivered at a position arrived after `ShardPosition.known_millis`. As long as less than the
stream's retention period has passed since then, none of them can have expired: that proves continuity without asking
anybody. Beyond the shortest period that there is, this needs a period that was never shorter meanwhile (see
`ShardGuard`). Otherwise the oldest record that is left is compared with the position. If that proves nothing either,
records count as lost.

Nothing here relies on what AWS leaves open: whether a trimmed sequence number is refused or passed over, whether
records disappear ahead of an open iterator, whether arrival times grow, or what a sequence number is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.efo_consumer._model.positions import PositionType, ShardPosition

SHORTEST_RETENTION_MILLIS = 24 * 3600 * 1000
"""No stream keeps its records for a shorter time (API reference, DecreaseStreamRetentionPeriod)."""
CLOCK_MARGIN_MILLIS = 5_000
"""Arrival times are approximate by a second, and servers' clocks need not agree to the second."""
_RESTART_MARGIN_MILLIS = 10_000


class Verdict(StrEnum):
    """What is known of the records between a position and what was read beyond it."""

    CONTINUOUS = "continuous"
    """None is missing: proved."""
    LOOK = "look"
    """Compare the oldest record that is left with the position, before anything is handed on."""
    LOST = "lost"
    """Records are gone, or cannot be proved to exist."""


@dataclass(frozen=True)
class OldestRecord:
    """The oldest record that a shard still holds.

    Attributes:
        sequence_number: chosen by Kinesis.
        arrived_millis: its arrival time, in milliseconds since the epoch.
    """

    sequence_number: int
    arrived_millis: int


@dataclass(frozen=True)
class StreamFacts:
    """What DescribeStreamSummary says of a stream.

    Attributes:
        retention_millis: how long it keeps records.
        created_millis: when it was created, in milliseconds since the epoch; None if not given.
        arn: of the stream; None if not given.
    """

    retention_millis: int
    created_millis: int | None
    arn: str | None = None


def judge(after: ShardPosition, now_millis: int, retention_millis: int = SHORTEST_RETENTION_MILLIS) -> Verdict:
    """Whether records beyond a position may have expired by now.

    Args:
        after: up to where everything was delivered.
        now_millis: the service's time when the records beyond were read, or later.
        retention_millis: of the stream; the shortest that there is if not given.
    """
    known = after.known_millis
    if known is None:
        # A caller that begins at TRIM_HORIZON wants what there is.
        return Verdict.CONTINUOUS if after.type is PositionType.TRIM_HORIZON else Verdict.LOOK
    return Verdict.CONTINUOUS if now_millis - known < retention_millis - CLOCK_MARGIN_MILLIS else Verdict.LOOK


def judge_oldest(after: ShardPosition, oldest: OldestRecord | None) -> Verdict:
    """Tell it from the oldest record that is left, looked up after the records beyond were read; None if none is."""
    if oldest is None:
        return Verdict.LOST
    if after.sequence_number is not None and oldest.sequence_number <= int(after.sequence_number):
        return Verdict.CONTINUOUS
    known = after.known_millis
    # Whatever expired is older than this record, and so than anything that was not delivered.
    is_older = known is not None and oldest.arrived_millis < known - CLOCK_MARGIN_MILLIS
    return Verdict.CONTINUOUS if is_older else Verdict.LOST


def is_kept(after: ShardPosition, now_millis: int, retention_millis: int) -> bool:
    """Whether the last record that was delivered has to be there still, if the retention never was shorter."""
    arrived = after.arrived_millis
    return arrived is not None and now_millis - arrived < retention_millis - CLOCK_MARGIN_MILLIS


def restart(after: ShardPosition) -> ShardPosition:
    """Give a position that Kinesis cannot refuse, from which reading meets every record beyond one it refused.

    Records that were delivered may come again: drop them by their sequence numbers.
    """
    known = after.known_millis
    return ShardPosition.trim_horizon() if known is None else ShardPosition.at_timestamp(known - _RESTART_MARGIN_MILLIS)
