"""Which leases of stream consumers a reader has seen, so that an older one is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.efo_consumer.errors import EfoConsumerConfigError, FencedConsumerError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.efo_consumer._reader.api import StreamConsumer

KEPT_SECONDS: Final = 600.0
"""How long a lease is remembered after the last session that was opened with it. Leases themselves last for 30 s."""
LARGEST_LEAP: Final = 1_000_000_000
"""By which a token may exceed the newest that was seen: they grow by one with each lease."""
_MOST_CONSUMERS: Final = 10_000
_ARN: Final = re.compile(r"(arn:[\w-]+:kinesis:[\w-]*:\d*:stream/([\w.-]{1,128})/consumer/[\w.-]{1,128}):\d{1,20}")


@dataclass
class _Seen:
    token: int
    used_at: float
    sessions: set[str] = field(default_factory=set)


class FencingTokens:
    """The newest token of each consumer that has a session here, or had one lately.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def check(self, consumers: Sequence[StreamConsumer], sessions: Collection[str]) -> None:
        """Refuse older leases than were seen. Remembers nothing.

        Args:
            consumers: of a caller that opens a session.
            sessions: ids of those that are open.

        Raises:
            FencedConsumerError: another job has leased one of the consumers since.
            EfoConsumerConfigError: a consumer does not belong to its stream, or has a token that no registry gives.
        """
        self._forget(sessions)
        for consumer in consumers:
            token = consumer.fencing_token
            seen = self._seen.get(_name(consumer))
            newest = 0 if seen is None else seen.token
            if not 0 <= token <= newest + LARGEST_LEAP:
                reason = f"fencing token {token} of {consumer.stream_name} was not given by a registry"
                raise EfoConsumerConfigError(option="consumers", reason=f"{reason}: the newest here is {newest}")
            if token and token < newest:
                raise FencedConsumerError(stream=consumer.stream_name, fencing_token=token, seen_fencing_token=newest)

    def opened(self, session_id: str, consumers: Sequence[StreamConsumer]) -> None:
        """Remember the leases of a session that was opened."""
        now = self._clock()
        for consumer in consumers:
            name = _name(consumer)
            # The one that was used last comes last.
            seen = self._seen.pop(name, None) or _Seen(0, now)
            seen.token, seen.used_at = max(seen.token, consumer.fencing_token), now
            seen.sessions.add(session_id)
            self._seen[name] = seen
        while len(self._seen) > _MOST_CONSUMERS:
            del self._seen[next(iter(self._seen))]

    def _forget(self, sessions: Collection[str]) -> None:
        now = self._clock()
        for name, seen in list(self._seen.items()):
            seen.sessions = {session for session in seen.sessions if session in sessions}
            if seen.sessions:
                seen.used_at = now
            elif now - seen.used_at > KEPT_SECONDS:
                del self._seen[name]


def _name(consumer: StreamConsumer) -> str:
    """The consumer's ARN without its creation time: a successor of the same name must count as the same."""
    found = _ARN.fullmatch(consumer.consumer_arn)
    if found is None or found[2] != consumer.stream_name.rpartition("/")[2]:
        reason = f"{consumer.consumer_arn[:300]!r} is not an ARN of a consumer of {consumer.stream_name[:300]!r}"
        raise EfoConsumerConfigError(option="consumers", reason=reason)
    return found[1]
