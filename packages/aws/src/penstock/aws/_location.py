"""Where a caller and a service each reach AWS, and whether that is the same place."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.aws._options import check_url

if TYPE_CHECKING:
    from penstock.aws._session import AwsSession

_AWS_DOMAIN = r"(?:amazonaws\.com(?:\.cn)?|api\.aws|api\.amazonwebservices\.com\.cn)$"
_AWS_HOST = re.compile(rf"(?:^|\.){_AWS_DOMAIN}")
_KINESIS_HOST = re.compile(
    rf"(?:^|\.)(?:(?:(?:data|control)-)?kinesis|firehose)(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:vpce\.)?{_AWS_DOMAIN}"
)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class AwsLocation:
    """Where AWS is reached, as far as that is known without a call: what is empty is not compared."""

    region: str = ""
    """Such as `eu-west-1`."""
    account_id: str = ""
    """Twelve digits."""
    endpoint_url: str = ""
    """Of the service that is meant, such as `https://kinesis.eu-west-1.amazonaws.com`."""

    @classmethod
    def of(cls, session: AwsSession, service_name: str = "kinesis") -> AwsLocation:
        """The location of a session's calls.

        Its account is that of the role which the session assumes, or `AWS_ACCOUNT_ID` of the environment where the
        credentials come from there.

        Raises:
            AwsOptionError: the environment or the profile has an endpoint that is none.
        """
        options = session.options
        account = account_of(options.role_arns[-1]) if options.role_arns else ""
        if not account and not options.role_arns and options.access_key_id is None and options.profile is None:
            account = os.environ.get("AWS_ACCOUNT_ID", "")
        return cls(region=session.region, account_id=account, endpoint_url=session.endpoint_url(service_name))

    def mismatch(self, service: AwsLocation, aliases: Collection[str] = ()) -> LocationMismatch | None:
        """What a caller here and a service there do not agree about; None where nothing that both know differs.

        All of AWS's own endpoints count as one, for their regions are compared: a caller may use the public endpoint
        and the service one of its VPC. Other endpoints are compared by host and port.

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


@dataclass(frozen=True)
class LocationMismatch:
    """What a caller and a service do not agree about."""

    fact: str
    """`region`, `account` or `endpoint`."""
    caller: str
    """The caller's."""
    service: str
    """The service's."""


_CURES = {
    "region": "set 'region' to the service's",
    "account": "give the ARN of the stream that is meant as 'streamArn'",
    "endpoint": "set 'endpointUrl' to the service's or, if both lead to the same place, start the service with the "
    "caller's in --endpoint-aliases",
}


def mismatch_message(
    *, service: str, option: str, subject: str, fact: str, caller: str, found: str, address: str = ""
) -> str:
    """Both sides of a mismatch, and its cure.

    Args:
        service: which service found it, such as `the shard reader`.
        option: the option that leads to it, such as `readerEndpoint`.
        subject: what the call is about, such as `stream orders`.
        fact: `region`, `account` or `endpoint`.
        caller: the caller's.
        found: the service's.
        address: of that service, where the option may name several.
    """
    one = f"{service} at {address}" if address else service
    return (
        f"{subject} is another one for {one} than for its caller: the {fact} of {service} is {found}, the caller's "
        f"is {caller}. If the service's is meant, {_CURES.get(fact, 'correct it')}; otherwise let {option!r} name a "
        f"service of {fact} {caller}"
    )


def endpoint_aliases(text: str | None, option: str) -> tuple[str, ...]:
    """URLs from a text with commas.

    Raises:
        AwsOptionError: one of them is none, or holds what may be a secret.
    """
    urls = tuple(url.strip() for url in (text or "").split(",") if url.strip())
    for url in urls:
        check_url(option, url)
    return urls


def region_of_endpoint(endpoint_url: str | None) -> str | None:
    """The region of one of AWS's own endpoints of Kinesis and Firehose; None of any other."""
    found = _KINESIS_HOST.search((urlsplit(endpoint_url or "").hostname or "").lower())
    return None if found is None else found["region"]


def account_of(arn: str) -> str:
    """The account in an ARN; empty if there is none."""
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
