"""Turns LATEST, TRIM_HORIZON or a time into positions in shards, once."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
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

from penstock.aws import AwsError, BackoffPolicy, ErrorKind, are_credentials_refused, classify
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._publish.diagnosis import CREDENTIALS_ADVICE
from penstock.efo_consumer._start.position import StartingPosition, StartingPositionType
from penstock.efo_consumer.errors import InitialPositionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.aws import AwsSession

_POLICY = BackoffPolicy(max_attempts=20)
# An endpoint that cannot be reached at all is rather a wrong one: that is told at once.
_ANSWERED = (ClientError, ConnectionClosedError, ReadTimeoutError)


def call_with_retries(
    method: Callable[..., Any], request: dict[str, Any], sleep: Callable[[float], None]
) -> dict[str, Any]:
    """Call until Kinesis answers other than by a throttle or a failure; then, or after 20 attempts, raise its error."""
    attempt = 0
    while True:
        try:
            return dict(method(**request))
        except _ANSWERED as error:
            attempt += 1
            if attempt >= _POLICY.max_attempts or classify(error) is ErrorKind.FATAL:
                raise
        sleep(_POLICY.delay_seconds(attempt - 1))


_ADVICE = {
    "ResourceNotFoundException": "look at the stream's name, the region, the endpoint and the account",
    "AccessDeniedException": "allow kinesis:ListShards on the stream",
}
# The Date header's resolution, and half of it again.
_DATE_MILLIS = 1500
_NO_TLS_ADVICE = "the endpoint does not speak TLS: write http://, or give the port that does"
_TLS_ADVICE = "give the authority's PEM file as caBundle (or AWS_CA_BUNDLE), and look whether it is there"
_ENDPOINT_ADVICE = "look at the region, the endpoint and the network"


def resolve_initial_positions(
    aws_session: AwsSession,
    streams: Iterable[str],
    starting_position: StartingPosition | str,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> StreamPositions:
    """Give the positions at which a new query begins. Blocks on ListShards, through throttles and failures.

    * LATEST: AT_TIMESTAMP of this moment, by the service's clock, in the shards that are open. Kept in the offset, it
      skips nothing over restarts, which LATEST resolved again would.
    * TRIM_HORIZON: in the shards whose parents are not listed any more; their children follow.
    * AT_TIMESTAMP: in the shards that were open then (for a time before the retention: those of TRIM_HORIZON).

    Raises:
        InitialPositionError: a stream's shards cannot be listed, or it has none, or the time is in the future.
        EfoConsumerConfigError: the starting position is none.
    """
    start = StartingPosition.parse(starting_position) if isinstance(starting_position, str) else starting_position
    client = aws_session.client("kinesis")
    return StreamPositions({stream: _resolve(client, stream, start, clock, sleep) for stream in streams})


def _resolve(
    client: Any, stream: str, start: StartingPosition, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Mapping[str, ShardPosition]:
    before = clock()
    if start.type is StartingPositionType.LATEST:
        shards, first_answer = _list(client, stream, {"Type": "AT_LATEST"}, sleep)
        position = ShardPosition.at_timestamp(_service_millis(first_answer, before, clock()))
        ids = [shard["ShardId"] for shard in shards]
    else:
        shards, first_answer = _list(client, stream, None, sleep)
        lineage = {shard["ShardId"]: _parents(shard) for shard in shards}
        millis = start.timestamp_millis
        if millis is None:
            position, ids = ShardPosition.trim_horizon(), _roots(lineage)
        else:
            service_millis = _service_millis(first_answer, before, clock())
            if millis >= service_millis + _DATE_MILLIS:
                reason = f"{millis} is {(millis - service_millis) / 1000:.0f} s ahead: give a past time, or LATEST"
                raise InitialPositionError(stream=stream, code="", reason=reason)
            then_open, _ = _list(client, stream, {"Type": "AT_TIMESTAMP", "Timestamp": millis / 1000}, sleep)
            position = ShardPosition.at_timestamp(millis)
            ids = shards_open_at([shard["ShardId"] for shard in then_open], lineage)
    if not ids:
        raise InitialPositionError(stream=stream, code="", reason="no shard is listed")
    return dict.fromkeys(ids, position)


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


def _list(
    client: Any, stream: str, shard_filter: dict[str, Any] | None, sleep: Callable[[float], None]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    request: dict[str, Any] = {**StreamIdentity.of(stream).request}
    if shard_filter is not None:
        request["ShardFilter"] = shard_filter
    shards: list[dict[str, Any]] = []
    first: dict[str, Any] | None = None
    try:
        while True:
            answer = call_with_retries(client.list_shards, request, sleep)
            first = first or answer
            shards += answer["Shards"]
            if not answer.get("NextToken"):
                return shards, first
            request = {"NextToken": answer["NextToken"]}
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        advice = CREDENTIALS_ADVICE if are_credentials_refused(error) else _ADVICE.get(code)
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


def _service_millis(answer: dict[str, Any], before: float, after: float) -> int:
    """The service's time of the answer, in milliseconds.

    Its Date header has whole seconds. While the local clock agrees with it, the local one is finer.
    """
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if not date:
        return int(before * 1000)
    second = parsedate_to_datetime(date).timestamp()
    return int(before * 1000) if before < second + 1 and second <= after else int(second * 1000)
