"""What DescribeStreamSummary says of a stream: 20 calls a second for a whole account."""

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


async def call_patiently(
    client: "JsonClient", operation: str, request: dict[str, Any], retry_patience: float | None
) -> dict[str, Any]:
    """The answer to a call. Errors that may pass are retried for so many seconds, 0 for ever; ten times for None.

    Raises:
        penstock.aws.AwsError: The last attempt's.
    """
    # Whoever imports this for its other uses is spared the client.
    from penstock.aws import BackoffPolicy, ErrorKind, classify, retry

    began = time.monotonic()

    def may_pass(error: BaseException) -> bool:
        is_in_time = not retry_patience or time.monotonic() - began < retry_patience
        return classify(error) is not ErrorKind.FATAL and is_in_time

    policy = BackoffPolicy() if retry_patience is None else BackoffPolicy(max_attempts=None)
    return await retry(lambda: client.call(operation, request), policy, is_retryable=may_pass)


async def describe_stream(
    client: "JsonClient", stream: str, purpose: str, retry_patience: float | None = None
) -> StreamSummary | None:
    """Of a stream's name or ARN; None, with a warning about the purpose, where the permission for it is missing.

    Errors that may pass are retried as `call_patiently` does.

    Raises:
        penstock.aws.AwsServiceError: There is no such stream, or the service refuses for another reason.
    """
    from penstock.aws import AwsServiceError
    from penstock.efo_consumer import StreamIdentity

    request = StreamIdentity.of(stream).request
    try:
        answer = await call_patiently(client, "DescribeStreamSummary", request, retry_patience)
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
