"""Turns LATEST, TRIM_HORIZON or a time into positions in shards, once."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.aws import (
    AwsConnectionError,
    AwsCredentialsError,
    AwsError,
    AwsServiceError,
    AwsSession,
    BackoffPolicy,
    ErrorKind,
    JsonClient,
    are_credentials_refused,
    classify,
)
from penstock.efo_consumer._continuity.lineage import of_named, oldest_of, open_at, roots
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._model.shards import Shard, StreamIdentity
from penstock.efo_consumer._publish.diagnosis import CREDENTIALS_ADVICE, permission
from penstock.efo_consumer._publish.dynamodb_streams import DYNAMODB_STREAMS, stream_client
from penstock.efo_consumer._publish.list_shards import CREATING, IN_USE, ShardFilter, list_shards, once_created
from penstock.efo_consumer._publish.retries import ReadRetries
from penstock.efo_consumer._start.position import InitialPosition, InitialPositionType
from penstock.efo_consumer.errors import EfoConsumerError, InitialPositionError, RecordPublisherRetriesError
from penstock.rpc import LoopThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping

    from penstock.aws import ServiceClock

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_POLICY = BackoffPolicy(max_attempts=None)
_DESCRIBE = "DescribeStreamSummary"
_ONCE = BackoffPolicy(max_attempts=1)
_PATIENCE = timedelta(minutes=10)
# A user who waits at a terminal gets a warning before an outage counts as one.
_TOLD_SECONDS = 5.0


class _StartClient(JsonClient):
    """Repeats calls about a stream until Kinesis answers other than by a throttle or a failure.

    It waits for a stream that is being created, and for a source of credentials that is away for a moment. An endpoint
    that cannot be reached at all is rather a wrong one: that is an error at once.

    Attributes:
        stream: that the calls are about now.
        patience: how long throttles and failures are retried; zero for no limit.
    """

    def __init__(self, session: AwsSession, patience: timedelta, sleep: Callable[[float], Awaitable[object]]) -> None:
        super().__init__(AwsSession.of(session, "aws_session"))
        self._asked = stream_client(session, connections=_ASKED_AT_ONCE)
        self.stream = ""
        self.sleep = sleep
        self.patience = patience

    async def call_raw(self, operation: str, body: Any, *, content_type: str | None = None) -> bytes:
        """See `JsonClient`.

        Raises:
            RecordPublisherRetriesError: every attempt failed for as long as the patience, or the stream is still being
                created.
            RecordPublisherFatalError: the stream is being deleted.
            AwsError: Kinesis refuses, and a retry would not help; or it cannot be reached.
        """

        async def borne() -> bytes:
            return await self._borne(operation, body, content_type)

        return await (borne() if operation == _DESCRIBE else self.when_created(borne, operation))

    async def when_created(self, call: Callable[[], Awaitable[_T]], operation: str = _DESCRIBE) -> _T:
        """Make a call that waits while the stream is being created. Raises what `call_raw` raises."""
        return await once_created(
            call,
            self._asked,
            StreamIdentity.of(self.stream),
            operation=operation,
            patience_seconds=self.patience.total_seconds(),
            sleep=self.sleep,
        )

    async def _borne(self, operation: str, body: Any, content_type: str | None) -> bytes:
        retries = ReadRetries(
            stream=self.stream,
            shard_id="",
            patience_seconds=self.patience.total_seconds(),
            service_seconds=time.time,
        )
        waited = 0.0
        while True:
            try:
                return await self._asked.call_raw(operation, body, content_type=content_type)
            except (AwsServiceError, AwsConnectionError, AwsCredentialsError) as error:
                is_away = isinstance(error, AwsConnectionError) and not error.is_reached
                if is_away or classify(error) is ErrorKind.FATAL:
                    raise
                retries.failed(error, now=time.monotonic(), operation=operation)
                delay = _POLICY.delay_seconds(retries.failures - 1)
                if waited < _TOLD_SECONDS <= waited + delay:
                    limit = f"for up to {self.patience}" if self.patience else "for as long as it takes"
                    _log.warning("%s: %s fails, and is tried again %s: %s", self.stream, operation, limit, error)
            waited += delay
            await self.sleep(delay)

    async def close(self) -> None:
        """See `JsonClient.close`."""
        await self._asked.close()


_ADVICE = {"ResourceNotFoundException": "look at the stream's name, the region, the endpoint and the account"}
# Arrival times are approximate: a record may show one that is up to a second before the record came.
_ARRIVAL_SECONDS = 1.0
# How long after a reshard ListShards may show the shards of before; reports speak of seconds.
_LATE_LIST_SECONDS = 60.0
_ASKED_AT_ONCE = 16
# A start that lies so little ahead is rather a host's clock that is wrong: this waits for it.
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
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> StreamPositions:
    """Give the positions at which a new query begins, and when its streams were created.

    Blocks on ListShards and DescribeStreamSummary, through throttles and failures, for as long as `retry_patience` (0:
    no limit); it warns when that takes more than some seconds. An endpoint that cannot be reached is an error at once.
    A stream that is being created is waited for as long, with a warning; one that is being deleted is not.

    * LATEST: AT_TIMESTAMP of this moment, in the shards that are open: GetRecords says of each whether it has ended, as
      ListShards may show a reshard late. Kept in the offset, it skips nothing over restarts, which LATEST resolved
      again would. The moment is by the service's clock, which is known to a second, and arrival times are approximate:
      records of the last two seconds may be included, and none that comes later is skipped.
    * TRIM_HORIZON: in the shards whose parents are not listed any more; their children follow.
    * AT_TIMESTAMP: in the shards that were open then. A time before the stream's retention is TRIM_HORIZON.

    Without permission for DescribeStreamSummary a warning is logged, times are kept as they are given, and creation
    times stay unknown.

    Raises:
        InitialPositionError: a stream's shards cannot be listed, or it has none, or the time is in the future; or the
            patience is over.
        EfoConsumerConfigError: the starting position is not a valid one.
    """
    start = InitialPosition.parse(initial_position) if isinstance(initial_position, str) else initial_position
    return _blocking(resolve_starts(aws_session, dict.fromkeys(streams, start), retry_patience, sleep))


def resolve_named_shards(
    aws_session: AwsSession,
    stream: str,
    positions: Mapping[str, ShardPosition],
    *,
    retry_patience: timedelta = _PATIENCE,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> dict[str, ShardPosition]:
    """Give positions in shards, with those AT_TIMESTAMP moved to the shards that were open then. Blocks on ListShards.

    A shard may have ended by the time that it is to be read from. It is left out, and the shards that it had become by
    then begin at the time: they would be read from their beginning otherwise. One of these that follows a shard with
    another position follows it, and is left out. Positions that are not times stay as they are.

    Args:
        aws_session: credentials, region and endpoint.
        stream: name or ARN.
        positions: by shard.
        retry_patience: how long throttles and failures are retried; 0 is for no limit.
        sleep: waits for so many seconds.

    Raises:
        InitialPositionError: the stream's shards cannot be listed, or a time is in the future; or the patience is over.
    """
    return _blocking(_moved_to_open(aws_session, stream, positions, retry_patience, sleep))


async def _moved_to_open(
    session: AwsSession,
    stream: str,
    positions: Mapping[str, ShardPosition],
    patience: timedelta,
    sleep: Callable[[float], Awaitable[object]],
) -> dict[str, ShardPosition]:
    if session.options.stream_service == DYNAMODB_STREAMS:
        # It lists no shards of a time that has passed.
        return dict(positions)
    found = {shard_id: at for shard_id, at in positions.items() if at.timestamp_millis is None}
    times = {at.timestamp_millis for at in positions.values() if at.timestamp_millis is not None}
    async with _StartClient(session, patience, sleep) as client:
        resolver = _Resolver(client, stream)
        with _initial_position_errors(client, stream):
            # The earliest one first: it is the one of a shard that several led to.
            for millis in sorted(times):
                named = [shard_id for shard_id, at in positions.items() if at.timestamp_millis == millis]
                start = InitialPosition(InitialPositionType.AT_TIMESTAMP, millis)
                begun = await resolver.resolve(start, named=named, beside=found)
                found = {**{shard_id: positions.get(shard_id, at) for shard_id, at in begun.items()}, **found}
    return found


def latest_arrival_millis(clock: ServiceClock) -> int:
    """The time of LATEST by the service's clock, in milliseconds since 1970, once an answer has shown it that."""
    return math.floor((clock.earliest() - _ARRIVAL_SECONDS) * 1000)


