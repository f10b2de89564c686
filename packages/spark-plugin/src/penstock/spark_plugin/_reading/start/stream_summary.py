"""What DescribeStreamSummary says of a stream: 20 calls a second for a whole account."""

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.aws import JsonClient
    from penstock.efo_consumer import StreamIdentity

_log = logging.getLogger(__name__)


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
    """The answer to a call. Errors that may pass are retried for so many seconds, 0 for ever.

    Raises:
        penstock.efo_consumer.errors.RecordPublisherRetriesError: the retries have run out; says since when.
        penstock.aws.AwsError: the service refused for good.
    """
    # Whoever imports this for its other uses is spared the client.
    from penstock.efo_consumer import call_patiently

    patience = timedelta(seconds=retry_patience)
    return await call_patiently(client, operation, request, stream=stream, retry_patience=patience)


async def describe_stream(
    client: "JsonClient", stream: str, purpose: str, retry_patience: float
) -> StreamSummary | None:
    """Of a stream's name or ARN; None, with a warning about the purpose, where the permission for it is missing.

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
