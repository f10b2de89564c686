"""AWS sessions, signed JSON calls, back-off and error classes for Penstock."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.aws._aws_client import AwsClient
    from penstock.aws._backoff import BackoffPolicy, retry
    from penstock.aws._cbor import as_json
    from penstock.aws._classify import ErrorKind, are_credentials_refused, classify, classify_code, error_code
    from penstock.aws._json_client import JsonClient, service_error
    from penstock.aws._location import (
        AwsLocation,
        LocationMismatch,
        account_of,
        endpoint_aliases,
        mismatch_message,
        region_of_endpoint,
    )
    from penstock.aws._options import AwsOptions
    from penstock.aws._provider import CredentialsProvider, ProvidedCredentials
    from penstock.aws._proxy import HttpProxy
    from penstock.aws._service_clock import ServiceClock, date_seconds
    from penstock.aws._session import AwsSession
    from penstock.aws.errors import (
        AwsConnectionError,
        AwsCredentialsError,
        AwsError,
        AwsOptionError,
        AwsServiceError,
    )

__all__ = [
    "AwsClient",
    "AwsConnectionError",
    "AwsCredentialsError",
    "AwsError",
    "AwsLocation",
    "AwsOptionError",
    "AwsOptions",
    "AwsServiceError",
    "AwsSession",
    "BackoffPolicy",
    "CredentialsProvider",
    "ErrorKind",
    "HttpProxy",
    "JsonClient",
    "LocationMismatch",
    "ProvidedCredentials",
    "ServiceClock",
    "account_of",
    "are_credentials_refused",
    "as_json",
    "classify",
    "classify_code",
    "date_seconds",
    "endpoint_aliases",
    "error_code",
    "mismatch_message",
    "region_of_endpoint",
    "retry",
    "service_error",
]

_MODULES = {
    "_aws_client": ("AwsClient",),
    "_backoff": ("BackoffPolicy", "retry"),
    "_cbor": ("as_json",),
    "_classify": ("ErrorKind", "are_credentials_refused", "classify", "classify_code", "error_code"),
    "_json_client": ("JsonClient", "service_error"),
    "_location": (
        "AwsLocation",
        "LocationMismatch",
        "account_of",
        "endpoint_aliases",
        "mismatch_message",
        "region_of_endpoint",
    ),
    "_options": ("AwsOptions",),
    "_proxy": ("HttpProxy",),
    "_provider": ("CredentialsProvider", "ProvidedCredentials"),
    "_service_clock": ("ServiceClock", "date_seconds"),
    "_session": ("AwsSession",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On first use: Spark imports this package in processes that need little of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
