"""What DescribeStreamSummary says of a stream: 20 calls a second for a whole account."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.aws import JsonClient

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A stream as it is now."""

    status: str
    retention_seconds: int
    created_millis: int
    """In milliseconds since 1970, by the service."""


async def describe_stream(client: "JsonClient", stream: str, purpose: str) -> StreamSummary | None:
    """Of a stream's name or ARN; None, with a warning about the purpose, where the permission for it is missing.

    Raises:
        penstock.aws.AwsServiceError: There is no such stream, or the service refuses for another reason.
    """
    # Whoever imports this for its other uses is spared the client.
    from penstock.aws import AwsServiceError, BackoffPolicy, retry
    from penstock.efo_consumer import StreamIdentity

    request = StreamIdentity.of(stream).request
    try:
        answer = await retry(lambda: client.call("DescribeStreamSummary", request), BackoffPolicy())
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
