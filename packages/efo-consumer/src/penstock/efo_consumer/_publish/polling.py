"""Polling: GetRecords, within the shard's reads per second; and the same for replays of a range."""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import msgspec

from penstock.aws import AwsSession, BackoffPolicy, ErrorKind, JsonClient, ServiceClock, error_code
from penstock.efo_consumer._model.positions import PositionType, ShardPosition
from penstock.efo_consumer._model.shards import Shard, ShardEvent, StreamIdentity
from penstock.efo_consumer._publish.condition import STALLED_SECONDS, NoteSign, ShardSign, unnoted
from penstock.efo_consumer._publish.config import RecordPublisherConfig
from penstock.efo_consumer._publish.diagnosis import NOT_FOUND, KinesisDiagnosis, code_of, resource_missing, with_advice
from penstock.efo_consumer._publish.list_shards import ShardListings, list_shards
from penstock.efo_consumer._publish.metrics import PublisherMetrics, publisher_metrics
from penstock.efo_consumer._publish.pace import ReadPace, process_pace
from penstock.efo_consumer._publish.publisher import ARRIVAL_MARGIN_SECONDS, Room, unbounded
from penstock.efo_consumer._publish.retries import READ_ERRORS, ReadRetries, kind_of
from penstock.efo_consumer._wire.decode import DecodedPayload, decode_payload
from penstock.efo_consumer.errors import RecordPublisherFatalError, RecordPublisherRetriesError, ShardEndError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence


_log = logging.getLogger(__name__)

# An iterator lives 5 minutes (API reference): one that waited longer than this with the consumer is not worth a call.
_ITERATOR_SECONDS = 280.0

# GetRecords may run up to a second behind what SubscribeToShard shows: what came within this time before a call may be
# missing from an answer that claims to be at the tip.
_LAG_SECONDS = 1.0

# Kinesis always says how far behind an answer is.
_UNSAID_SECONDS = 60.0

TIP_SECONDS = 60.0
"""How long an open shard's answers are empty before a read ends, where the service does not say where the tip is."""
# Between two looks whether a shard that ListShards does not show is listed by now.
_LIST_AGAIN_SECONDS = 1.0

# After a reshard ListShards may show the children late.
_CHILDREN_PATIENCE_SECONDS = 60.0


class _Iterator(msgspec.Struct):
    value: str | None = msgspec.field(name="ShardIterator", default=None)


@dataclass(kw_only=True)
class PollingTools:
    """What reads share.

    Attributes:
        pace: what the shards allow; `for_session` shares it with all readers of the process.
        service_clock: the service's time; `for_session` takes the session's clock, which the answers set.
    """

    config: RecordPublisherConfig = field(default_factory=RecordPublisherConfig)
    pace: ReadPace = field(default_factory=ReadPace)
    clock: Callable[[], float] = time.monotonic
    service_clock: ServiceClock = field(default_factory=ServiceClock)
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random_module.random

    @classmethod
    def for_session(cls, session: AwsSession, config: RecordPublisherConfig) -> Self:
        """Tools whose pace is shared by all readers of this process with the same account, region and endpoint."""
        options = session.options
        account = (session.region, options.endpoint_url, options.access_key_id, options.role_arn, options.profile)
        return cls(config=config, pace=process_pace(account), service_clock=session.service_clock())


