"""Locations in AWS of a caller and of a service, and their differences."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.aws._options import check_no_secret, check_url
from penstock.aws.errors import AwsOptionError

if TYPE_CHECKING:
    from penstock.aws._options import AwsOptions
    from penstock.aws._session import AwsSession

_AWS_DOMAIN = r"(?:amazonaws\.com(?:\.cn)?|api\.aws|api\.amazonwebservices\.com\.cn)$"
_AWS_HOST = re.compile(rf"(?:^|\.){_AWS_DOMAIN}")
_KINESIS_HOST = re.compile(
    r"(?:^|\.)(?:(?:(?:data|control)-)?kinesis|firehose|streams[.-]dynamodb)(?:-fips)?"
    rf"\.(?P<region>[a-z0-9-]+)\.(?:vpce\.)?{_AWS_DOMAIN}"
)
_REAL_KEY = re.compile(r"A(KIA|SIA)[A-Z0-9]{16}")
"""What AWS's access keys look like; those for emulators are words such as `test`."""
_ENDPOINT_VARIABLES = ("", "_KINESIS", "_STS", "_DYNAMODB", "_FIREHOSE", "_SQS")
_NONE: Mapping[str, str | None] = MappingProxyType({})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class AwsLocation:
    """Where AWS is reached, as known without a call. Empty fields are not compared."""

    region: str = ""
    """Such as `eu-west-1`."""
    account_id: str = ""
    """Twelve digits."""
    endpoint_url: str = ""
    """Endpoint of the service, such as `https://kinesis.eu-west-1.amazonaws.com`."""

    @classmethod
    def of(cls, session: AwsSession, service_name: str = "kinesis") -> AwsLocation:
        """The location of a session's calls.

        Its account is the account of the role that the session assumes, or `AWS_ACCOUNT_ID` of the environment if the
        credentials come from there.

        Raises:
            AwsOptionError: the environment or the profile has an endpoint that is not a URL.
        """
        options = session.options
        account = account_of(options.role_arns[-1]) if options.role_arns else ""
        if not account and not options.role_arns and options.access_key_id is None and options.profile is None:
            account = os.environ.get("AWS_ACCOUNT_ID", "")
        return cls(region=session.region, account_id=account, endpoint_url=session.endpoint_url(service_name))

    def mismatch(self, service: AwsLocation, aliases: Collection[str] = ()) -> LocationMismatch | None:
        """The difference between a caller's and a service's location; None if all known facts are equal.

        All AWS endpoints count as equal, because regions are compared: a caller may use the public endpoint and the
        service an endpoint of its VPC. Other endpoints are compared by host and port.

        Args:
            service: the service's own location.
            aliases: further URLs by which callers know the service's endpoint.
        """
        if self.endpoint_url and service.endpoint_url:
            known = {_place(url) for url in (service.endpoint_url, *aliases)}
            if _place(self.endpoint_url) not in known:
                return LocationMismatch("endpoint", self.endpoint_url, service.endpoint_url)
        for name in ("region", "account_id"):
            mine, theirs = getattr(self, name), getattr(service, name)
            if mine and theirs and mine != theirs:
                return LocationMismatch(name.removesuffix("_id"), mine, theirs)
        return None

    async def stream_mismatch(
        self,
        service: AwsLocation,
        stream: str,
        stream_arn: Callable[[str], Awaitable[str | None]],
        aliases: Collection[str] = (),
    ) -> LocationMismatch | None:
        """As `mismatch`, for a stream: the service's account is the account that owns what it knows by that name.

        The ARN of a stream says which stream it is, also one of another account: then no accounts are compared.

        Args:
            service: the service's own location.
            stream: name or ARN, as the caller gave it.
            stream_arn: asks the service's Kinesis for the ARN of a name, if the caller's account is known.
            aliases: further URLs by which callers know the service's endpoint.
        """
        account = ""
        if self.account_id and not stream.startswith("arn:"):
            account = account_of(await stream_arn(stream) or "")
        return self.mismatch(replace(service, account_id=account), aliases)


@dataclass(frozen=True)
class LocationMismatch:
    """A difference between the locations of a caller and of a service."""

    fact: str
    """`region`, `account` or `endpoint`."""
    caller: str
    """The caller's."""
    service: str
    """The service's."""


_SETTINGS = {
    "region": ("region", "--region", "AWS_REGION"),
    "endpoint": ("endpointUrl", "--endpoint-url", "AWS_ENDPOINT_URL"),
}


