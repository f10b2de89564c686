"""Classification of errors: retryable, throttled or fatal.

One table for calls and for exceptions inside an event stream. The caller decides about codes whose meaning depends on
the operation, such as ResourceInUseException.
"""

from enum import Enum

from botocore.exceptions import ClientError, EventStreamError, HTTPClientError
from botocore.exceptions import ConnectionError as BotoConnectionError

from penstock.aws.errors import AwsConnectionError, AwsCredentialsError, AwsServiceError


class ErrorKind(Enum):
    """How a caller should react to an error."""

    RETRYABLE = "retryable"
    """Retry after a back-off."""
    THROTTLED = "throttled"
    """Retry after a back-off, and slow down."""
    FATAL = "fatal"
    """A retry gives the same result: report the error."""


THROTTLING_CODES = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "KMSThrottlingException",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "TooManyRequestsException",
        "SlowDown",
    }
)
RETRYABLE_CODES = frozenset(
    {
        "InternalFailure",
        "InternalFailureException",
        "InternalServerError",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "ExpiredIteratorException",
        "RequestTimeout",
        "RequestTimeoutException",
        "RequestExpired",
        # STS cannot reach the identity provider.
        "IDPCommunicationError",
    }
)
EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException"})
"""Codes with which a service or STS refuses an expired token."""
CREDENTIALS_REFUSED_CODES = EXPIRED_CODES | {"UnrecognizedClientException", "InvalidClientTokenId"}
"""Codes with which a service refuses expired or unknown credentials."""

UNREADABLE_ANSWER = "UnreadableAnswer"
"""Code of an answer with HTTP 200 that does not come from the service."""


def error_code(error: BaseException) -> str | None:
    """AWS's error code without namespace, for errors of this package and of botocore; None for others."""
    if isinstance(error, AwsServiceError):
        return error.code
    if isinstance(error, ClientError | EventStreamError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        code = code.rpartition("#")[2]
        # Inside an event stream a code begins with a small letter.
        return code[:1].upper() + code[1:]
    return None


def are_credentials_refused(error: BaseException) -> bool:
    """Whether the credentials have expired or are unknown: `AwsSession.renew_credentials` may help."""
    return error_code(error) in CREDENTIALS_REFUSED_CODES


def _status(error: BaseException) -> int:
    if isinstance(error, AwsServiceError):
        return error.status
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 0


def classify_code(code: str, status: int = 0) -> ErrorKind:
    """The kind of an error with this code and HTTP status."""
    # A proxy or a gateway before the service may throttle with a status and no code of AWS.
    if code in THROTTLING_CODES or status == 429:
        return ErrorKind.THROTTLED
    if code in RETRYABLE_CODES or status == 408 or status >= 500:
        return ErrorKind.RETRYABLE
    return ErrorKind.FATAL


def classify(error: BaseException) -> ErrorKind:
    """The kind of an error; errors that do not come from AWS or the network are fatal."""
    code = error_code(error)
    if code is not None:
        return classify_code(code, _status(error))
    if isinstance(error, AwsCredentialsError):
        return ErrorKind.RETRYABLE if error.is_retryable else ErrorKind.FATAL
    if isinstance(error, AwsConnectionError | BotoConnectionError | HTTPClientError):
        return ErrorKind.RETRYABLE
    if isinstance(error, ConnectionError | TimeoutError):
        return ErrorKind.RETRYABLE
    return ErrorKind.FATAL
