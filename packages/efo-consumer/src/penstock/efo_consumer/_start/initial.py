"""Turns LATEST, TRIM_HORIZON, a time or sequence numbers of records into positions in shards, once."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError

from penstock.aws import AwsCredentialsError, AwsError, BackoffPolicy, ErrorKind, are_credentials_refused, classify
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._publish.diagnosis import CREDENTIALS_ADVICE
from penstock.efo_consumer._publish.retries import ReadRetries
from penstock.efo_consumer._start.position import InitialPosition, InitialPositionType
from penstock.efo_consumer.errors import InitialPositionError, RecordPublisherRetriesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.aws import AwsSession, ServiceClock

_log = logging.getLogger(__name__)
_POLICY = BackoffPolicy(max_attempts=None)
_PATIENCE = timedelta(minutes=10)
# Whoever waits at a terminal is told before an outage counts as one.
_TOLD_SECONDS = 5.0
# An endpoint that cannot be reached at all is rather a wrong one: that is told at once.
_ANSWERED = (ClientError, ConnectionClosedError, ReadTimeoutError, AwsCredentialsError)


class _Calls:
    """Calls of boto3 that are repeated until Kinesis answers other than by a throttle or a failure.

    Credentials whose source is away for a moment are waited for alike.
    """

    def __init__(self, client: Any, sleep: Callable[[float], None], patience: timedelta) -> None:
        self._client = client
        self.sleep = sleep
        self._patience = patience

    def call(self, operation: str, stream: str, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a call about a stream, by boto3's name of it.

        Raises:
            InitialPositionError: Kinesis refuses for good, or every attempt failed for as long as the patience.
        """
        retries = ReadRetries(
            stream=stream, shard_id="", patience_seconds=self._patience.total_seconds(), service_seconds=time.time
        )
        waited = 0.0
        with _initial_position_errors(stream):
            while True:
                try:
                    return dict(getattr(self._client, operation)(**request))
                except _ANSWERED as error:
                    if classify(error) is ErrorKind.FATAL:
                        raise
                    retries.failed(error, now=time.monotonic(), operation=operation)
                    delay = _POLICY.delay_seconds(retries.failures - 1)
                    if waited < _TOLD_SECONDS <= waited + delay:
                        limit = f"for up to {self._patience}" if self._patience else "for as long as it takes"
                        _log.warning("%s: %s fails, and is tried again %s: %s", stream, operation, limit, error)
                waited += delay
                self.sleep(delay)


_ADVICE = {"ResourceNotFoundException": "look at the stream's name, the region, the endpoint and the account"}
# Arrival times are approximate: a record may show one that is up to a second before the record came.
_ARRIVAL_SECONDS = 1.0
# How long after a reshard ListShards may show the shards of before; reports speak of seconds.
_LATE_LIST_SECONDS = 60.0
_ASKED_AT_ONCE = 16
_LOOKS, _LOOK_SECONDS = 8, 0.25
# A start that lies so little ahead is rather a host's clock that is wrong: it is waited for.
_AHEAD_SECONDS = 1.0
_NO_TLS_ADVICE = "the endpoint does not speak TLS: write http://, or give the port that does"
_TLS_ADVICE = "give the authority's PEM file as caBundle (or AWS_CA_BUNDLE), and look whether it is there"
_ENDPOINT_ADVICE = "look at the region, the endpoint and the network"