class ShardPoll:
    """Reads one shard call by call; remembers where it is, so that an expired iterator costs nothing.

    Attributes:
        position: after the last record that was returned.
    """

    def __init__(
        self,
        client: JsonClient,
        stream: StreamIdentity,
        shard_id: str,
        position: ShardPosition,
        tools: PollingTools,
        note: NoteSign = unnoted,
        room: Room = unbounded,
    ) -> None:
        self._client = client
        self._stream = stream
        self._room = room
        self._is_behind = True
        self._shard_id = shard_id
        self._tools = tools
        self._iterator: str | None = None
        self._iterator_at = 0.0
        self._note = note
        self._retries = ReadRetries(
            stream=stream.name,
            shard_id=shard_id,
            patience_seconds=tools.config.retry_patience.total_seconds(),
            service_seconds=tools.service_clock.latest,
            is_watched=note is not unnoted,
        )
        self._operation = ""
        self._counted = 0
        self._next_read_at = 0.0
        self._asked_at = 0.0
        self._endless_since: float | None = None
        self._endless_answers = 0
        self.position = position

    async def read(self) -> ShardEvent:
        """The next GetRecords answer; waits for the shard's pace, backs off and retries.

        Raises:
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts, or the patience, are used up.
        """
        while True:
            # Before an iterator is taken, which may live for a shorter time.
            await self._sleep(self._next_read_at - self._now())
            try:
                if self._iterator is None or self._now() - self._iterator_at > _ITERATOR_SECONDS:
                    self._begin("GetShardIterator")
                    self._iterator = await self._get_shard_iterator()
                    self._iterator_at = self._now()
                self._begin("GetRecords")
                payload = await self._get_records(self._iterator)
                children = payload.child_shards
                if payload.next_iterator is None and not children:
                    self._begin("ListShards")
                    children = await self._listed_children()
            except READ_ERRORS as error:
                if error_code(error) == NOT_FOUND:
                    raise await resource_missing(
                        KinesisDiagnosis(self._client),
                        error,
                        stream=self._stream,
                        shard_id=self._shard_id,
                        consumer_arn=None,
                    ) from error
                await self._sleep(self._after(error))
                continue
            self._counted = 0
            self._retries.succeeded()
            if payload.next_iterator is None and not children:
                self._note(ShardSign.STUCK, "its last answer names no child shards, and ListShards not all of them")
                await self._sleep(self._until_children())
                continue
            self._endless_since = None
            self._endless_answers = 0
            self._iterator = payload.next_iterator
            self._iterator_at = self._now()
            if payload.last_sequence_number is not None:
                self.position = ShardPosition.after(payload.last_sequence_number)
            return self._event(payload, children)

    def _begin(self, operation: str) -> None:
        if operation != self._operation:
            self._operation, self._counted = operation, 0

    async def _get_shard_iterator(self) -> str:
        body = msgspec.json.encode({**self._stream.request, "ShardId": self._shard_id, **_iterator_type(self.position)})
        answer = msgspec.json.decode(await self._client.call_raw("GetShardIterator", body), type=_Iterator)
        if answer.value is None:
            # Not seen from the service; the end of a shard is said by GetRecords, with the children.
            raise ShardEndError(stream=self._stream.name, shard_id=self._shard_id)
        return answer.value

    async def _get_records(self, iterator: str) -> DecodedPayload:
        pace, name, config = self._tools.pace, self._stream.name, self._tools.config
        await self._sleep(pace.reserve(name, self._shard_id, self._now()))
        now = self._now()
        self._next_read_at = now + config.get_records_interval.total_seconds()
        # A shard that was at its tip brings little, or, after an outage, as much as all others: its share will do.
        with self._room(pace.allowed_bytes(name, self._shard_id, now) if self._is_behind else 0) as room_bytes:
            most = pace.records_within(name, self._shard_id, now, room_bytes, config.get_records_max_records)
            most = pace.max_records(name, self._shard_id, now, most)
            request: dict[str, object] = {"ShardIterator": iterator, "Limit": most}
            if self._stream.arn is not None:
                request["StreamARN"] = self._stream.arn
            # Before the call: what arrives during it may be in the answer, or not.
            self._asked_at = self._tools.service_clock.earliest()
            payload = decode_payload(await self._client.call_raw("GetRecords", msgspec.json.encode(request)))
        self._is_behind = payload.millis_behind_latest != 0
        pace.note_read(name, self._shard_id, now, records=payload.records.num_rows, nbytes=payload.nbytes)
        return payload

    def _event(self, payload: DecodedPayload, children: tuple[Shard, ...]) -> ShardEvent:
        at_end = payload.next_iterator is None
        shown_until = int((self._asked_at - _LAG_SECONDS) * 1000)
        behind = payload.millis_behind_latest
        is_guess = payload.quiet_seconds is not None and payload.quiet_seconds < TIP_SECONDS
        shown = None if is_guess else behind
        return ShardEvent(
            records=payload.records,
            continuation=None if at_end else self.position.sequence_number,
            millis_behind_latest=behind,
            child_shards=children if at_end else (),
            nbytes=payload.nbytes,
            caught_up_millis=shown_until - int(ARRIVAL_MARGIN_SECONDS * 1000) if shown == 0 else None,
            read_millis=None if shown is None else shown_until - shown,
            quiet_seconds=payload.quiet_seconds,
            is_over=payload.is_over,
        )

    async def _listed_children(self) -> tuple[Shard, ...]:
        """The shard's children, once ListShards shows it closed and all of them; none until then."""
        once = BackoffPolicy(max_attempts=1)
        shards = await list_shards(self._client, self._stream, backoff=once)
        shard = next((one for one in shards if one.shard_id == self._shard_id), None)
        children = tuple(one for one in shards if self._shard_id in one.parent_shard_ids)
        return children if shard is not None and not shard.is_open and shard.is_covered_by(children) else ()

    def _until_children(self) -> float:
        """Seconds to wait before the end of the shard is asked for again."""
        now = self._now()
        if self._endless_since is None:
            self._endless_since = now
        delay = self._tools.config.get_records.delay_seconds(self._endless_answers, self._tools.random)
        self._endless_answers += 1
        if now - self._endless_since < _CHILDREN_PATIENCE_SECONDS:
            return delay
        error = ShardEndError(stream=self._stream.name, shard_id=self._shard_id)
        raise RecordPublisherRetriesError(
            "GetRecords gives no next iterator and no child shards, and for "
            f"{_CHILDREN_PATIENCE_SECONDS:g} s ListShards has not shown the shard as closed with all of its children",
            stream=self._stream.name,
            shard_id=self._shard_id,
            code=code_of(error),
            attempts=self._endless_answers,
        ) from error

    def _after(self, error: Exception) -> float:
        """Seconds to wait before the next attempt."""
        policy, key = self._limit()
        kind = kind_of(error)
        if kind is ErrorKind.FATAL:
            raise RecordPublisherFatalError(
                with_advice(error), stream=self._stream.name, shard_id=self._shard_id, code=code_of(error)
            ) from error
        is_expired = error_code(error) == "ExpiredIteratorException"
        # Flink gets a new iterator without counting.
        self._counted += not is_expired
        self._retries.failed(
            error,
            now=self._now(),
            operation=self._operation,
            counted=0 if is_expired else self._counted,
            most=policy.max_attempts,
            key=key,
        )
        # What ListShards did not answer says nothing about how long the children are missing.
        self._endless_since = None
        if is_expired:
            self._iterator = None
            if self._retries.failures == 1:
                # A fresh one helps, without delay.
                return 0.0
        is_throttled = kind is ErrorKind.THROTTLED
        self._note(ShardSign.THROTTLED if is_throttled else ShardSign.REFUSED, str(error))
        delay = policy.delay_seconds(self._retries.failures - 1, self._tools.random)
        if is_throttled and self._operation == "GetRecords":
            # Others read the shard too, or a large answer used up its bytes: all readers of the process wait.
            self._tools.pace.postpone(self._stream.name, self._shard_id, self._now() + delay)
            return 0.0
        return delay

    def _limit(self) -> tuple[BackoffPolicy, str]:
        config = self._tools.config
        match self._operation:
            case "GetShardIterator":
                return config.get_shard_iterator, "get_shard_iterator.max_attempts"
            case "GetRecords":
                return config.get_records, "get_records.max_attempts"
            case _:
                return replace(config.get_records, max_attempts=None), ""

    def _now(self) -> float:
        return self._tools.clock()

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self._tools.sleep(seconds)


