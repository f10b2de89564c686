"""Reads ranges from whichever reader of a fleet is there."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from penstock.efo_consumer._remote.members import rank_endpoints, runs, shard_key
from penstock.efo_consumer.errors import ReaderUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardRange

PATIENCE_SECONDS = 60.0
"""A container that is started anew takes less."""
RETRY_SECONDS = 0.5
_PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
"""What a service that goes or comes answers; refusals, such as of a token, do not pass by themselves."""


class Patience:
    """The time for which failures in a row are borne.

    Args:
        seconds: since the first of them; 0 bears none.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._failing_since: float | None = None

    @property
    def is_tried(self) -> bool:
        """Whether the last attempt failed."""
        return self._failing_since is not None

    def worked(self) -> None:
        """Note that something came."""
        self._failing_since = None

    def bears(self, error: ReaderUnavailableError, now: float) -> bool:
        """Note a failure, and tell whether to ask again after RETRY_SECONDS."""
        if not error.reason.startswith(_PASSING):
            return False
        if self._failing_since is None:
            self._failing_since = now
        return now + RETRY_SECONDS <= self._failing_since + self.seconds


_log = logging.getLogger(__name__)


class Resumption:
    """What of some ranges was given already: the same ranges give the same rows, so others are told by their count."""

    def __init__(self) -> None:
        self._given = 0
        self._passed = 0

    def begin(self) -> None:
        """Note that the ranges are read from their beginning again."""
        self._passed = 0

    def rest(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give the rows of the next batch that were not given before."""
        first = min(batch.num_rows, max(0, self._given - self._passed))
        self._passed += batch.num_rows
        self._given = max(self._given, self._passed)
        return batch.slice(first) if first else batch


async def read_from_any(
    ranges: Sequence[ShardRange],
    owners: Sequence[str],
    endpoints: Sequence[str],
    read: Callable[[str, Sequence[ShardRange]], AsyncGenerator[pa.RecordBatch, None]],
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Give the rows of the ranges: each from its owner, which has it in memory, or from the next that can be reached.

    Raises:
        ReaderUnavailableError: none can be reached.
    """
    for owner, part in runs(ranges, owners):
        order = candidates(part, owner, endpoints)
        resumption = Resumption()
        for place, endpoint in enumerate(order):
            resumption.begin()
            batches = read(endpoint, part)
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        rest = resumption.rest(batch)
                        if rest.num_rows:
                            yield rest
                break
            except ReaderUnavailableError as error:
                if place == len(order) - 1:
                    raise
                _log.warning("%s; the next reader is asked for the range", error)


def candidates(part: Sequence[ShardRange], owner: str, endpoints: Sequence[str]) -> list[str]:
    """Give the endpoints to ask for some ranges, in turn."""
    key = shard_key(part[0].stream_name, part[0].shard_id)
    return [owner, *(endpoint for endpoint in rank_endpoints(endpoints, key) if endpoint != owner)]
