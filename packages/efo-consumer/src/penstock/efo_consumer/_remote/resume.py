"""Reads ranges from readers that may go away: which one to ask next, for what is left. Decided without I/O.

`FleetShardReader.read_range` is its shell for an event loop; `fetch.read_ranges` the blocking one, for tasks.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from penstock.efo_consumer.errors import EfoConsumerError, ReaderUnavailableError, SessionNotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardRange

PATIENCE_SECONDS = 600.0
"""As for Kinesis itself (`RecordPublisherConfig.retry_patience`)."""
RETRY_SECONDS = 0.5
ANSWER_SECONDS = 2.0
"""A reader that gives no sign for so long, while it owes one, is taken for one that is away."""
_SILENT = "DEADLINE_EXCEEDED"
_PASSING = ("UNAVAILABLE", _SILENT, "CANCELLED")
"""What a service that stops or starts answers. Refusals, such as of a token, are not retried."""

KINESIS = "Kinesis"
"""In place of an endpoint: the stream itself."""
_PLACE = ("streamName", "shardId", "sequenceNumber", "subSequenceNumber")

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def rank_endpoints(endpoints: Iterable[str], stream_name: str, shard_id: str) -> list[str]:
    """Give the endpoints in the order in which they may own a shard, the owner first (rendezvous hashing).

    The order is the same for all callers.
    """
    key = f"{stream_name}/{shard_id}"
    return sorted(
        endpoints,
        key=lambda endpoint: (hashlib.sha256(f"{endpoint}\0{key}".encode()).digest(), endpoint),
        reverse=True,
    )


@lru_cache(maxsize=1 << 15)
def owner_of(endpoints: tuple[str, ...], stream_name: str, shard_id: str) -> str:
    """Give the owner of a shard; kept, as each step of a session asks for the same ones several times."""
    return rank_endpoints(endpoints, stream_name, shard_id)[0]


class Patience:
    """The time for which failures in a row are borne.

    Args:
        seconds: since the first of them; 0 bears none.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failing_since: float | None = None

    @property
    def is_tried(self) -> bool:
        """Whether there were failures since anything came."""
        return self._failing_since is not None

    def worked(self) -> None:
        """Note that something came."""
        self._failing_since = None

    def pause(self, error: EfoConsumerError, now: float) -> float:
        """Note a failure, and give the seconds after which to ask again.

        Raises:
            EfoConsumerError: the failure, if retrying does not help, or the time is over.
        """
        if not isinstance(error, ReaderUnavailableError) or not error.reason.startswith(_PASSING):
            raise error
        is_first = self._failing_since is None
        if self._failing_since is None:
            self._failing_since = now
        if now + RETRY_SECONDS > self._failing_since + self._seconds:
            raise error
        if is_first:
            limit = "" if math.isinf(self._seconds) else f" for up to {self._seconds:g} s"
            _log.warning("%s; retrying%s", error, limit)
        return RETRY_SECONDS


async def while_alive(endpoint: str, answer: Awaitable[_T], probe: Callable[[], Awaitable[object]]) -> _T:
    """Give the answer of a reader, however long it takes, as long as the reader answers others.

    Args:
        endpoint: of the reader.
        answer: awaited; cancelled with this call.
        probe: another call, which is answered at once; that the session is not known is an answer.

    Raises:
        ReaderUnavailableError: neither was answered.
    """
    answering = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait((answering,), timeout=ANSWER_SECONDS / 2))[0]:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await probe()
            except TimeoutError:
                reason = f"DEADLINE_EXCEEDED: no answer within {ANSWER_SECONDS:g} s"
                raise ReaderUnavailableError(endpoint=endpoint, reason=reason) from None
            except SessionNotFoundError:
                pass
        return answering.result()
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


