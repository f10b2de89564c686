"""Which streams a query reads: by name, by ARN, or all whose name matches a pattern."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.efo_consumer import InitialPositionError, ShardRange, StreamIdentity, StreamPositions

if TYPE_CHECKING:
    from penstock.aws import AwsSession, JsonClient
    from penstock.efo_consumer import StreamIdentity
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A stream as it is now."""

    status: str
    retention_seconds: int
    created_millis: int
    """In milliseconds since 1970, by the service."""


async def call_about(
    client: "JsonClient",
    operation: str,
    request: dict[str, Any],
    stream: "StreamIdentity",
    retry_patience: float,
) -> dict[str, Any]:
    """The answer to a call. Errors that may pass are retried for `retry_patience` seconds; 0 means for ever.

    Raises:
        penstock.efo_consumer.errors.RecordPublisherRetriesError: the retries have run out; says since when.
        penstock.aws.AwsError: the service refused with a fatal error.
    """
    # Importers of the other functions do not need the client.
    from penstock.efo_consumer import call_patiently

    patience = timedelta(seconds=retry_patience)
    return await call_patiently(client, operation, request, stream=stream, retry_patience=patience)


async def describe_stream(
    client: "JsonClient", stream: str, purpose: str, retry_patience: float
) -> StreamSummary | None:
    """The summary of a stream, by name or ARN; None, with a warning about the purpose, without the permission.

    Errors that may pass are retried as `call_about` does.

    Raises:
        penstock.aws.AwsServiceError: the stream does not exist, or the service refuses for another reason.
    """
    from penstock.aws import AwsServiceError
    from penstock.efo_consumer import StreamIdentity

    identity = StreamIdentity.of(stream)
    try:
        answer = await call_about(client, "DescribeStreamSummary", identity.request, identity, retry_patience)
    except AwsServiceError as error:
        if error.code != "AccessDeniedException":
            raise
        _log.warning("%s: allow kinesis:DescribeStreamSummary on stream %s (%s)", purpose, stream, error)
        return None
    summary = answer["StreamDescriptionSummary"]
    return StreamSummary(
        summary["StreamStatus"],
        int(summary["RetentionPeriodHours"]) * 3600,
        round(float(summary["StreamCreationTimestamp"]) * 1000),
    )


_log = logging.getLogger(__name__)
_NOT_FOUND = "ResourceNotFoundException"
_NOT_THERE = ("CREATING", "DELETING")
"""Statuses of streams whose shards cannot be listed."""
_ALL = StreamIdentity("*")
_ADVICE = "allow kinesis:ListStreams, or name the streams in 'streamName'"


def with_streams(options: "KinesisOptions", session: "Callable[[], AwsSession]") -> "KinesisOptions":
    """The options with the names of the streams that this run reads.

    With `streamNamePattern`, those that match now. Of several that are named, and with `failOnDataLoss=false`, those
    that are not deleted.

    Raises:
        InitialPositionError: the streams cannot be listed, or no stream matches.
    """
    if options.table_name is not None and not options.stream_arn:
        latest = asyncio.run(_stream_of_table(session(), options.table_name, options.retry_patience))
        return replace(options, stream_arn=(latest,))
    pattern = options.stream_name_pattern
    if pattern is not None:
        status = asyncio.run(_listed(session(), options.retry_patience))
        found = sorted(name for name in status if re.fullmatch(pattern, name))
        names = tuple(name for name in found if status[name] not in _NOT_THERE)
        if not names:
            # The start of the query waits for them.
            names = tuple(name for name in found if status[name] == "CREATING")
        for name in sorted({*found} - {*names}):
            _log.info("stream %s is %s, and left to the next run", name, status[name])
        if not names:
            reason = "no stream's name matches it: streamNamePattern is a regular expression for the whole name"
            if found:
                reason = f"{', '.join(found)} is being deleted: start the query when a stream is there"
            raise InitialPositionError(stream=pattern, code="", reason=reason)
        return replace(options, stream_name=names, stream_name_pattern=None)
    if options.fail_on_data_loss or len(options.stream_name) < 2:
        return options
    keys = {name: options.arn_of(name) or name for name in options.stream_name}
    there = existing(session(), keys, options.retry_patience)
    if not there:
        raise InitialPositionError(
            stream=", ".join(options.stream_name), code=_NOT_FOUND, reason="none of the streams exists"
        )
    for name in set(options.stream_name) - set(there):
        _log.warning("stream %s does not exist, and is left out: failOnDataLoss is false", name)
    return replace(
        options,
        stream_name=there,
        stream_arn=tuple(arn for name in there if (arn := options.arn_of(name)) is not None),
        initial_position=options.initial_position and options.initial_position.of(there),
        ending_position=options.ending_position and options.ending_position.of(there),
    )


