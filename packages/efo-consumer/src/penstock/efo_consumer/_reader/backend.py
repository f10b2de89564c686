"""What a shard reader needs of Kinesis: narrow, so that tests can replace it."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.aws import AwsError, AwsSession, BackoffPolicy, retry
from penstock.efo_consumer._buffer.segment import arrived_millis_at, sequence_number_at
from penstock.efo_consumer._continuity.guard import ContinuitySource
from penstock.efo_consumer._continuity.rule import OldestRecord, StreamFacts
from penstock.efo_consumer._model.positions import ShardPosition
from penstock.efo_consumer._model.shards import Shard, ShardEvent, StreamIdentity
from penstock.efo_consumer._publish.condition import NoteSign, unnoted
from penstock.efo_consumer._publish.config import RecordPublisherConfig
from penstock.efo_consumer._publish.dynamodb_streams import stream_client
from penstock.efo_consumer._publish.factory import RecordPublisherFactory
from penstock.efo_consumer._publish.list_shards import ShardListings, list_shards
from penstock.efo_consumer._publish.polling import PollingTools, read_once
from penstock.efo_consumer._reader.config import ReaderConfig, SessionSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from datetime import timedelta

    from penstock.efo_consumer._publish.publisher import RecordPublisher, RecordPublisherType


class ReaderBackend(ContinuitySource, Protocol):
    """The calls of Kinesis that a shard reader uses."""

    @property
    def retry_patience(self) -> timedelta:
        """How long reading retries errors that may pass; zero for no limit."""
        ...

    def with_patience(self, retry_patience: timedelta) -> ReaderBackend:
        """Give the same with another patience. Only the first one is closed."""
        ...

    def with_settings(self, settings: SessionSettings) -> ReaderBackend:
        """Give the same with the settings of a session. Only the first one is closed."""
        ...

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        """Make a publisher for one session; `consumer_arns` is by stream name."""
        ...

    def read_once(
        self,
        stream_name: str,
        shard_id: str,
        after: ShardPosition,
        *,
        note: NoteSign = unnoted,
        is_open: bool | None = None,
    ) -> AsyncGenerator[ShardEvent, None]:
        """Poll a shard from a position on, in order, up to its end, or up to its tip while it is open.

        Events without records are given too: they show that reading continues. `note` takes failures that are retried.
        `is_open` says what the caller knows of the shard; None asks ListShards at the tip.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


# DescribeStreamSummary allows 20 calls/s per account, and a thousand shards may ask at once.
_FACTS_SECONDS = 10.0
_ASKING_SECONDS = 0.25


