"""What it takes to reach AWS: region, endpoint, credentials, role."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self
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
    "web_identity_token_file": "webIdentityTokenFile",
    "ca_bundle": "caBundle",
    "proxy_url": "proxyUrl",
}


@dataclass(frozen=True, kw_only=True)
class AwsOptions:
    """What it takes to reach AWS. Everything may be left out: boto3's default chain then decides.

    Credentials come from, in this order: a role with a web identity; a role assumed with the credentials below; the
    keys; the profile; the default chain. Can be pickled, but holds secrets: keep it within the application.
    """

    region: str | None = None
    """Such as `eu-west-1`. Default: `AWS_REGION`, `AWS_DEFAULT_REGION`, or the profile's."""
    endpoint_url: str | None = None
    """Of Kinesis, such as `https://127.0.0.1:4567`. Default: the region's own."""
    access_key_id: str | None = None
    """Together with `secret_access_key`."""
    secret_access_key: str | None = field(default=None, repr=False)
    """Together with `access_key_id`."""
    session_token: str | None = field(default=None, repr=False)
    """With temporary keys."""
    profile: str | None = None
    """Name of a profile in the shared configuration files."""
    role_arn: str | None = None
    """Role to assume."""
    role_session_name: str | None = None
    """Name of the session in CloudTrail. Default: `penstock`."""
    role_external_id: str | None = field(default=None, repr=False)
    """External id that the role's trust policy asks for."""
    sts_endpoint_url: str | None = None
    """Of STS. Default: the region's own."""
    web_identity_token_file: str | None = None
    """File with a web identity token, with which `role_arn` is assumed."""
    ca_bundle: str | None = None
    """PEM file of the authorities to trust. Default: that of the environment (`AWS_CA_BUNDLE`) or the system."""
    proxy_url: str | None = field(default=None, repr=False)
    """HTTP proxy on the way to AWS, such as `http://user:password@proxy.internal:3128`; not for hosts of `NO_PROXY`.
    Default: `HTTPS_PROXY`, or for an http endpoint `HTTP_PROXY`."""

    def __post_init__(self) -> None:
        self._need("access_key_id", "secret_access_key")
        self._need("secret_access_key", "access_key_id")
        self._need("session_token", "access_key_id")
        for name in ("role_session_name", "role_external_id", "web_identity_token_file", "sts_endpoint_url"):
            self._need(name, "role_arn")
        if self.profile is not None and self.access_key_id is not None:
            raise AwsOptionError("awsProfile", "and awsAccessKeyId exclude each other: give one of them")
        for name in ("endpoint_url", "sts_endpoint_url"):
            url = getattr(self, name)
            if url is not None:
                check_url(_OPTION_NAMES[name], url)
        if self.proxy_url is not None:
            from penstock.aws._proxy import HttpProxy

            HttpProxy.from_url(self.proxy_url)

    def _need(self, name: str, other: str) -> None:
        if getattr(self, name) is not None and getattr(self, other) is None:
            raise AwsOptionError(_OPTION_NAMES[other], f"is missing; {_OPTION_NAMES[name]} needs it")

    @classmethod
    def from_mapping(cls, options: Mapping[str, str]) -> Self:
        """Options by their camelCase names, in any letter case; names that are not of AWS are ignored."""
        given = {name.lower(): value for name, value in options.items()}
        return cls(**{key: given[name.lower()] for key, name in _OPTION_NAMES.items() if name.lower() in given})

    def to_mapping(self) -> dict[str, str]:
        """The options that are set, by their camelCase names. Holds secrets."""
        pairs = ((_OPTION_NAMES[item.name], getattr(self, item.name)) for item in fields(self))
        return {name: value for name, value in pairs if value is not None}


def check_url(option: str, url: str) -> None:
    """Check an endpoint.

    Raises:
        AwsOptionError: it is none, or holds what may be a secret.
    """
    # Endpoints are shown, in errors and logs and spans: what may hold a secret is refused, and not shown.
    if any(sign in url for sign in "@?#"):
        reason = "is a scheme, a host and a port, without user, password, query or fragment: credentials are options"
        raise AwsOptionError(option, reason)
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise AwsOptionError(option, f"{url!r} is not an http or https URL")