class Retrieval:
    """Ranges that one source is asked for, then the next one for what is left, until all of their records came.

    What came is known by the position of the last record, not by the number of records: others may expire before the
    next reader is asked. The range of the last record is asked for again, because the records of an aggregate share a
    sequence number; those that came are dropped.

    Args:
        ranges: the ranges of one shard follow each other in sequence order.
        endpoints: of readers, and `KINESIS`, in the order in which they are asked.
        patience: for rounds in which none of them could be reached.
        comes_back: whether a reader that is gone may come back, or has another in its place. Else only one that gives
            no sign of life is left for the next one, and waited for.
    """

    def __init__(
        self, ranges: Sequence[ShardRange], endpoints: Sequence[str], patience: Patience, *, comes_back: bool = True
    ) -> None:
        self.ranges = ranges
        """What is left to ask for."""
        self._endpoints = endpoints
        self._turn = 0
        self._comes_back = comes_back
        self._patience = patience
        self._last: _Place | None = None
        self._dropped: _Place | None = None
        self._may_renew = True

    @property
    def endpoint(self) -> str:
        """The endpoint of the reader to ask, or `KINESIS`."""
        return self._endpoints[self._turn]

    def begin(self) -> None:
        """Note that what is left is asked for: before each attempt."""
        last = self._last
        if last is not None:
            self.ranges = self.ranges[next(at for at, one in enumerate(self.ranges) if _is_in(last, one)) :]
        self._dropped = last

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give the rows of the next batch that did not come before."""
        if (dropped := self._dropped) is not None:
            # Rows that came are the first ones: later ranges of the shard are after the place.
            rows = range(batch.num_rows)
            batch = batch.slice(bisect_left(rows, True, key=lambda row: not _Place.of(batch, row).is_at_most(dropped)))
        if batch.num_rows:
            self._patience.worked()
            self._may_renew = True
            self._last, self._dropped = _Place.of(batch, batch.num_rows - 1), None
        return batch

    def failed(self, error: ReaderUnavailableError, now: float) -> float:
        """Note that the reader could not be reached, and give the seconds after which to ask the next one.

        Raises:
            ReaderUnavailableError: no source is left to ask, and the patience is at its end.
        """
        if not self._comes_back and self.endpoint != KINESIS and not error.reason.startswith(_SILENT):
            raise error
        if self._may_renew and error.reason.startswith("UNAUTHENTICATED"):
            # The token may have been replaced in its file since the call began.
            self._may_renew = False
            return 0.0
        self._turn = (self._turn + 1) % len(self._endpoints)
        if not self._turn:
            return self._patience.pause(error, now)
        if not self._patience.is_tried:
            following = "reading from Kinesis itself" if self.endpoint == KINESIS else f"asking {self.endpoint}"
            _log.warning("%s; %s", error, following)
        return 0.0


def retrievals(
    ranges: Sequence[ShardRange],
    endpoints: Sequence[str],
    away: Callable[[], Container[str]],
    patience_seconds: float = 0.0,
    *,
    with_kinesis: bool = False,
    comes_back: bool = True,
) -> Iterable[Retrieval]:
    """Give what to retrieve, each from its owner, which has it in memory, or from another.

    Args:
        ranges: ranges of one shard are in sequence order.
        endpoints: of the readers.
        away: returns the endpoints that are known to be unavailable: they are asked after all others.
        patience_seconds: for which to ask again when none can be reached.
        with_kinesis: whether ranges can be read from Kinesis itself, where no reader that is there gives them.
        comes_back: see `Retrieval`.
    """
    # Without ranges one reader is asked too: a token or an epoch that is refused must not go unnoticed.
    for part in _by_owner(ranges, endpoints) or [[]]:
        missing = away()
        ranked = rank_endpoints(endpoints, *((part[0].stream_name, part[0].shard_id) if part else ("", "")))
        there = [endpoint for endpoint in ranked if endpoint not in missing]
        rest = [endpoint for endpoint in ranked if endpoint in missing]
        kinesis = [KINESIS] if with_kinesis and part else []
        yield Retrieval(part, [*there, *kinesis, *rest], Patience(patience_seconds), comes_back=comes_back)


def _by_owner(ranges: Sequence[ShardRange], owners: Sequence[str]) -> list[list[ShardRange]]:
    """Group ranges by their owner, each of which is asked once; within a group in their order."""
    endpoints = tuple(owners)
    groups: defaultdict[str, list[ShardRange]] = defaultdict(list)
    for one in ranges:
        groups[owner_of(endpoints, one.stream_name, one.shard_id)].append(one)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a row.

    Attributes:
        shard: name of its stream and id of its shard.
        number: its sequence number, and the sub-sequence number of a record in an aggregate.
    """

    shard: tuple[str, str]
    number: tuple[int, int]

    @classmethod
    def of(cls, batch: pa.RecordBatch, row: int) -> _Place:
        stream, shard_id, number, sub_number = (batch.column(name)[row].as_py() for name in _PLACE)
        return cls((stream, shard_id), (int(number), sub_number))

    def is_at_most(self, last: _Place) -> bool:
        """Whether a row of this place came before or with `last`, a place in the first range."""
        return self.shard == last.shard and self.number <= last.number


def _is_in(place: _Place, one: ShardRange) -> bool:
    # Rows have the stream's name, also where ranges have its ARN.
    shard = (one.stream_name.rpartition(":stream/")[2], one.shard_id)
    return shard == place.shard and one.after.rank < (1, place.number[0]) <= one.upto.rank