def mismatch_message(
    *,
    service: str,
    option: str,
    subject: str,
    fact: str,
    caller: str,
    found: str,
    address: str = "",
    consumer_arn: str = "",
) -> str:
    """Both values of a mismatch, where each comes from, and what to set.

    Args:
        service: which service found it, such as `the shard reader`.
        option: the option that leads to it, such as `readerEndpoint`.
        subject: what the call is about, such as `stream orders`.
        fact: `region`, `account` or `endpoint`.
        caller: the caller's value.
        found: the service's value.
        address: address of that service, where the option may name several.
        consumer_arn: ARN of the stream consumer that the caller's value was read from; empty if it is a setting.
    """
    setting, flag, variable = _SETTINGS.get(fact, ("", "", ""))
    mine = f"option {setting!r}, else {variable}" if setting else "its credentials"
    theirs = f"{flag}, else {variable}" if flag else "its credentials"
    here = f"set {setting!r} to {found}"
    there = f"start {service} with {flag} {caller}, or let {option!r} name a service of {fact} {caller}"
    if not setting:
        here = "give the ARN of the stream as 'streamArn'"
        there = f"let {option!r} name a service of account {caller}"
    if fact == "endpoint":
        there += f"; if both are the same place, start {service} with --endpoint-aliases {caller}"
    if consumer_arn:
        mine = f"the stream consumer {consumer_arn}"
        here = f"create the stream and its consumer in {fact} {found}"
    return (
        f"{subject} is another one for {f'{service} at {address}' if address else service} than for its caller: the "
        f"{fact} of {service} is {found} ({theirs}), the caller's is {caller} ({mine}). If {found} is right, {here}; "
        f"if {caller} is right, {there}"
    )


def endpoint_aliases(text: str | None, option: str) -> tuple[str, ...]:
    """URLs from a comma-separated text.

    Raises:
        AwsOptionError: a part is not a URL, or holds what may be a secret.
    """
    check_no_secret(option, text or "")
    urls = tuple(url.strip() for url in (text or "").split(",") if url.strip())
    for url in urls:
        check_url(option, url)
    return urls


def region_of_endpoint(endpoint_url: str | None) -> str | None:
    """The region of an AWS endpoint of Kinesis, DynamoDB Streams or Firehose; None for other endpoints."""
    found = _KINESIS_HOST.search((urlsplit(endpoint_url or "").hostname or "").lower())
    return None if found is None else found["region"]


def exposed_endpoint(
    endpoints: Mapping[str, str | None], *, access_key_id: str, profile: str | None
) -> tuple[str, str] | None:
    """Option and host of the first URL that would send possibly real credentials to another machine without TLS.

    The result of the default chain is not known here, so all keys except an emulator's keys count as real.

    Args:
        endpoints: URLs by their options.
        access_key_id: the key that will be used, if it is known.
        profile: that will be used, if any: its keys are not known.
    """
    if access_key_id and not _REAL_KEY.fullmatch(access_key_id) and not profile:
        return None
    for option, endpoint in endpoints.items():
        url = urlsplit(endpoint or "")
        host = url.hostname or ""
        is_loopback = host == "::1" or host.startswith("127.") or host == "localhost" or host.endswith(".localhost")
        if url.scheme == "http" and not is_loopback:
            return option, host
    return None


def check_encrypted(
    options: AwsOptions, allowed: str | None, environ: Mapping[str, str], further: Mapping[str, str | None] = _NONE
) -> AwsOptions:
    """Return the options of a service, unless its credentials and records would leave this machine without TLS.

    Args:
        options: with the endpoints of Kinesis and STS.
        allowed: `true` lets them, as the service's setting `allow_insecure_endpoint` says; None or `false` does not.
        environ: where botocore finds keys, a profile and further endpoints.
        further: endpoints of other AWS services, by their options.

    Raises:
        AwsOptionError: names the endpoint that is to be https.
    """
    text = (allowed or "false").lower()
    if text not in ("true", "false"):
        raise AwsOptionError("allow_insecure_endpoint", f"{allowed!r} is neither true nor false")
    if text == "true":
        return options
    endpoints = {"endpointUrl": options.endpoint_url, "stsEndpointUrl": options.sts_endpoint_url, **further}
    endpoints |= {name: environ.get(name) for name in (f"AWS_ENDPOINT_URL{one}" for one in _ENDPOINT_VARIABLES)}
    for name, url in endpoints.items():
        check_no_secret(name, url or "")
    key = options.access_key_id or environ.get("AWS_ACCESS_KEY_ID", "")
    found = exposed_endpoint(endpoints, access_key_id=key, profile=options.profile or environ.get("AWS_PROFILE"))
    if found is not None:
        reason = (
            f"records and session tokens would go to {found[1]} without encryption, with credentials that may be real"
        )
        cure = "use https://, or set allow_insecure_endpoint to true if the way there is safe"
        raise AwsOptionError(found[0], f"{reason}: {cure}")
    return options


def account_of(arn: str) -> str:
    """The account in an ARN; empty for an ARN without one."""
    parts = arn.split(":")
    return parts[4] if len(parts) > 5 and parts[0] == "arn" else ""


def _place(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if _AWS_HOST.search(host):
        return "AWS"
    if host in ("::1", "localhost") or host.startswith("127.") or host.endswith(".localhost"):
        host = "localhost"
    return f"{host}:{parts.port or _PORTS.get(parts.scheme, 0)}"
