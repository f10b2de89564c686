"""Polling: GetRecords, within the shard's reads per second; and the same for replays of a range."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.efo_consumer._polling_reads import PollingTools, ShardPoll
from penstock.efo_consumer._positions import PositionType, ShardPosition
from penstock.efo_consumer._publisher import ShardEvent, StreamIdentity
from penstock.efo_consumer._publisher_metrics import PublisherMetrics, publisher_metrics

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penstock.aws import JsonClient
    from penstock.efo_consumer._decode import DecodedPayload


class PollingRecordPublisher:
    """Publishes shards by GetRecords; satisfies `RecordPublisher`.

    Args:
        client: makes the calls; closed with the publisher.
        tools: the configuration, and the pace that all reads of the process share.
    """

    def __init__(
        self,
        client: JsonClient,
        *,
        tools: PollingTools | None = None,
        metrics: PublisherMetrics | None = None,
    ) -> None:
        self._client = client
        self._tools = tools or PollingTools()
        self._metrics = metrics or publisher_metrics()

    async def publish(
        self, stream: StreamIdentity, shard_id: str, position: ShardPosition
    ) -> AsyncGenerator[ShardEvent, None]:
        """See `RecordPublisher.publish`.

        GetRecords names no continuation of its own: an empty answer's is that of the last record. Answers before the
        first record have none, and no child shards: they only tell how far behind the latest record reading is.

        Raises:
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts are used up.
        """
        if position.type is PositionType.SHARD_END:
            return
        poll = ShardPoll(self._client, stream, shard_id, position, self._tools)
        try:
            while True:
                # Before the call: what arrives during it may be in the answer, or not.
                asked_at = self._tools.wall_clock()
                payload = await poll.read()
                event = _event(payload, poll.position)
                if payload.millis_behind_latest == 0:
                    event = replace(event, caught_up_millis=int(asked_at * 1000))
                self._metrics.event_read(event, stream=stream.name, shard_id=shard_id)
                yield event
                if payload.next_iterator is None:
                    return
        finally:
            self._metrics.shard_left(stream=stream.name, shard_id=shard_id)

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()


async def read_once(
    client: JsonClient,
    stream: StreamIdentity | str,
    shard_id: str,
    after: ShardPosition,
    *,
    tools: PollingTools | None = None,
    with_gaps: bool = False,
) -> AsyncGenerator[ShardEvent, None]:
    """Read what the shard holds after a position, up to its tip or end: for the replay of a range.

    Ends at the tip instead of waiting there. The caller stops it, with `aclose()`, where its range ends; events are
    those of GetRecords calls and do not know of the range. Answers without records, which lead over the time between
    two of them, are told `with_gaps` only: without a continuation as long as no record came.

    Raises:
        RecordPublisherFatalError: trying again is useless.
        RecordPublisherRetriesError: the attempts are used up.
    """
    if after.type is PositionType.SHARD_END:
        return
    identity = StreamIdentity(stream) if isinstance(stream, str) else stream
    poll = ShardPoll(client, identity, shard_id, after, tools or PollingTools())
    while True:
        payload = await poll.read()
        if payload.records.num_rows or payload.next_iterator is None or with_gaps:
            yield _event(payload, poll.position)
        # Zero is said only at the tip: an answer without records further back is a gap to be read over.
        if payload.next_iterator is None or payload.millis_behind_latest == 0:
            return


def _event(payload: DecodedPayload, position: ShardPosition) -> ShardEvent:
    at_end = payload.next_iterator is None
    return ShardEvent(
        records=payload.records,
        continuation=None if at_end else position.sequence_number,
        millis_behind_latest=payload.millis_behind_latest,
        child_shards=payload.child_shards if at_end else (),
        nbytes=payload.nbytes,
    )
