"""A shard that stands still: whether it is open, and what its answers prove then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.efo_consumer._publish.list_shards import STILL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.efo_consumer._continuity.guard import ContinuitySource
    from penstock.efo_consumer._model.events import ShardEvent
    from penstock.efo_consumer._publish.list_shards import ShardListings

# After a reshard ListShards may show the parents as open for some seconds.
_LATE_LIST_MILLIS: Final = 60_000


class StandsStillError(Exception):
    """A subscription that leads nowhere, of a shard that is not known to be open."""


class StandingShard:
    """For how long a shard has stood still, and what ListShards said of it since.

    Args:
        stream: the stream.
        shard_id: the shard.
        listings: answers of ListShards.
        source: the service's time.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: str,
        shard_id: str,
        listings: ShardListings,
        source: ContinuitySource,
        clock: Callable[[], float],
    ) -> None:
        self._stream = stream
        self._shard_id = shard_id
        self._listings = listings
        self._source = source
        self._clock = clock
        self._moved_at, self._moved_millis = clock(), source.service_millis()
        self._open_millis: int | None = None
        self.is_closed = False
        """Whether ListShards showed the shard closed."""

    def moves(self) -> None:
        """Note that an answer leads on."""
        self._moved_at, self._moved_millis = self._clock(), self._source.service_millis()

    @property
    def seconds(self) -> tuple[float, float]:
        """For how many seconds the shard has stood still, and how many more the service counts.

        This machine's clock does not count the time for which it slept.
        """
        stood = self._clock() - self._moved_at
        return stood, (self._source.service_millis() - self._moved_millis) / 1000 - stood

    def proved(self, event: ShardEvent, *, is_subscription: bool) -> ShardEvent:
        """Give an event that leads nowhere without what it does not prove: that the shard is open.

        A subscription may go on after the shard was closed, and polls may be empty before its end. So an event only
        proves what ListShards shows. Polls then reach the end.

        Raises:
            StandsStillError: it is the event of a subscription, and ListShards does not show the shard open.
        """
        stood, slept = self.seconds
        is_still = stood + max(0.0, slept) >= STILL_SECONDS
        # Each empty answer of a poll stands still. Without a listing, its shard would hold the others back until then.
        is_asked = is_still or (not is_subscription and self._open_millis is None and event.read_millis is not None)
        listing = self._listings.recent(self._stream) if is_asked else None
        if listing is not None:
            is_open = listing.is_open(self._shard_id)
            self.is_closed = self.is_closed or is_open is False
            if is_open:
                asked = self._source.service_millis() - int((self._clock() - listing.asked_at) * 1000)
                self._open_millis = max(asked, self._open_millis or 0)
            elif is_subscription:
                what = "is closed" if self.is_closed else "is not listed"
                raise StandsStillError(f"the shard {what}, and its subscription leads nowhere: polling it instead")
        # What comes after the shard was closed is in its children, which are read from this time on.
        caught_up, read, known = event.caught_up_millis, event.read_millis, self._open_millis
        if caught_up is not None:
            caught_up = None if known is None else min(caught_up, known - _LATE_LIST_MILLIS)
        if read is not None and event.millis_behind_latest == 0:
            read = None if known is None else min(read, known)
        return replace(event, caught_up_millis=caught_up, read_millis=read)