def _iterator_type(position: ShardPosition) -> dict[str, object]:
    match position.type:
        case PositionType.TRIM_HORIZON:
            return {"ShardIteratorType": "TRIM_HORIZON"}
        case PositionType.AT_TIMESTAMP:
            return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": (position.timestamp_millis or 0) / 1000}
        case PositionType.AFTER_SEQUENCE_NUMBER:
            return {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                # A continuation is not a record's number and may be refused. Nothing lies between the two.
                "StartingSequenceNumber": position.record or position.sequence_number,
            }
        case PositionType.SHARD_END:
            raise ValueError("nothing can be read after the end of a shard")


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
        self,
        stream: StreamIdentity,
        shard_id: str,
        position: ShardPosition,
        *,
        note: NoteSign = unnoted,
        room: Room = unbounded,
    ) -> AsyncGenerator[ShardEvent, None]:
        """See `RecordPublisher.publish`: as many records are asked for as have room, by the size of those before.

        GetRecords names no continuation: an empty answer has the continuation of the last record. Answers before the
        first record have none, and no child shards: they show how far reading is behind the latest record, and at the
        tip up to which arrival time everything has been read.

        A shard whose last answer names no child shards ends once ListShards shows it closed with all of its children.

        Raises:
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts, or the patience, are used up.
        """
        if position.type is PositionType.SHARD_END:
            return
        poll = ShardPoll(self._client, stream, shard_id, position, self._tools, note, room)
        while True:
            event = await poll.read()
            self._metrics.event_read(event, stream=stream.name, shard_id=shard_id)
            yield event
            if event.child_shards:
                return

    @property
    def interval_seconds(self) -> float:
        """See `RecordPublisher.interval_seconds`."""
        return self._tools.config.get_records_interval.total_seconds()

    def waits_since(self, stream: StreamIdentity, shard_id: str) -> float | None:
        """See `RecordPublisher.waits_since`: nothing waits, as a read is made only when its answer is taken."""
        return None

    def is_taken_over(self, stream: StreamIdentity, shard_id: str) -> bool:
        """See `RecordPublisher.is_taken_over`: there is nothing to take."""
        return False

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
    note: NoteSign = unnoted,
    is_open: bool | None = None,
    listings: ShardListings | None = None,
) -> AsyncGenerator[ShardEvent, None]:
    """Read what the shard holds after a position, up to its end, or up to its tip while it is open.

    Ends at the tip of an open shard instead of waiting there. An answer of a closed shard that has
    `MillisBehindLatest` 0 is not its end: only child shards are, or that the stream was disabled. The caller stops the
    generator, with `aclose()`, where its range ends; events are the answers of GetRecords calls, whatever the range.

    Args:
        client: makes the calls.
        stream: the stream.
        shard_id: the shard.
        after: where to begin.
        tools: the configuration, and the pace that all reads of the process share.
        with_gaps: whether answers without records are given, too. They lead over the time between two records, and have
            no continuation before the first record.
        note: takes failures that are retried, and a closed shard that does not end.
        is_open: whether the shard is known to be open, or known to be closed; None asks ListShards at the tip.
        listings: the answers of ListShards that other reads share.

    Raises:
        RecordPublisherFatalError: trying again is useless.
        RecordPublisherRetriesError: the attempts, or the patience, are used up; or a shard that is closed, or is not
            listed, gave neither records nor its end for that long (code `ShardEndMissing`).
        AwsError: ListShards is refused.
    """
    if after.type is PositionType.SHARD_END:
        return
    identity = StreamIdentity(stream) if isinstance(stream, str) else stream
    tools = tools or PollingTools()
    poll = ShardPoll(client, identity, shard_id, after, tools, note)
    tip = _Tip(client, identity, shard_id, tools, is_open, listings)
    unsaid_since: float | None = None
    while True:
        event = await poll.read()
        answered_at = tools.clock()
        if event.records.num_rows or event.child_shards or with_gaps:
            yield event
        if event.records.num_rows or event.child_shards or event.millis_behind_latest is not None:
            unsaid_since = None
        elif unsaid_since is None:
            unsaid_since = tools.clock()
        elif tools.clock() - unsaid_since > _UNSAID_SECONDS:
            raise RecordPublisherRetriesError(
                f"for {_UNSAID_SECONDS:g} s GetRecords has given neither records nor MillisBehindLatest, so the "
                "shard's tip is unknown: check that the endpoint is Kinesis",
                stream=identity.name,
                shard_id=shard_id,
                code="MillisBehindLatestMissing",
                attempts=1,
            )
        if event.child_shards or event.is_over:
            return
        if event.quiet_seconds is not None and event.quiet_seconds < TIP_SECONDS:
            continue
        # Zero is said only at the tip: an answer without records further back is a gap to be read over.
        if event.millis_behind_latest == 0 and await tip.is_end(answered_at):
            return
        if event.millis_behind_latest == 0 and not event.records.num_rows:
            tip.wait(poll.position, note)
        else:
            tip.moved()


