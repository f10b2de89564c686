"""AWS sessions, signed JSON calls, back-off and error classes for Penstock."""

from penstock.aws._backoff import BackoffPolicy, retry
from penstock.aws._classify import ErrorKind, are_credentials_refused, classify, classify_code, error_code
from penstock.aws._json_client import JsonClient, service_error
from penstock.aws._options import AwsOptions
from penstock.aws._session import AwsSession
from penstock.aws.errors import AwsConnectionError, AwsError, AwsOptionError, AwsServiceError

__all__ = [
    "AwsConnectionError",
    "AwsError",
    "AwsOptionError",
    "AwsOptions",
    "AwsServiceError",
    "AwsSession",
    "BackoffPolicy",
    "ErrorKind",
    "JsonClient",
    "are_credentials_refused",
    "classify",
    "classify_code",
    "error_code",
    "retry",
    "service_error",
]
