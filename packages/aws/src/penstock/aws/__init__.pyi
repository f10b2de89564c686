# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._aws_client import (
    AwsClient,
    as_json,
    service_error,
)
from ._backoff import (
    BackoffPolicy,
    retry,
)
from ._classify import (
    CREDENTIALS_REFUSED_CODES,
    EXPIRED_CODES,
    UNREADABLE_ANSWER,
    ErrorKind,
    are_credentials_refused,
    classify,
    classify_code,
    error_code,
)
from ._conditional import (
    AwsCalls,
    ConditionalStore,
    DynamoDbTable,
    Item,
    S3Store,
    StoredValue,
)
from ._json_client import JsonClient
from ._location import (
    AwsLocation,
    LocationMismatch,
    account_of,
    check_encrypted,
    endpoint_aliases,
    exposed_endpoint,
    mismatch_message,
    region_of_endpoint,
)
from ._options import ROLE_ARN, AwsOptions
from ._provider import (
    CredentialsProvider,
    ProvidedCredentials,
)
from ._proxy import HttpProxy
from ._service_clock import (
    ServiceClock,
    date_seconds,
)
from ._session import AwsSession
from .errors import (
    AwsConnectionError,
    AwsCredentialsError,
    AwsError,
    AwsOptionError,
    AwsServiceError,
)

__all__ = [
    "CREDENTIALS_REFUSED_CODES",
    "EXPIRED_CODES",
    "ROLE_ARN",
    "UNREADABLE_ANSWER",
    "AwsCalls",
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
    "ConditionalStore",
    "CredentialsProvider",
    "DynamoDbTable",
    "ErrorKind",
    "HttpProxy",
    "Item",
    "JsonClient",
    "LocationMismatch",
    "ProvidedCredentials",
    "S3Store",
    "ServiceClock",
    "StoredValue",
    "account_of",
    "are_credentials_refused",
    "as_json",
    "check_encrypted",
    "classify",
    "classify_code",
    "date_seconds",
    "endpoint_aliases",
    "error_code",
    "exposed_endpoint",
    "mismatch_message",
    "region_of_endpoint",
    "retry",
    "service_error",
]
