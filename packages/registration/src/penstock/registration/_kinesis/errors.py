"""Errors of Kinesis, as errors of this package."""

from __future__ import annotations

from typing import Final

from penstock.aws import AwsOptionError, AwsServiceError, ErrorKind, classify, error_code
from penstock.registration.errors import (
    ConsumerNotFoundError,
    InvalidRequestError,
    RegistrationDeniedError,
    RegistrationError,
    RegistrationFailedError,
    RegistrationOptionError,
    RegistryUnavailableError,
)

NOT_FOUND: Final = frozenset({"ResourceNotFoundException"})
_DENIED: Final = frozenset(
    {
        "AccessDeniedException",
        "AccessDenied",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "IncompleteSignature",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "OptInRequired",
        "ExpiredToken",
        "ExpiredTokenException",
    }
)
_INVALID: Final = frozenset({"InvalidArgumentException", "ValidationException", "ValidationError"})


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, AwsServiceError) else str(error)


def typed_error(error: BaseException, operation: str, subject: str) -> RegistrationError:
    """What the error means to a caller. `subject` is the name or ARN that the call was about."""
    code = error_code(error)
    message = _message(error)
    if code is None:
        if isinstance(error, AwsOptionError):
            return RegistrationOptionError(option=error.option, reason=error.reason)
        if classify(error) is ErrorKind.FATAL:
            return RegistrationFailedError(operation=operation, code=type(error).__name__, reason=message)
        return RegistryUnavailableError(where="Kinesis", reason=f"{operation}: {message}")
    if code in NOT_FOUND:
        return ConsumerNotFoundError(stream_name="", consumer_name=subject)
    if code in _DENIED:
        return RegistrationDeniedError(operation=operation, reason=f"{code}: {message}")
    if code in _INVALID:
        # Perhaps looked at before it was sent: an empty name, say.
        return InvalidRequestError(field=subject or "name", reason=message)
    if classify(error) is not ErrorKind.FATAL:
        return RegistryUnavailableError(where="Kinesis", reason=f"{operation}: {code}: {message}")
    return RegistrationFailedError(operation=operation, code=code, reason=message)
