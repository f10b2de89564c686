"""Errors of access to AWS.

AwsError
├── AwsOptionError         an option is missing, contradictory or unusable
├── AwsCredentialsError    there are no valid credentials, and none can be fetched
├── AwsServiceError        the service answered with an error code
└── AwsConnectionError     no answer: refused, reset, timed out
"""


class AwsError(Exception):
    """Base of all errors of this package."""


class AwsOptionError(AwsError, ValueError):
    """An option is missing, contradictory or unusable.

    `option` is its name in the data source, and `reason` says what to do.

    Cure: Correct the option that is named, as `reason` says.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class AwsCredentialsError(AwsError):
    """There are no valid credentials, and none can be fetched.

    `code` is the code of STS, such as `AccessDenied`, or the name of botocore's error, such as
    `CredentialRetrievalError`. `reason` is the message of the source. Messages about files and processes of this host
    are only logged, because services pass errors to their clients. `is_retryable` is true if the error may disappear
    without a change.

    Cure: Check the source of the credentials that `reason` names: STS, a metadata service, a process or a file. Reading
    and writing resume when it returns credentials again.
    """

    def __init__(self, *, code: str, reason: str, is_retryable: bool) -> None:
        super().__init__(f"cannot fetch AWS credentials: {code}: {reason}")
        self.code = code
        self.reason = reason
        self.is_retryable = is_retryable


class AwsServiceError(AwsError):
    """The service answered with an error code.

    `code` has no namespace (`ResourceNotFoundException`); `status` is the HTTP status.

    Cure: Follow `code`: AccessDenied needs a permission for `operation`, ResourceNotFound another name, region or
    account, ExpiredToken new credentials.
    """

    def __init__(self, *, code: str, message: str, status: int, operation: str, request_id: str = "") -> None:
        super().__init__(f"{operation}: {code}: {message} (HTTP {status}, request {request_id or 'unknown'})")
        self.code = code
        self.message = message
        self.status = status
        self.operation = operation
        self.request_id = request_id


class AwsConnectionError(AwsError):
    """No answer came: the connection was refused, reset or timed out.

    `is_reached` is true if a connection was open and no answer came over it.

    Cure: Check `endpoint`, region, proxy and firewall on the calling host.
    """

    def __init__(self, *, operation: str, endpoint: str, reason: str, is_reached: bool = False) -> None:
        super().__init__(f"{operation}: no answer from {endpoint}: {reason}")
        self.operation = operation
        self.endpoint = endpoint
        self.reason = reason
        self.is_reached = is_reached
