"""Which readers of a fleet may own shards, and what is known of shards that wait for theirs: decided without I/O."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._publish.condition import ShardCondition, ShardState
from penstock.efo_consumer._reader.api import ShardStats
from penstock.efo_consumer._remote.resume import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.efo_consumer.errors import EfoConsumerError, ReaderUnavailableError


@dataclass(slots=True)
class Member:
    """One reader of the fleet, as the caller sees it.

    Attributes:
        endpoint: `host:port`.
        is_open: whether it is known to serve a part of the session.
        failed_at: when it was first not reached; None while it answers.
        failure: why it serves nothing, as it was reported last.
    """

    endpoint: str
    is_open: bool = False
    failed_at: float | None = None
    failure: EfoConsumerError | None = None


class Members:
    """The readers of a fleet. A reader owns shards until it was not reached for the lease's time.

    After the same time it ends the session on its own, so that its shards are not read twice.

    Readers may join and leave: what is noted of one that has left counts for nothing.

    Args:
        lease_seconds: see above.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._members: dict[str, Member] = {}
        self._lease_seconds = lease_seconds

    def __getitem__(self, endpoint: str) -> Member:
        return self._members.get(endpoint) or Member(endpoint)

    def join(self, endpoint: str) -> None:
        """Take a reader in, which owns shards once it serves the session."""
        # A new dict each time: other threads look at the members, too.
        self._members = {**self._members, endpoint: Member(endpoint)}

    def leave(self, endpoint: str) -> None:
        """Remove a reader that is known to be gone: the others own its shards at once."""
        self._members = {name: member for name, member in self._members.items() if name != endpoint}

    def all(self) -> list[Member]:
        """Give all, reached or not."""
        return list(self._members.values())

    def owners(self, now: float) -> list[str]:
        """Give the endpoints that may own shards: those that serve the session, or whose lease still runs."""
        return [
            member.endpoint
            for member in self._members.values()
            if member.is_open and (member.failed_at is None or now - member.failed_at < self._lease_seconds)
        ]

    def served(self) -> list[Member]:
        """Give those that serve the session and answered last time."""
        return [member for member in self._members.values() if member.is_open and member.failed_at is None]

    def lost(self) -> list[Member]:
        """Give those that do not answer, or serve no part of the session: to be opened again."""
        return [member for member in self._members.values() if not member.is_open or member.failed_at is not None]

    def fail(self, error: ReaderUnavailableError, now: float) -> bool:
        """Note that an endpoint was not reached, and return whether that is new."""
        member = self[error.endpoint]
        is_new = member.failed_at is None and error.endpoint in self._members
        member.failed_at = now if member.failed_at is None else member.failed_at
        member.failure = error
        return is_new

    def serve(self, endpoint: str) -> None:
        """Note that an endpoint serves the session."""
        member = self[endpoint]
        member.is_open, member.failed_at, member.failure = True, None, None

    def forget(self, endpoint: str) -> None:
        """Note that an endpoint answered, but does not know the session: it restarted, or ended the session."""
        self[endpoint].is_open = False

    def lease_left(self, member: Member, now: float) -> float | None:
        """In how many seconds the shards of a member that does not answer move; None if it has none to move."""
        if member.failed_at is None or not member.is_open:
            return None
        left = member.failed_at + self._lease_seconds - now
        return left if left > 0 else None

    def deadline(self, now: float) -> float | None:
        """In how many seconds the next lease ends."""
        left = [seconds for one in self._members.values() if (seconds := self.lease_left(one, now)) is not None]
        return min(left, default=None)


class KnownStats:
    """What was reported of shards last, for the time in which their reader reports nothing.

    Args:
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._known: dict[tuple[str, str], tuple[float, ShardStats]] = {}

    def update(self, stats: Iterable[ShardStats]) -> None:
        """Take what readers report."""
        now = self._clock()
        self._known |= {(one.stream_name, one.shard_id): (now, one) for one in stats}

    def waiting(self, positions: StreamPositions, since: float, cause: str) -> list[ShardStats]:
        """Give the numbers of shards that wait for a reader: as they were, with a lag that grows, and with the cause.

        Args:
            positions: name the shards; shards at their end do not wait.
            since: when the reader was first not reached, by the clock.
            cause: as text.
        """
        now = self._clock()
        since_millis = round((self._wall_clock() - (now - since)) * 1000)
        condition = ShardCondition(ShardState.REFUSED, since_millis, cause)
        found = []
        for stream, shards in positions.streams.items():
            for shard_id, position in shards.items():
                if position.is_shard_end:
                    continue
                nothing = ShardStats(stream, shard_id, -1, 0, 0, 0, 0, 0, 0)
                told_at, stats = self._known.get((stream, shard_id), (now, nothing))
                lag = stats.millis_behind_latest
                lag = lag if lag < 0 else lag + round((now - told_at) * 1000)
                found.append(replace(stats, condition=condition, millis_behind_latest=lag))
        return found


def place(positions: StreamPositions, owners: Sequence[str]) -> dict[str, StreamPositions]:
    """Divide positions among their owners by rendezvous hashing; every owner has an entry, if there is one."""
    parts: dict[str, dict[str, dict[str, ShardPosition]]] = {owner: {} for owner in owners}
    if not parts:
        return {}
    endpoints = tuple(owners)
    for stream, shards in positions.streams.items():
        for shard_id, position in shards.items():
            owner = owner_of(endpoints, stream, shard_id)
            parts[owner].setdefault(stream, {})[shard_id] = position
    return {
        owner: StreamPositions(streams, {one: positions.created[one] for one in streams if one in positions.created})
        for owner, streams in parts.items()
    }


def union(start: StreamPositions, parts: Iterable[StreamPositions]) -> StreamPositions:
    """Give `start` with the positions of the parts in place of its own, and with what they know of the streams."""
    streams = {stream: dict(shards) for stream, shards in start.streams.items()}
    created = dict(start.created)
    for part in parts:
        created |= part.created
        for stream, shards in part.streams.items():
            streams[stream] |= shards
    return StreamPositions(streams, created)
