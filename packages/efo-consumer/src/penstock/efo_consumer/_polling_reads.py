"""GetShardIterator and GetRecords on one shard, with pace, back-off and fresh iterators."""

from __future__ import annotations

import asyncio
import random as random_module
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import msgspec

from penstock.aws import AwsError, ErrorKind, are_credentials_refused, classify, error_code
from penstock.efo_consumer._config import RecordPublisherConfig
from penstock.efo_consumer._decode import DecodedPayload, decode_payload
from penstock.efo_consumer._diagnosis import (
    CREDENTIALS_ADVICE,
    NOT_FOUND,
    KinesisDiagnosis,
    resource_missing,
)
from penstock.efo_consumer._polling_pace import ReadPace, process_pace
from penstock.efo_consumer._positions import PositionType, ShardPosition
from penstock.efo_consumer.errors import (
    PayloadDecodeError,
    RecordPublisherError,
    RecordPublisherFatalError,
    RecordPublisherRetriesError,
    ShardEndError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.aws import AwsSession, BackoffPolicy, JsonClient
    from penstock.efo_consumer._publisher import StreamIdentity

# An iterator lives 5 minutes (API reference): one that waited longer than this with the consumer is not worth a call.
_ITERATOR_SECONDS = 280.0

_RETRYABLE = (AwsError, PayloadDecodeError, ShardEndError, OSError)

_ADVICE = {
    "InvalidArgumentException": "the position may be older than the stream's retention, or of another stream",
}


class _Iterator(msgspec.Struct):
    value: str | None = msgspec.field(name="ShardIterator", default=None)


@dataclass(kw_only=True)
class PollingTools:
    """What reads share.

    Attributes:
        pace: what the shards allow; `for_session` shares it with all readers of the process.
    """

    config: RecordPublisherConfig = field(default_factory=RecordPublisherConfig)
    pace: ReadPace = field(default_factory=ReadPace)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random_module.random

    @classmethod
    def for_session(cls, session: AwsSession, config: RecordPublisherConfig) -> Self:
        """Tools whose pace is shared by all readers of this process with the same account, region and endpoint."""
        options = session.options
        account = (session.region, options.endpoint_url, options.access_key_id, options.role_arn, options.profile)
        return cls(config=config, pace=process_pace(account))


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
    ) -> None:
        self._client = client
        self._stream = stream
        self._shard_id = shard_id
        self._tools = tools
        self._iterator: str | None = None
        self._iterator_at = 0.0
        self._iterator_failures = 0
        self._failures = 0
        self._throttles = 0
        self._next_read_at = 0.0
        self.position = position

    async def read(self) -> DecodedPayload:
        """The next GetRecords answer; waits for the shard's pace, backs off and retries.

        Its `next_iterator` is None exactly at the end of the shard, and its `child_shards` are then non-empty.

        Raises:
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts are used up.
        """
        while True:
            try:
                if self._iterator is None or self._now() - self._iterator_at > _ITERATOR_SECONDS:
                    self._iterator = await self._get_shard_iterator()
                    self._iterator_at = self._now()
                    self._iterator_failures = 0
                payload = await self._get_records(self._iterator)
            except _RETRYABLE as error:
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
            self._failures = 0
            self._throttles = 0
            self._iterator = payload.next_iterator
            self._iterator_at = self._now()
            if payload.last_sequence_number is not None:
                self.position = ShardPosition.after(payload.last_sequence_number)
            return payload

    async def _get_shard_iterator(self) -> str:
        body = msgspec.json.encode(
            {**self._stream_reference(), "ShardId": self._shard_id, **_iterator_type(self.position)}
        )
        answer = msgspec.json.decode(await self._client.call_raw("GetShardIterator", body), type=_Iterator)
        if answer.value is None:
            # Not seen from the service; the end of a shard is said by GetRecords, with the children.
            raise ShardEndError(stream=self._stream.name, shard_id=self._shard_id)
        return answer.value

    async def _get_records(self, iterator: str) -> DecodedPayload:
        await self._sleep(self._next_read_at - self._now())
        pace, name = self._tools.pace, self._stream.name
        await self._sleep(pace.reserve(name, self._shard_id, self._now()))
        now = self._now()
        self._next_read_at = now + self._tools.config.get_records_interval.total_seconds()
        most = self._tools.config.get_records_max_records
        if self._tools.config.get_records_adaptive:
            most = pace.max_records(name, self._shard_id, now, most)
        request: dict[str, object] = {"ShardIterator": iterator, "Limit": most}
        if self._stream.arn is not None:
            request["StreamARN"] = self._stream.arn
        payload = decode_payload(await self._client.call_raw("GetRecords", msgspec.json.encode(request)))
        pace.note_read(name, self._shard_id, now, records=payload.records.num_rows, nbytes=payload.nbytes)
        if payload.next_iterator is None and not payload.child_shards:
            raise ShardEndError(stream=self._stream.name, shard_id=self._shard_id)
        return payload

    def _after(self, error: Exception) -> float:
        """Seconds to wait before the next attempt."""
        config = self._tools.config
        for_iterator = self._iterator is None
        policy = config.get_shard_iterator if for_iterator else config.get_records
        kind = classify(error) if isinstance(error, AwsError | OSError) else ErrorKind.RETRYABLE
        if kind is ErrorKind.FATAL:
            raise self._give_up(error, RecordPublisherFatalError) from error
        if kind is ErrorKind.THROTTLED:
            # Others read the shard too, or a large answer used up its bytes: no failure, only to be waited out.
            delay = policy.delay_seconds(self._throttles, self._tools.random)
            self._throttles += 1
            self._tools.pace.postpone(self._stream.name, self._shard_id, self._now() + delay)
            # The pace holds back reads; a call for an iterator has to wait here.
            return delay if for_iterator else 0.0
        failures = self._iterator_failures if for_iterator else self._failures
        if failures + 1 >= policy.max_attempts:
            raise self._retries_error(error, policy) from error
        if for_iterator:
            self._iterator_failures += 1
        else:
            self._failures += 1
        if error_code(error) == "ExpiredIteratorException":
            # A fresh one helps, without delay; if it is expired too, that is a failure like others.
            self._iterator = None
            return 0.0
        return policy.delay_seconds(failures, self._tools.random)

    def _retries_error(self, error: Exception, policy: BackoffPolicy) -> RecordPublisherRetriesError:
        return RecordPublisherRetriesError(
            f"{policy.max_attempts} attempts in a row failed, the last with: {error}",
            stream=self._stream.name,
            shard_id=self._shard_id,
            code=error_code(error) or type(error).__name__,
            attempts=policy.max_attempts,
        )

    def _give_up(self, error: Exception, kind: type[RecordPublisherError]) -> RecordPublisherError:
        code = error_code(error) or type(error).__name__
        advice = CREDENTIALS_ADVICE if are_credentials_refused(error) else _ADVICE.get(code)
        message = f"{error}" + (f": {advice}" if advice else "")
        return kind(message, stream=self._stream.name, shard_id=self._shard_id, code=code)

    def _stream_reference(self) -> dict[str, str]:
        if self._stream.arn is not None:
            return {"StreamARN": self._stream.arn}
        return {"StreamName": self._stream.name}

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
                "StartingSequenceNumber": position.sequence_number,
            }
        case PositionType.SHARD_END:
            raise ValueError("nothing can be read after the end of a shard")
