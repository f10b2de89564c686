"""A stream that Kinesis is still creating: what is asked about it waits, as it does for a stream consumer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from penstock.aws import AwsError, AwsServiceError, BackoffPolicy, ErrorKind, JsonClient, classify, retry
from penstock.efo_consumer.errors import RecordPublisherFatalError, RecordPublisherRetriesError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.efo_consumer._model.shards import StreamIdentity

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
CREATING = "CREATING"
IN_USE = "ResourceInUseException"
# Kinesis answers calls about a stream that it is creating, or deleting, with either of them.
_REFUSALS = (IN_USE, "ResourceNotFoundException")
# DescribeStreamSummary allows 20 calls/s per account. A stream takes some tens of seconds.
_LOOK_SECONDS = 2.0
_LOG_SECONDS = 60.0


async def once_created(
    call: Callable[[], Awaitable[_T]],
    client: JsonClient,
    stream: StreamIdentity,
    *,
    operation: str,
    patience_seconds: float,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> _T:
    """Make a call about a stream, and repeat it while Kinesis refuses it because the stream is being created.

    The wait is logged at its beginning and then once a minute. Without permission for DescribeStreamSummary the call
    fails at once.

    Args:
        call: makes one attempt.
        client: asks for the stream's status.
        stream: the stream.
        operation: what the call does, for the error.
        patience_seconds: the longest wait; 0 for no limit.
        sleep: waits for so many seconds.

    Raises:
        RecordPublisherRetriesError: the stream is still being created after the longest wait.
        RecordPublisherFatalError: the stream is being deleted.
        AwsServiceError: Kinesis refuses the call for another reason. So do the call's other errors.
    """
    waited, log_at, is_coming = 0.0, 0.0, False
    while True:
        try:
            return await call()
        except AwsServiceError as error:
            if error.code not in _REFUSALS:
                raise
            status = await _status(client, stream)
            facts = {"stream": stream.name, "shard_id": "", "code": error.code}
            if status == "DELETING":
                raise RecordPublisherFatalError(f"{operation}: the stream is DELETING", **facts) from error
            # A call that was on its way may be refused right after the stream has become ACTIVE.
            is_coming = status == CREATING or (status is not None and (is_coming or error.code == IN_USE))
            if not is_coming:
                raise
            if patience_seconds and waited >= patience_seconds:
                reason = f"{operation}: the stream is still {status} after {waited:.0f} s (retryPatience)"
                raise RecordPublisherRetriesError(reason, attempts=int(waited / _LOOK_SECONDS) + 1, **facts) from error
        if waited >= log_at:
            log_at += _LOG_SECONDS
            limit = f"for up to {patience_seconds:g} s" if patience_seconds else "for as long as it takes"
            _log.warning("stream %s is %s: waiting until it is ACTIVE, %s", stream.name, status, limit)
        await sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS


async def _status(client: JsonClient, stream: StreamIdentity) -> str | None:
    """The status of a stream; None if it does not exist, or may not be asked for. Text in parentheses if it is unknown.

    An outage does not end a wait.
    """
    try:
        answer = await retry(lambda: client.call("DescribeStreamSummary", stream.request), BackoffPolicy())
    except AwsError as error:
        _log.info("cannot ask for the status of %s: %s", stream.name, error)
        return None if classify(error) is ErrorKind.FATAL else "(unknown)"
    return str(answer["StreamDescriptionSummary"]["StreamStatus"])