async def resolve_starts(
    session: AwsSession,
    starts: Mapping[str, InitialPosition],
    patience: timedelta = _PATIENCE,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> StreamPositions:
    """`resolve_initial_positions` of a start for each stream, for those who have an event loop."""
    positions, created = {}, {}
    async with _StartClient(session, patience, sleep) as client:
        for stream, start in starts.items():
            resolver = _Resolver(client, stream)
            with _initial_position_errors(client, stream):
                positions[stream] = await resolver.resolve(start)
                summary = await resolver.describe()
                if summary is not None:
                    created[stream] = summary.created_millis
                    if start.timestamp_millis is not None and start.timestamp_millis < resolver.horizon_millis(summary):
                        positions[stream] = await resolver.resolve(_TRIM_HORIZON)
    return StreamPositions(positions, created)


def _blocking(coroutine: Coroutine[Any, Any, _T]) -> _T:
    # Not asyncio.run: a notebook's cell runs on a loop.
    with LoopThread("penstock start") as loop:
        return loop.call(coroutine)


_TRIM_HORIZON = InitialPosition(InitialPositionType.TRIM_HORIZON)


@dataclass(frozen=True)
class _Summary:
    created_millis: int
    retention_seconds: int


class _Resolver:
    def __init__(self, client: _StartClient, stream: str) -> None:
        self._client = client
        self._clock = client.session.service_clock()
        self._identity = StreamIdentity.of(stream)
        # DynamoDB Streams reads its way to a time from the beginning of a shard.
        self._finds_times = client.session.options.stream_service != DYNAMODB_STREAMS

    def horizon_millis(self, summary: _Summary) -> float:
        """What arrived before has certainly expired."""
        return (self._clock.earliest() - summary.retention_seconds) * 1000

    async def resolve(
        self, start: InitialPosition, *, named: Collection[str] = (), beside: Collection[str] = ()
    ) -> Mapping[str, ShardPosition]:
        """The positions at which reading begins.

        Args:
            start: where.
            named: of these shards alone, and those that they become; () is of all.
            beside: shards that are read beside them. What several led to follows these.
        """
        known = {shard.shard_id: shard for shard in await self._list(None)}
        if not known:
            raise InitialPositionError(stream=self._identity.name, code="", reason="no shard is listed")
        if start.type is InitialPositionType.TRIM_HORIZON:
            return dict.fromkeys(_ids(roots(known.values())), ShardPosition.trim_horizon())
        if start.timestamp_millis is None:
            at = ShardFilter("AT_LATEST")
            millis = latest_arrival_millis(self._clock)
        else:
            at = ShardFilter("AT_TIMESTAMP", timestamp_millis=start.timestamp_millis)
            millis = start.timestamp_millis
            await self._wait_until(millis)
        opened = await self._list(at)
        # A shard may begin between the two lists: it names what it came of.
        known |= {shard.shard_id: shard for shard in opened}
        ids = open_at(_ids(opened), known.values())
        if named:
            ids = of_named(ids, named, known.values())
        if self._finds_times and millis > (self._clock.earliest() - _LATE_LIST_SECONDS) * 1000:
            ids = await self._without_ended(ids, millis, known)
        # A child of two parents, one of which had not ended by then, begins at the end of that one.
        first = {*oldest_of([*ids, *beside], known.values()), *named}
        return dict.fromkeys([one for one in ids if one in first], ShardPosition.at_timestamp(millis))

    async def _without_ended(self, ids: list[str], millis: int, known: dict[str, Shard]) -> list[str]:
        """The shards, but the children of those that had ended by then, which the list need not know yet.

        Otherwise the children would be read from their beginning, records of before that time among them. The children
        become known.
        """
        # Whether one that is named, and not listed, is there is found out by its reader.
        pending, found = [one for one in ids if one in known], [one for one in ids if one not in known]
        while pending:
            asked = [asyncio.ensure_future(self._children_at(one, millis)) for one in pending]
            try:
                followed = await asyncio.gather(*asked)
            finally:
                # After an error of one, the others, which may be retried for minutes, are not waited for.
                for one in asked:
                    one.cancel()
            found += [shard_id for shard_id, children in zip(pending, followed, strict=True) if not children]
            children = {child.shard_id: child for some in followed for child in some}
            known |= children
            pending = sorted(children.keys() - {*found})
        return found

    async def _children_at(self, shard_id: str, millis: int) -> list[Shard]:
        """The shards that follow one that had ended by then; none while it may hold records since."""
        at = {"ShardId": shard_id, "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": millis / 1000}
        iterator = (await self._client.call("GetShardIterator", {**self._identity.request, **at}))["ShardIterator"]
        request = {"ShardIterator": iterator, "Limit": 1}
        if self._identity.arn is not None:
            request["StreamARN"] = self._identity.arn
        answer = await self._client.call("GetRecords", request)
        if answer["Records"] or answer.get("NextShardIterator"):
            return []
        return [Shard(child["ShardId"], tuple(child["ParentShards"])) for child in answer.get("ChildShards", [])]

    async def _wait_until(self, millis: int) -> None:
        ahead = millis / 1000 - self._clock.latest()
        if ahead > _AHEAD_SECONDS:
            reason = f"{millis} is {ahead:.0f} s ahead: give a past time, or LATEST"
            raise InitialPositionError(stream=self._identity.name, code="", reason=reason)
        # Kinesis may refuse a time that its own clock has not reached.
        rest = millis / 1000 - self._clock.earliest()
        if rest > 0:
            await self._client.sleep(rest)

    async def describe(self) -> _Summary | None:
        """When the stream was created and how long it keeps records; None where that may not be asked."""
        try:
            summary = await self._client.when_created(self._described)
        except AwsServiceError as error:
            if error.code != "AccessDeniedException":
                raise
            _log.warning(
                "DescribeStreamSummary of %s is refused: cannot check whether it is deleted and created again while it "
                "is read, nor how long it keeps records. Allow kinesis:DescribeStreamSummary on the stream",
                self._identity.name,
            )
            return None
        created_millis = round(float(summary["StreamCreationTimestamp"]) * 1000)
        return _Summary(created_millis, int(summary["RetentionPeriodHours"]) * 3600)

    async def _described(self) -> dict[str, Any]:
        answer = await self._client.call(_DESCRIBE, self._identity.request)
        summary: dict[str, Any] = answer["StreamDescriptionSummary"]
        if summary["StreamStatus"] == CREATING:
            # Some other servers list the shards of such a stream, and refuse to read them.
            raise AwsServiceError(code=IN_USE, message="the stream is CREATING", status=400, operation=_DESCRIBE)
        return summary

    async def _list(self, shard_filter: ShardFilter | None) -> list[Shard]:
        # Its own retries would come on top of the client's.
        return await list_shards(self._client, self._identity, filter=shard_filter, backoff=_ONCE)


def _ids(shards: list[Shard]) -> list[str]:
    return [shard.shard_id for shard in shards]


@contextmanager
def _initial_position_errors(client: _StartClient, stream: str) -> Iterator[None]:
    """Raise what calls about the stream raise as an InitialPositionError that says what to do."""
    client.stream = stream
    try:
        yield
    except InitialPositionError:
        raise
    except (AwsError, EfoConsumerError) as error:
        code, advice = type(error).__name__, None
        if isinstance(error, RecordPublisherRetriesError):
            code = error.code
        elif isinstance(error, AwsServiceError):
            code = error.code
            advice = CREDENTIALS_ADVICE if are_credentials_refused(error) else _ADVICE.get(code)
            if code == "AccessDeniedException":
                advice = f"allow {permission(error)} on the stream"
        elif isinstance(error, AwsConnectionError):
            advice = _ENDPOINT_ADVICE
            if isinstance(error.__cause__, ssl.SSLError):
                advice = _NO_TLS_ADVICE if "WRONG_VERSION_NUMBER" in str(error) else _TLS_ADVICE
        reason = f"{error}: {advice}" if advice else str(error)
        raise InitialPositionError(stream=stream, code=code, reason=reason) from error
