"""What a writer asks its service before it writes: the shards of a stream, the key of a table."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from penstock.async_sink.errors import DestinationError
from penstock.aws import (
    AwsConnectionError,
    AwsCredentialsError,
    AwsError,
    AwsServiceError,
    BackoffPolicy,
    JsonClient,
    retry,
)

# Hundreds of tasks that start together ask together, and some are throttled: a handful of seconds spreads them.
LOOKUP_BACKOFF = BackoffPolicy(
    base=timedelta(milliseconds=200), maximum=timedelta(seconds=4), exponent=2.0, max_attempts=6
)


async def look_up(client: JsonClient, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Call an operation that only reads; again, a bounded number of times, while the answer is that it may work later.

    Raises:
        AwsServiceError: the service refused, for good or each time.
        AwsConnectionError: no answer came, each time.
        AwsCredentialsError: there are no credentials that have not expired, and none can be fetched.
    """
    return await retry(lambda: client.call(operation, parameters), LOOKUP_BACKOFF)


LOOKUP_ERRORS = (AwsServiceError, AwsConnectionError, AwsCredentialsError)
"""What a look-up fails with, when its options are right."""


def lookup_failed(destination: str, error: AwsError, hint: str = "") -> DestinationError:
    """The error of a writer that cannot be opened as a look-up failed; `hint` says how to do without it."""
    suffix = f"; {hint}" if hint else ""
    if isinstance(error, AwsServiceError):
        return DestinationError(destination, error.code, f"{error.message} ({error.operation}{suffix})")
    return DestinationError(destination, type(error).__name__, f"{error}{suffix}")
