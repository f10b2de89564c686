"""Options of access to AWS: region, endpoint, credentials and role."""

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from penstock.aws.errors import AwsOptionError

_OPTION_NAMES = {
    "access_key_id": "awsAccessKeyId",
    "secret_access_key": "awsSecretAccessKey",
    "session_token": "awsSessionToken",
    "profile": "awsProfile",
    "region": "region",
    "endpoint_url": "endpointUrl",
    "role_arn": "roleArn",
    "role_session_name": "roleSessionName",
    "role_external_id": "roleExternalId",
    "sts_endpoint_url": "stsEndpointUrl",
    "role_session_seconds": "roleSessionDuration",
    "role_session_tags": "roleSessionTags",
    "web_identity_token_file": "webIdentityTokenFile",
    "credentials_provider": "credentialsProvider",
    "ca_bundle": "caBundle",
    "proxy_url": "proxyUrl",
}

_FLAGS: Final = {
    "region": "region of the streams; boto3's default chain decides when it is not given",
    "endpoint_url": "endpoint of Kinesis, for emulators and VPC endpoints",
    "profile": "profile of the shared configuration files",
    "role_arn": "role to assume",
    "role_session_name": "name of the role's session",
    "role_external_id": "external id that the role asks for",
    "sts_endpoint_url": "endpoint of STS",
    "ca_bundle": "PEM file of the authorities to trust for AWS",
}
CREDENTIALS_PROVIDER = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
"""Pattern of `credentialsProvider`."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "role_session_seconds": (int,),
    "role_session_tags": (tuple, list),
    "web_identity_token_file": (str, os.PathLike),
    "ca_bundle": (str, os.PathLike),
}
"""Types of fields that are not only text."""
_T = TypeVar("_T")
ROLE_ARN: Final = re.compile(r"arn:[\w-]+:iam::\d*:role/.+", re.ASCII)
"""Pattern of the ARN of a role."""


@dataclass(frozen=True, kw_only=True)
class AwsOptions:
    """Options of access to AWS. Options that are not set come from boto3's default chain.

    Credentials come from the first of: a role with a web identity; a role assumed with the credentials below; the
    keys; the provider; the profile; the default chain. Can be pickled, but holds secrets: keep it within the
    application.
    """

    region: str | None = None
    """Such as `eu-west-1`. Default: `AWS_REGION`, `AWS_DEFAULT_REGION`, or the profile's."""
    endpoint_url: str | None = None
    """Endpoint of Kinesis, such as `https://127.0.0.1:4567`. Default: the region's endpoint."""
    stream_service: str = "kinesis"
    """The service that has the streams, as boto3 names it: `kinesis`, or `dynamodbstreams`; `endpoint_url` is its."""
    access_key_id: str | None = None
    """Together with `secret_access_key`."""
    secret_access_key: str | None = field(default=None, repr=False)
    """Together with `access_key_id`."""
    session_token: str | None = field(default=None, repr=False)
    """With temporary keys."""
    profile: str | None = None
    """Name of a profile in the shared configuration files."""
    role_arn: str | None = None
    """Role to assume. Several roles, separated by commas, are assumed one after the other."""
    role_session_name: str | None = None
    """Name of the session in CloudTrail. Default: `penstock`."""
    role_external_id: str | None = field(default=None, repr=False)
    """External id that the role's trust policy asks for."""
    sts_endpoint_url: str | None = None
    """Endpoint of STS. Default: the region's endpoint."""
    role_session_seconds: int | None = None
    """Duration of the last role's session: 900 to 43,200, and at most 3,600 if a role assumes it. Default: one hour. It
    is renewed before its end."""
    role_session_tags: tuple[tuple[str, str], ...] = ()
    """Tags of the last role's session, as keys and values."""
    web_identity_token_file: str | None = None
    """File with a web identity token for the first role."""
    credentials_provider: str | None = None
    """`package.module:callable` that returns credentials; see `CredentialsProvider`."""
    ca_bundle: str | None = None
    """PEM file of trusted authorities. Default: `AWS_CA_BUNDLE` of the environment, or the system's authorities."""
    proxy_url: str | None = field(default=None, repr=False)
    """HTTP proxy for AWS, such as `http://user:password@proxy.internal:3128`; not for hosts of `NO_PROXY`.
    Default: `HTTPS_PROXY`, or for an http endpoint `HTTP_PROXY`."""

    @classmethod
    def of(cls, aws: Self | None, option: str = "aws") -> Self:
        """Return the options that a caller gave, or the default ones for None.

        Args:
            aws: the options.
            option: the name of the caller's parameter, for the error.

        Raises:
            AwsOptionError: the caller gave something else, such as an `AwsSession`.
        """
        if aws is None:
            return cls()
        return require(aws, cls, option, hint="AwsOptions(region='eu-west-1'), or the `options` of an AwsSession")

    def __post_init__(self) -> None:
        self._check_types()
        self._need("access_key_id", "secret_access_key")
        self._need("secret_access_key", "access_key_id")
        self._need("session_token", "access_key_id")
        for name in (
            "role_session_name",
            "role_external_id",
            "role_session_seconds",
            "web_identity_token_file",
            "sts_endpoint_url",
        ):
            self._need(name, "role_arn")
        if self.role_session_tags:
            self._need("role_session_tags", "role_arn")
        if self.profile is not None and self.access_key_id is not None:
            raise AwsOptionError("awsProfile", "and awsAccessKeyId exclude each other: give one of them")
        if self.credentials_provider is not None:
            for other in ("access_key_id", "profile", "web_identity_token_file"):
                if getattr(self, other) is not None:
                    reason = f"and {_OPTION_NAMES[other]} exclude each other: give one of them"
                    raise AwsOptionError("credentialsProvider", reason)
            if re.fullmatch(CREDENTIALS_PROVIDER, self.credentials_provider) is None:
                reason = f"{self.credentials_provider!r} must be package.module:callable"
                raise AwsOptionError("credentialsProvider", reason)
        self._check_role_session()
        for name in ("endpoint_url", "sts_endpoint_url"):
            url = getattr(self, name)
            if url is not None:
                check_url(_OPTION_NAMES[name], url)
        if self.proxy_url is not None:
            from penstock.aws._proxy import HttpProxy

            HttpProxy.from_url(self.proxy_url)

    def _check_types(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            kinds = _TYPES.get(name, (str,))
            if value is None or isinstance(value, kinds):
                continue
            reason = f"must be {kinds[0].__name__}, not {type(value).__name__}"
            if name == "credentials_provider" and callable(value):
                reason += ": every process imports it, so give its place as text, package.module:callable"
            raise AwsOptionError(_OPTION_NAMES.get(name, name), reason)
        for tag in self.role_session_tags:
            if not (isinstance(tag, tuple | list) and len(tag) == 2 and all(isinstance(part, str) for part in tag)):
                raise AwsOptionError("roleSessionTags", "must be pairs of a key and a value, both text")

    @property
    def role_arns(self) -> tuple[str, ...]:
        """The roles to assume, in this order."""
        return tuple(arn.strip() for arn in (self.role_arn or "").split(",") if arn.strip())

    def _check_role_session(self) -> None:
        # A blank value, such as an empty variable, counts as not set.
        for arn in self.role_arn.split(",") if self.role_arn and self.role_arn.strip() else ():
            if not arn.strip():
                raise AwsOptionError("roleArn", f"{self.role_arn!r} has an empty ARN beside a comma")
            if ROLE_ARN.fullmatch(arn.strip()) is None:
                reason = f"{arn.strip()!r} must be an ARN such as arn:aws:iam::123456789012:role/reader"
                raise AwsOptionError("roleArn", reason)
        seconds = self.role_session_seconds
        most = 3600 if len(self.role_arns) > 1 else 43_200
        if seconds is not None and not 900 <= seconds <= most:
            raise AwsOptionError("roleSessionDuration", f"{seconds} s must be 900 to {most} s for this role")
        if len(self.role_session_tags) > 50:
            raise AwsOptionError("roleSessionTags", "must be 50 at most")
        for key, value in self.role_session_tags:
            if not 1 <= len(key) <= 128 or len(value) > 256:
                reason = f"{key}={value} must have 1 to 128 characters before and up to 256 after the ="
                raise AwsOptionError("roleSessionTags", reason)
        if self.web_identity_token_file is not None and len(self.role_arns) == 1:
            for name in ("role_external_id", "role_session_tags"):
                if getattr(self, name):
                    reason = "is not known to AssumeRoleWithWebIdentity: the token has it, or a second role in roleArn"
                    raise AwsOptionError(_OPTION_NAMES[name], reason)

    def _need(self, name: str, other: str) -> None:
        if getattr(self, name) is not None and getattr(self, other) is None:
            raise AwsOptionError(_OPTION_NAMES[other], f"is missing; {_OPTION_NAMES[name]} needs it")

    @classmethod
    def from_mapping(cls, options: Mapping[str, str]) -> Self:
        """Options by their camelCase names, in any letter case; names that are not of AWS are ignored."""
        given = {name.lower(): value for name, value in options.items()}
        values: dict[str, Any] = {
            key: given[name.lower()] for key, name in _OPTION_NAMES.items() if name.lower() in given
        }
        if (seconds := values.get("role_session_seconds")) is not None:
            if not seconds.isdecimal():
                raise AwsOptionError("roleSessionDuration", f"{seconds!r} must be a whole number of seconds")
            values["role_session_seconds"] = int(seconds)
        if "role_session_tags" in values:
            values["role_session_tags"] = session_tags(values["role_session_tags"])
        return cls(**values)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, prefix: str, *, note: str = "") -> None:
        """Add the flags of a service, with variables `<prefix>_<NAME>`. Keys are not flags: other users could see them.

        Args:
            parser: of the service's command.
            prefix: of the variables of the environment.
            note: added to the help of each flag.
        """
        for name, text in _FLAGS.items():
            variable = f"{prefix}_{name.upper()}"
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, default=os.environ.get(variable), help=f"{text}{note} [{variable}]")

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Options from the flags of `add_arguments`.

        Raises:
            AwsOptionError: an option is wrong; the error names it.
        """
        return cls(**{name: value for name in _FLAGS if (value := getattr(arguments, name))})


def session_tags(text: str) -> tuple[tuple[str, str], ...]:
    """Keys and values of `key=value,key=value`.

    Raises:
        AwsOptionError: the text does not have that form, or has a key twice.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    tags = tuple((key.strip(), value.strip()) for key, _, value in pairs)
    if not all(key.strip() and sign for key, sign, _ in pairs) or len({key for key, _ in tags}) < len(tags):
        raise AwsOptionError("roleSessionTags", f"{text!r} must be key=value, several with commas, each key once")
    return tags


def check_no_secret(option: str, urls: str) -> None:
    """Refuse endpoints that may hold a secret. Endpoints appear in errors, logs and spans.

    Call it with the whole text of an option, before the text is split at commas: a password may hold a comma.

    Raises:
        AwsOptionError: there is user information, a query or a fragment; the error does not show the text.
    """
    if any(sign in urls for sign in "@?#"):
        reason = "is a scheme, a host and a port, without user, password, query or fragment: credentials are options"
        raise AwsOptionError(option, reason)


def check_url(option: str, url: str) -> None:
    """Check an endpoint.

    Raises:
        AwsOptionError: the endpoint is not a URL, or holds what may be a secret.
    """
    check_no_secret(option, url)
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise AwsOptionError(option, f"{url!r} is not an http or https URL")


def require(value: _T, kind: type[_T], option: str, *, hint: str) -> _T:
    """Return a value that has to be of a kind. A wrong one would only fail at the first call to AWS.

    Raises:
        AwsOptionError: the value is of another kind.
    """
    if not isinstance(value, kind):
        raise AwsOptionError(option, f"must be {kind.__name__}, not {type(value).__name__}: {hint}")
    return value
