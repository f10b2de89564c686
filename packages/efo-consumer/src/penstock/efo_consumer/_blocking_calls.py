"""Calls of a boto3 client, which has no retries of its own, for callers without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from penstock.aws import BackoffPolicy, ErrorKind, classify

if TYPE_CHECKING:
    from collections.abc import Callable

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
