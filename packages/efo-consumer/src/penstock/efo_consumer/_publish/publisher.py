"""The contract of record publishers: FLIP-128's RecordPublisher, pulled by its caller, in Arrow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from penstock.efo_consumer._model.shards import MAX_EVENT_BYTES, ShardEvent, StreamIdentity
from penstock.efo_consumer._publish.condition import NoteSign, unnoted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penstock.efo_consumer._model.positions import ShardPosition


ARRIVAL_MARGIN_SECONDS = 1.0
"""How much earlier than it came a record may claim to have arrived.

`ApproximateArrivalTimestamp` may go back by this much within a shard. A proof that all records that came before a time
have been read is one for the arrival times before that, less this.
"""


Room = Callable[[int], AbstractContextManager[int]]
"""Keeps room for an answer while it is fetched.

It is given the bytes that are of use, and gives those that the answer may have: more where there is room, or less.
"""


def unbounded(nbytes: int) -> AbstractContextManager[int]:
    """Have room for any answer."""
    return nullcontext(MAX_EVENT_BYTES)


class RecordPublisherType(StrEnum):
    """How records are read (FLIP-128 `flink.stream.recordpublisher`)."""

    EFO = "efo"
    POLLING = "polling"


class RecordPublisher(Protocol):
    """Publishes the records of shards, one generator per shard."""

    @property
    def interval_seconds(self) -> float:
        """How long after an event of a shard the next one is asked for at the earliest; 0 if the service sends it."""
        ...

    def publish(
        self,
        stream: StreamIdentity,
        shard_id: str,
        position: ShardPosition,
        *,
        note: NoteSign = unnoted,
        room: Room = unbounded,
    ) -> AsyncGenerator[ShardEvent, None]:
        """Yield the shard's events from `position` on, in order, without gap or repeat.

        The caller pulls: the next event is fetched, and the HTTP/2 window credited, only as events are taken.
        Ends after the event that has child shards. `aclose()`, or cancelling the caller, ends the
        subscription. `note` is called between two events: for failures that are retried, and ends of subscriptions.
        `room` is asked before each event whose size can be chosen.

        Raises:
            RecordPublisherFatalError: the service said that trying again is useless.
            RecordPublisherRetriesError: every attempt failed, for as long or as often as is allowed.
        """
        ...

    def waits_since(self, stream: StreamIdentity, shard_id: str) -> float | None:
        """When the first record arrived that is known to wait, in seconds since the epoch; None without one."""
        ...

    def is_taken_over(self, stream: StreamIdentity, shard_id: str) -> bool:
        """Whether another reader took a subscription of the shard, and may still read by the same stream consumer."""
        ...

    async def close(self) -> None:
        """End every subscription and connection of this publisher."""
        ...