class _Tip:
    """Whether an answer at the tip is where a read of a shard ends: it is while the shard is open."""

    def __init__(
        self,
        client: JsonClient,
        stream: StreamIdentity,
        shard_id: str,
        tools: PollingTools,
        is_open: bool | None,
        listings: ShardListings | None,
    ) -> None:
        async def list_patiently(_: str) -> Sequence[Shard]:
            return await list_shards(client, stream, retry_patience=tools.config.retry_patience)

        self._stream = stream
        self._shard_id = shard_id
        self._tools = tools
        self._is_open = is_open
        self._listings = listings or ShardListings(list_patiently, clock=tools.clock)
        self._list_at = 0.0
        self._since: float | None = None
        self._answers = 0
        self._is_reported = False

    async def is_end(self, answered_at: float) -> bool:
        """Whether the shard was still open after an answer at its tip, which came at a time by the tools' clock."""
        if self._is_open is not None:
            return self._is_open
        if answered_at < self._list_at:
            return False
        found = (await self._listings.since(self._stream.name, answered_at)).is_open(self._shard_id)
        if found is False:
            self._is_open = False
        self._list_at = self._tools.clock() + _LIST_AGAIN_SECONDS
        return found is True

    def moved(self) -> None:
        """Note an answer that shows that reading continues."""
        self._since, self._answers = None, 0

    def wait(self, position: ShardPosition, note: NoteSign) -> None:
        """Note an answer at the tip of a shard that is not open, or is not known to be.

        Raises:
            RecordPublisherRetriesError: there have been no others for as long as the patience lasts.
        """
        now, patience = self._tools.clock(), self._tools.config.retry_patience.total_seconds()
        self._since, self._answers = now if self._since is None else self._since, self._answers + 1
        what = "is closed" if self._is_open is False else "is not listed"
        cause = f"the shard {what}, and its answers name neither records nor child shards"
        note(ShardSign.STUCK, cause)
        if note is unnoted and not self._is_reported and now - self._since >= STALLED_SECONDS:
            self._is_reported = True
            _log.warning("%s/%s: %s after %s: waiting for its end", self._stream.name, self._shard_id, cause, position)
        if patience and now - self._since >= patience:
            raise RecordPublisherRetriesError(
                f"{cause}, for {now - self._since:.0f} s after position {position} (retryPatience): its end is not "
                "known, and records or child shards may be missing. Read it again later",
                stream=self._stream.name,
                shard_id=self._shard_id,
                code="ShardEndMissing",
                attempts=self._answers,
            )
