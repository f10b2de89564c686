"""Region, credentials, endpoint and clock: what has to be right before any call of AWS."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.cli._doctor._findings import Finding, ok, problem, skipped, warning
from penstock.cli._doctor._surroundings import Surroundings

if TYPE_CHECKING:
    from penstock.aws import AwsSession

INSTALL: Final = 'pip install "penstock-cli[aws]"'
SKEW_PROBLEM_SECONDS: Final = 300.0
"""Signatures that are further from the service's time are refused."""
SKEW_WARNING_SECONDS: Final = 30.0
_PROVIDERS: Final = {
    "env": "variables of the environment",
    "shared-credentials-file": "the shared credentials file",
    "config-file": "the configuration file",
    "assume-role": "a role that is assumed",
    "assume-role-with-web-identity": "a web identity token",
    "sso": "IAM Identity Center",
    "container-role": "the container's role",
    "iam-role": "the instance's role",
    "custom-process": "a credential process",
    "login": "aws login",
}
_LOGIN: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile (aws configure), or run with a role"
_RENEW: Final = "log in again (aws sso login), or fetch new keys: those of a role last some hours"


class AwsMissingError(Exception):
    """There is no session: the message says what is missing."""


def open_session(surroundings: Surroundings) -> AwsSession:
    """A session of Penstock, as its packages make it.

    Raises:
        AwsMissingError: a package or the region is missing, or a setting is wrong.
    """
    try:
        from penstock.aws import AwsError, AwsOptions, AwsSession
    except ImportError as error:
        raise AwsMissingError(f"{error}: {INSTALL}") from error
    try:
        options = AwsOptions(
            region=surroundings.region,
            endpoint_url=surroundings.endpoint_url,
            profile=surroundings.profile,
            ca_bundle=surroundings.ca_bundle,
        )
        return AwsSession(options)
    except AwsError as error:
        raise AwsMissingError(str(error)) from error


def check_region(surroundings: Surroundings) -> Iterator[Finding]:
    """From the option, the environment or the profile."""
    try:
        import penstock.aws  # noqa: F401  # is it there?
    except ImportError as error:
        yield skipped("Region", f"penstock.aws cannot be imported: {error}", INSTALL)
        return
    try:
        session = open_session(surroundings)
    except AwsMissingError as error:
        yield problem("Region", str(error), "give the option region (here --region), or set AWS_REGION")
        return
    yield ok("Region", session.region)


def check_credentials(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether there are any, from where, and until when. They are never shown."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import Session
    except ImportError as error:
        yield skipped("Credentials", f"botocore cannot be imported: {error}", INSTALL)
        return
    try:
        found = Session(profile=surroundings.profile).get_credentials()
        if found is None:
            yield problem("Credentials", "there are none", _LOGIN)
            return
        frozen = found.get_frozen_credentials()
    except (BotoCoreError, ClientError, OSError, RuntimeError) as error:
        # RuntimeError is what botocore raises for new ones that are over already.
        yield problem("Credentials", f"they cannot be had: {error}", f"{_LOGIN}; or {_RENEW}")
        return
    provider = _PROVIDERS.get(found.method, found.method)
    if not frozen.access_key or not frozen.secret_key:
        yield problem("Credentials", f"{provider}: the key or its secret is empty", _LOGIN)
        return
    expiry = getattr(found, "_expiry_time", None)
    if isinstance(expiry, datetime):
        left = expiry.timestamp() - surroundings.wall_clock()
        if left <= 0:
            yield problem("Credentials", f"{provider}: they expired at {expiry:%Y-%m-%d %H:%M} UTC", _RENEW)
            return
        yield ok("Credentials", f"from {provider}, until {expiry:%Y-%m-%d %H:%M} UTC")
    elif frozen.token:
        yield ok("Credentials", f"from {provider}, temporary: their end is not known")
    else:
        yield ok("Credentials", f"from {provider}")


def check_endpoint(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether Kinesis answers, and whether this machine's clock is the service's."""
    try:
        session = open_session(surroundings)
    except AwsMissingError as error:
        yield skipped("Endpoint", f"it is not known without the region: {error}")
        return
    from penstock.aws import AwsOptionError

    url = session.endpoint_url()
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" and (os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")):
        yield skipped(
            "Endpoint", f"{url} is behind a proxy (HTTPS_PROXY): the calls for --stream show whether it answers"
        )
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection: http.client.HTTPConnection
    timeout = surroundings.timeout_seconds
    try:
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=session.ssl_context())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        try:
            connection.request("GET", "/")
            date = connection.getresponse().getheader("Date")
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, AwsOptionError) as error:
        yield _unreachable(url, error)
        return
    yield ok("Endpoint", f"{url} answers")
    yield judge_clock(date, surroundings.wall_clock())


def _unreachable(url: str, error: Exception) -> Finding:
    if isinstance(error, ssl.SSLCertVerificationError):
        cure = "set AWS_CA_BUNDLE (or the option caBundle) to the PEM file of the authority, such as your proxy's"
        return problem("Endpoint", f"{url}: its certificate is not trusted: {error.verify_message}", cure)
    if isinstance(error, ssl.SSLError):
        return problem(
            "Endpoint", f"{url} does not speak TLS: {error.reason}", "use http:// in the endpoint, if it is an emulator"
        )
    if isinstance(error, socket.gaierror):
        return problem("Endpoint", f"{url}: no such host", "correct the region or the endpoint; check DNS")
    if isinstance(error, ConnectionRefusedError):
        return problem("Endpoint", f"{url}: nobody listens there", "start the emulator, or correct the endpoint")
    if isinstance(error, TimeoutError):
        cure = "check firewall, routes and the VPC endpoint com.amazonaws.REGION.kinesis-streams"
        return problem("Endpoint", f"{url}: no answer in time", cure)
    return problem("Endpoint", f"{url}: {error}", "correct the endpoint; check firewall and proxy")


def judge_clock(date: str | None, now: float) -> Finding:
    """What the service's `Date` header says of this machine's clock, of which `now` is the time."""
    if not date:
        return skipped("Clock", "the service does not say the time")
    try:
        skew = now - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return skipped("Clock", f"the service's time cannot be read: {date!r}")
    if abs(skew) <= SKEW_WARNING_SECONDS:
        return ok("Clock", "as the service's")
    text = f"this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the service"
    cure = "let the clock be set by NTP: timedatectl set-ntp true; in a container or virtual machine, that of its host"
    if abs(skew) >= SKEW_PROBLEM_SECONDS:
        return problem("Clock", f"{text}: signatures are refused", cure)
    return warning("Clock", f"{text}: lags and start positions are off by that", cure)