class KinesisBackend:
    """A `ReaderBackend` over AWS; satisfies it for the event loop that first uses it.

    Args:
        session: credentials, region and endpoint.
        config: how shards are followed.

    Raises:
        AwsOptionError: `session` is not an `AwsSession`.
    """

    def __init__(self, session: AwsSession, config: RecordPublisherConfig | None = None) -> None:
        self._session = session
        self._config = config or RecordPublisherConfig()
        self._client = stream_client(session)
        self._service_clock = session.service_clock()
        self._asking: dict[str, asyncio.Lock] = {}
        self._facts: dict[str, tuple[float, StreamFacts | AwsError]] = {}
        # One pace for all: polling publishers and replays share each shard's 5 reads/s.
        self._polling_tools = PollingTools.for_session(session, self._config)
        self._listings = ShardListings(self._list_patiently)

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        """See `ReaderBackend.record_publisher`."""
        return RecordPublisherFactory().build_record_publisher(
            replace(self._config, record_publisher=record_publisher),
            self._session,
            consumer_arns,
            polling_tools=self._polling_tools,
        )

    async def list_shards(self, stream_name: str) -> Sequence[Shard]:
        """See `ReaderBackend.list_shards`."""
        return await list_shards(self._client, StreamIdentity.of(stream_name))

    async def _list_patiently(self, stream_name: str) -> Sequence[Shard]:
        return await list_shards(self._client, StreamIdentity.of(stream_name), retry_patience=self.retry_patience)

    def read_once(
        self,
        stream_name: str,
        shard_id: str,
        after: ShardPosition,
        *,
        note: NoteSign = unnoted,
        is_open: bool | None = None,
    ) -> AsyncGenerator[ShardEvent, None]:
        """See `ReaderBackend.read_once`."""
        return read_once(
            self._client,
            StreamIdentity.of(stream_name),
            shard_id,
            after,
            tools=self._polling_tools,
            with_gaps=True,
            note=note,
            is_open=is_open,
            listings=self._listings,
        )

    @property
    def retry_patience(self) -> timedelta:
        """See `ReaderBackend.retry_patience`."""
        return self._config.retry_patience

    def with_patience(self, retry_patience: timedelta) -> KinesisBackend:
        """See `ReaderBackend.with_patience`."""
        return self._with(replace(self._config, retry_patience=retry_patience))

    def with_settings(self, settings: SessionSettings) -> KinesisBackend:
        """See `ReaderBackend.with_settings`."""
        return self._with(settings.reader(ReaderConfig(publisher=self._config)).publisher)

    def _with(self, config: RecordPublisherConfig) -> KinesisBackend:
        if config == self._config:
            return self
        # Its connections, its pace and what it knows of streams are the same.
        other = copy(self)
        other._config = config
        other._polling_tools = replace(self._polling_tools, config=config)
        other._listings = ShardListings(other._list_patiently)
        return other

    def service_millis(self) -> int:
        """See `ContinuitySource.service_millis`."""
        return int(self._service_clock.latest() * 1000)

    async def stream_facts(self, stream_name: str, *, is_fresh: bool = False) -> StreamFacts:
        """See `ContinuitySource.stream_facts`."""
        asked_at = time.monotonic()
        async with self._asking.setdefault(stream_name, asyncio.Lock()):
            asked_last, facts = self._facts.get(stream_name, (float("-inf"), None))
            # What was asked while this waited is fresh too.
            if facts is None or asked_last < (asked_at if is_fresh else asked_at - _FACTS_SECONDS):
                await asyncio.sleep(max(0.0, asked_last + _ASKING_SECONDS - asked_at))
                asked_last = time.monotonic()
                try:
                    facts = await self._ask_facts(stream_name)
                except AwsError as error:
                    facts = error
                self._facts[stream_name] = (asked_last, facts)
            if isinstance(facts, AwsError):
                raise facts
            return facts

    async def stream_arn(self, stream_name: str) -> str | None:
        """Give the ARN of the stream that a name means here.

        Raises:
            AwsError: Kinesis cannot be asked.
        """
        return (await self.stream_facts(stream_name)).arn

    async def oldest_record(self, stream_name: str, shard_id: str) -> OldestRecord | None:
        """See `ContinuitySource.oldest_record`."""
        events = read_once(
            self._client,
            StreamIdentity.of(stream_name),
            shard_id,
            ShardPosition.trim_horizon(),
            tools=replace(self._polling_tools, config=replace(self._config, get_records_max_records=1)),
            listings=self._listings,
        )
        async with aclosing(events):
            async for event in events:
                if event.records.num_rows:
                    return OldestRecord(sequence_number_at(event.records, 0), arrived_millis_at(event.records, 0))
        return None

    async def _ask_facts(self, stream_name: str) -> StreamFacts:
        call = partial(self._client.call, "DescribeStreamSummary", StreamIdentity.of(stream_name).request)
        summary = (await retry(call, BackoffPolicy()))["StreamDescriptionSummary"]
        created = summary.get("StreamCreationTimestamp")
        retention = round(float(summary["RetentionPeriodHours"]) * 3_600_000)
        return StreamFacts(
            retention, None if created is None else round(float(created) * 1000), summary.get("StreamARN")
        )

    async def aclose(self) -> None:
        """See `ReaderBackend.aclose`."""
        await self._client.close()