def resolve_initial_positions(
    aws_session: AwsSession,
    streams: Iterable[str],
    initial_position: InitialPosition | str,
    *,
    retry_patience: timedelta = _PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> StreamPositions:
    """Give the positions at which a new query begins, and when its streams were created.

    Blocks on ListShards and DescribeStreamSummary, through throttles and failures, for as long as `retry_patience` (0:
    for ever); it warns when that takes more than some seconds. An endpoint that cannot be reached is an error at once.

    * LATEST: AT_TIMESTAMP of this moment, in the shards that are open. Kept in the offset, it skips nothing over
      restarts, which LATEST resolved again would. The moment is by the service's clock, which is known to a second, and
      arrival times are approximate: records of the last two seconds may be included, and none that comes later is
      skipped.
    * TRIM_HORIZON: in the shards whose parents are not listed any more; their children follow.
    * AT_TIMESTAMP: in the shards that were open then. A time before the stream's retention is TRIM_HORIZON.

    Without permission for DescribeStreamSummary a warning is logged, times are kept as they are given, and creation
    times stay unknown.

    Raises:
        InitialPositionError: a stream's shards cannot be listed, or it has none, or the time is in the future; or the
            patience is over.
        EfoConsumerConfigError: the starting position is none.
    """
    start = InitialPosition.parse(initial_position) if isinstance(initial_position, str) else initial_position
    calls = _Calls(aws_session.client("kinesis"), sleep, retry_patience)
    resolver = _Resolver(calls, aws_session.service_clock())
    positions, created = {}, {}
    for stream in streams:
        positions[stream] = resolver.resolve(stream, start)
        summary = resolver.describe(stream)
        if summary is not None:
            created[stream] = summary.created_millis
            if start.timestamp_millis is not None and start.timestamp_millis < resolver.horizon_millis(summary):
                positions[stream] = resolver.resolve(stream, _TRIM_HORIZON)
    return StreamPositions(positions, created)


_TRIM_HORIZON = InitialPosition(InitialPositionType.TRIM_HORIZON)


@dataclass(frozen=True)
class _Summary:
    created_millis: int
    retention_seconds: int


class _Resolver:
    def __init__(self, calls: _Calls, clock: ServiceClock) -> None:
        self._calls = calls
        self._clock = clock

    def horizon_millis(self, summary: _Summary) -> float:
        """What arrived before has certainly expired."""
        return (self._clock.earliest() - summary.retention_seconds) * 1000

    def resolve(self, stream: str, start: InitialPosition) -> Mapping[str, ShardPosition]:
        if start.type is InitialPositionType.LATEST:
            ids = [shard["ShardId"] for shard in self._list(stream, {"Type": "AT_LATEST"})]
            millis = math.floor((self._clock.earliest() - _ARRIVAL_SECONDS) * 1000)
            return self._positions(stream, ids, ShardPosition.at_timestamp(millis))
        shards = self._list(stream, None)
        lineage = {shard["ShardId"]: _parents(shard) for shard in shards}
        if start.timestamp_millis is None:
            return self._positions(stream, _roots(lineage), ShardPosition.trim_horizon())
        self._wait_until(stream, start.timestamp_millis)
        then_open = self._list(stream, {"Type": "AT_TIMESTAMP", "Timestamp": start.timestamp_millis / 1000})
        ids = shards_open_at([shard["ShardId"] for shard in then_open], lineage)
        if start.timestamp_millis > (self._clock.earliest() - _LATE_LIST_SECONDS) * 1000:
            ids = self._without_ended(stream, ids, start.timestamp_millis)
        return self._positions(stream, ids, ShardPosition.at_timestamp(start.timestamp_millis))

    def _without_ended(self, stream: str, ids: list[str], millis: int) -> list[str]:
        """The shards, but the children of those that had ended by then, which the list need not know yet.

        Otherwise the children would be read from their beginning, records of before that time among them.
        """
        found: list[str] = []
        pending = ids
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            while pending:
                followed = list(pool.map(lambda one: self._children_at(stream, one, millis), pending))
                found += [one for one, children in zip(pending, followed, strict=True) if not children]
                pending = sorted({child for children in followed for child in children} - {*found})
        return found

    def _children_at(self, stream: str, shard_id: str, millis: int) -> list[str]:
        """The shards that follow one that had ended by then; none while it may hold records since."""
        request: dict[str, Any] = {**StreamIdentity.of(stream).request, "ShardId": shard_id}
        at = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": millis / 1000}
        iterator = self._calls.call("get_shard_iterator", stream, {**request, **at})["ShardIterator"]
        answer = self._calls.call("get_records", stream, {"ShardIterator": iterator, "Limit": 1})
        if answer["Records"] or answer.get("NextShardIterator"):
            return []
        return [child["ShardId"] for child in answer.get("ChildShards", [])]

    def _wait_until(self, stream: str, millis: int) -> None:
        ahead = millis / 1000 - self._clock.latest()
        if ahead > _AHEAD_SECONDS:
            reason = f"{millis} is {ahead:.0f} s ahead: give a past time, or LATEST"
            raise InitialPositionError(stream=stream, code="", reason=reason)
        # Kinesis may refuse a time that its own clock has not reached.
        rest = millis / 1000 - self._clock.earliest()
        if rest > 0:
            self._calls.sleep(rest)

    def _positions(self, stream: str, ids: list[str], position: ShardPosition) -> Mapping[str, ShardPosition]:
        if not ids:
            raise InitialPositionError(stream=stream, code="", reason="no shard is listed")
        return dict.fromkeys(ids, position)

    def describe(self, stream: str) -> _Summary | None:
        """When the stream was created and how long it keeps records; None where that may not be asked."""
        request: dict[str, Any] = {**StreamIdentity.of(stream).request}
        try:
            answer = self._calls.call("describe_stream_summary", stream, request)
        except InitialPositionError as error:
            if error.code != "AccessDeniedException":
                raise
            _log.warning(
                "DescribeStreamSummary of %s is refused: cannot tell whether it is deleted and created again while it "
                "is read, nor how long it keeps records. Allow kinesis:DescribeStreamSummary on the stream",
                stream,
            )
            return None
        summary = answer["StreamDescriptionSummary"]
        created = summary["StreamCreationTimestamp"]
        return _Summary(round(created.timestamp() * 1000), int(summary["RetentionPeriodHours"]) * 3600)

    def _list(self, stream: str, shard_filter: dict[str, Any] | None) -> list[dict[str, Any]]:
        request: dict[str, Any] = {**StreamIdentity.of(stream).request}
        if shard_filter is not None:
            request["ShardFilter"] = shard_filter
        shards: list[dict[str, Any]] = []
        while True:
            answer = self._calls.call("list_shards", stream, request)
            shards += answer["Shards"]
            if not answer.get("NextToken"):
                return shards
            request = {"NextToken": answer["NextToken"]}


def shards_open_at(listed_as_open: Iterable[str], lineage: Mapping[str, set[str]]) -> list[str]:
    """Give the shards at which reading from a time begins: every record since is in these or their descendants.

    Those are the shards that were open then, and those whose ancestors expired before anybody could list them as open.

    Args:
        listed_as_open: what ListShards shows for the time.
        lineage: parents by shard id, of all shards that are still listed.
    """
    chosen = dict.fromkeys(listed_as_open)
    ancestors: set[str] = set()
    pending = list(chosen)
    while pending:
        parents = lineage.get(pending.pop(), set()) - ancestors
        ancestors |= parents
        pending += parents
    return [*chosen, *(root for root in _roots(lineage) if root not in chosen and root not in ancestors)]


def _roots(lineage: Mapping[str, set[str]]) -> list[str]:
    return [shard_id for shard_id, parents in lineage.items() if not parents & lineage.keys()]


@contextmanager
def _initial_position_errors(stream: str) -> Iterator[None]:
    """Raise what calls of boto3 raise as an InitialPositionError that says what to do."""
    try:
        yield
    except RecordPublisherRetriesError as error:
        raise InitialPositionError(stream=stream, code=error.code, reason=str(error)) from error
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        advice = CREDENTIALS_ADVICE if are_credentials_refused(error) else _ADVICE.get(code)
        if code == "AccessDeniedException":
            advice = f"allow kinesis:{error.operation_name} on the stream"
        reason = f"{error}: {advice}" if advice else str(error)
        raise InitialPositionError(stream=stream, code=code, reason=reason) from error
    except SSLError as error:
        advice = _NO_TLS_ADVICE if "WRONG_VERSION_NUMBER" in str(error) else _TLS_ADVICE
        raise InitialPositionError(stream=stream, code="SSLError", reason=f"{error}: {advice}") from error
    except (BotoConnectionError, HTTPClientError) as error:
        reason = f"{error}: {_ENDPOINT_ADVICE}"
        raise InitialPositionError(stream=stream, code=type(error).__name__, reason=reason) from error
    except (BotoCoreError, AwsError) as error:
        raise InitialPositionError(stream=stream, code=type(error).__name__, reason=str(error)) from error


def _parents(shard: dict[str, Any]) -> set[str]:
    return {shard[key] for key in ("ParentShardId", "AdjacentParentShardId") if shard.get(key)}


def resolve_sequence_numbers(
    aws_session: AwsSession,
    sequence_numbers: Mapping[str, Mapping[str, str]],
    *,
    inclusive: bool,
    retry_patience: timedelta = _PATIENCE,
    sleep: Callable[[float], None] = time.sleep,
) -> StreamPositions:
    """Give the positions AFTER, or (`inclusive`) AT the records with these sequence numbers. Blocks on Kinesis for AT.

    A position lies behind a record or a time. So AT becomes the position after the record before; and where no record
    before has its arrival time, that time.

    Args:
        sequence_numbers: by stream and shard.
        inclusive: whether reading begins with the records, and not behind them.
        retry_patience: how long throttles and failures are retried; 0 is for ever.
        sleep: waits for so many seconds.

    Raises:
        InitialPositionError: the stream does not hold the record (any more).
        PositionsError: not a sequence number.
    """
    after = {
        stream: {shard: ShardPosition.after(number) for shard, number in shards.items()}
        for stream, shards in sequence_numbers.items()
    }
    if not inclusive:
        return StreamPositions(after)
    calls = _Calls(aws_session.client("kinesis"), sleep, retry_patience)
    return StreamPositions(
        {
            stream: {shard: _before(calls, stream, shard, number) for shard, number in shards.items()}
            for stream, shards in sequence_numbers.items()
        }
    )


def _before(calls: _Calls, stream: str, shard: str, number: str) -> ShardPosition:
    at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": number}
    records, following = _get_records(calls, _get_iterator(calls, stream, shard, at), stream, 1)
    for _ in range(_LOOKS):
        if records or following is None:
            break
        # GetRecords may be a second behind what was acknowledged.
        calls.sleep(_LOOK_SECONDS)
        records, following = _get_records(calls, following, stream, 1)
    if not records or records[0]["SequenceNumber"] != number:
        raise InitialPositionError(stream=stream, code="", reason=f"{shard} has no record {number}")
    arrived = records[0]["ApproximateArrivalTimestamp"]
    at = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": arrived}
    iterator: str | None = _get_iterator(calls, stream, shard, at)
    predecessor: str | None = None
    while iterator is not None:
        records, iterator = _get_records(calls, iterator, stream, 1000)
        for record in records:
            if int(record["SequenceNumber"]) >= int(number):
                iterator = None
                break
            predecessor = record["SequenceNumber"]
    if predecessor is not None:
        return ShardPosition.after(predecessor)
    return ShardPosition.at_timestamp(round(arrived.timestamp() * 1000))


def _get_iterator(calls: _Calls, stream: str, shard: str, at: dict[str, Any]) -> str:
    request = {**StreamIdentity.of(stream).request, "ShardId": shard, **at}
    return str(calls.call("get_shard_iterator", stream, request)["ShardIterator"])


def _get_records(calls: _Calls, iterator: str, stream: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    request: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
    if (arn := StreamIdentity.of(stream).arn) is not None:
        request["StreamARN"] = arn
    answer = calls.call("get_records", stream, request)
    return answer["Records"], answer.get("NextShardIterator")
