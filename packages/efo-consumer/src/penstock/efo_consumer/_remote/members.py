"""Which readers of a fleet may own shards: decided without I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.efo_consumer._model.positions import ShardRange


def rank_endpoints(endpoints: Iterable[str], key: str) -> list[str]:
    """Give the endpoints in the order in which they may own the key, the owner first: the same for everybody."""
    return sorted(
        endpoints,
        key=lambda endpoint: (hashlib.sha256(f"{endpoint}\0{key}".encode()).digest(), endpoint),
        reverse=True,
    )


def choose_endpoint(endpoints: Iterable[str], key: str) -> str:
    """Give the endpoint that owns the key (rendezvous hashing): the same one for everybody, in any order."""
    return rank_endpoints(endpoints, key)[0]


def shard_key(stream_name: str, shard_id: str) -> str:
    """Give the key by which a shard is owned."""
    return f"{stream_name}/{shard_id}"


@dataclass(slots=True)
class Member:
    """One reader of the fleet, as the caller sees it.

    Attributes:
        endpoint: `host:port`.
        epoch: of the part of the session that it serves; 0 when it serves none.
        failed_at: when it was first not reached; None while it answers.
    """

    endpoint: str
    epoch: int = 0
    failed_at: float | None = None


class Members:
    """The readers of a fleet. A reader owns shards until it was not reached for the lease's time.

    That is also the time after which it ends the session by itself, so that from then on nobody else reads its shards.

    Args:
        endpoints: at least one.
        lease_seconds: see above.
    """

    def __init__(self, endpoints: Sequence[str], lease_seconds: float) -> None:
        self._members = {endpoint: Member(endpoint) for endpoint in endpoints}
        self._lease_seconds = lease_seconds

    def __getitem__(self, endpoint: str) -> Member:
        return self._members[endpoint]

    def all(self) -> list[Member]:
        """Give all, reached or not."""
        return list(self._members.values())

    def owners(self, now: float) -> list[str]:
        """Give the endpoints that may own shards: those that serve the session, or whose lease still runs."""
        return [
            member.endpoint
            for member in self._members.values()
            if member.epoch and (member.failed_at is None or now - member.failed_at < self._lease_seconds)
        ]

    def served(self) -> list[Member]:
        """Give those that serve the session and answered last time."""
        return [member for member in self._members.values() if member.epoch and member.failed_at is None]

    def lost(self) -> list[Member]:
        """Give those that do not answer, or serve no part of the session: to be opened again."""
        return [member for member in self._members.values() if not member.epoch or member.failed_at is not None]

    def fail(self, endpoint: str, now: float) -> None:
        """Note that an endpoint was not reached."""
        member = self._members[endpoint]
        member.failed_at = now if member.failed_at is None else member.failed_at

    def serve(self, endpoint: str, epoch: int) -> None:
        """Note that an endpoint serves the session."""
        member = self._members[endpoint]
        member.epoch, member.failed_at = epoch, None

    def forget(self, endpoint: str) -> None:
        """Note that an endpoint answered, but does not know the session: it restarted, or ended the session."""
        self._members[endpoint].epoch = 0

    def deadline(self, now: float) -> float | None:
        """Tell in how many seconds the next lease ends."""
        left = [
            member.failed_at + self._lease_seconds - now
            for member in self._members.values()
            if member.failed_at is not None and member.epoch and now - member.failed_at < self._lease_seconds
        ]
        return min(left, default=None)


def place(positions: StreamPositions, owners: Sequence[str]) -> dict[str, StreamPositions]:
    """Divide positions among their owners by rendezvous hashing; every owner has an entry, if there is one."""
    parts: dict[str, dict[str, dict[str, ShardPosition]]] = {owner: {} for owner in owners}
    if not parts:
        return {}
    for stream, shards in positions.streams.items():
        for shard_id, position in shards.items():
            owner = choose_endpoint(owners, shard_key(stream, shard_id))
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


def runs(ranges: Sequence[ShardRange], owners: Sequence[str]) -> list[tuple[str, list[ShardRange]]]:
    """Group neighbouring ranges that have the same owner, in their order."""
    found: list[tuple[str, list[ShardRange]]] = []
    for shard_range in ranges:
        owner = choose_endpoint(owners, shard_key(shard_range.stream_name, shard_range.shard_id))
        if found and found[-1][0] == owner:
            found[-1][1].append(shard_range)
        else:
            found.append((owner, [shard_range]))
    return found


def shares(limit: int, members: Sequence[str], turn: int) -> Mapping[str, int]:
    """Divide a limit of records among readers; with less than one each, some wait for their turn. 0 is no bound."""
    if not limit or not members:
        return dict.fromkeys(members, 0)
    first = turn % len(members)
    ordered = [*members[first:], *members[:first]][:limit]
    return {member: limit // len(ordered) for member in ordered}