async def _stream_of_table(session: "AwsSession", table: str, retry_patience: float) -> str:
    """The ARN of the latest stream of a table; those before it, which were disabled, are listed for a day."""
    from penstock.aws import AwsServiceError
    from penstock.efo_consumer import stream_client

    found: dict[str, str] = {}
    request = {"TableName": table}
    async with stream_client(session) as client:
        try:
            while True:
                answer = await call_about(client, "ListStreams", request, StreamIdentity(table), retry_patience)
                found.update((one["StreamLabel"], one["StreamArn"]) for one in answer["Streams"])
                if not answer.get("LastEvaluatedStreamArn"):
                    break
                request["ExclusiveStartStreamArn"] = answer["LastEvaluatedStreamArn"]
        except AwsServiceError as error:
            advice = "allow dynamodb:ListStreams, or name the stream by 'streamArn'"
            raise InitialPositionError(stream=table, code=error.code, reason=f"{error}: {advice}") from error
    if not found:
        reason = "the table has no stream, or does not exist in this account and region: enable DynamoDB Streams on it"
        raise InitialPositionError(stream=table, code=_NOT_FOUND, reason=reason)
    return found[max(found)]


async def _listed(session: "AwsSession", retry_patience: float) -> dict[str, str]:
    """The status of each stream of the account, by name."""
    from penstock.aws import AwsServiceError, JsonClient

    status: dict[str, str] = {}
    request: dict[str, Any] = {}
    async with JsonClient(session) as client:
        try:
            while True:
                # The names of 500 streams use up the account's 5 calls a second.
                answer = await call_about(client, "ListStreams", request, _ALL, retry_patience)
                known = {one["StreamName"]: one["StreamStatus"] for one in answer.get("StreamSummaries", ())}
                status |= {name: known.get(name, "") for name in answer["StreamNames"]}
                if not answer["HasMoreStreams"] or not answer["StreamNames"]:
                    return status
                request = {"ExclusiveStartStreamName": answer["StreamNames"][-1]}
        except AwsServiceError as error:
            raise InitialPositionError(stream="*", code=error.code, reason=f"{error}: {_ADVICE}") from error


def existing(session: "AwsSession", streams: Mapping[str, str], retry_patience: float) -> tuple[str, ...]:
    """Those names whose streams exist; `streams` says by which name or ARN each is asked for."""

    async def ask() -> tuple[str, ...]:
        from penstock.aws import JsonClient

        async with JsonClient(session) as client:
            return tuple([name for name, key in streams.items() if await _exists(client, key, retry_patience)])

    return asyncio.run(ask())


async def _exists(client: "JsonClient", stream: str, retry_patience: float) -> bool:
    from penstock.aws import AwsServiceError

    try:
        purpose = f"cannot check whether stream {stream} exists; reading anyway"
        summary = await describe_stream(client, stream, purpose, retry_patience)
    except AwsServiceError as error:
        if error.code == _NOT_FOUND:
            return False
        raise
    return summary is None or summary.status != "DELETING"


class StreamKeys:
    """What the reader calls the streams: their ARNs where these were given. Offsets and rows have names."""

    def __init__(self, options: "KinesisOptions") -> None:
        self._keys = {name: arn for name in options.stream_name if (arn := options.arn_of(name)) is not None}
        self._names = {arn: name for name, arn in self._keys.items()}

    def keyed(self, positions: StreamPositions) -> StreamPositions:
        """For the reader."""
        return _renamed(positions, self._keys)

    def named(self, positions: StreamPositions) -> StreamPositions:
        """From the reader."""
        return _renamed(positions, self._names)

    def name(self, key: str) -> str:
        """From the reader."""
        return self._names.get(key, key)

    def keyed_range(self, one: ShardRange) -> ShardRange:
        """For the reader."""
        return replace(one, stream_name=self._keys.get(one.stream_name, one.stream_name))


def _renamed(positions: StreamPositions, names: Mapping[str, str]) -> StreamPositions:
    if not names:
        return positions
    return StreamPositions(
        {names.get(stream, stream): shards for stream, shards in positions.streams.items()},
        {names.get(stream, stream): millis for stream, millis in positions.created.items()},
    )
