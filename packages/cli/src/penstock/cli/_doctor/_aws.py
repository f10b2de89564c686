"""Region, credentials, endpoint and clock: what has to be right before any call of AWS."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.cli._doctor._surroundings import Finding, Surroundings, ok, problem, skipped, warning

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
_CURES: Final = {
    "region": "give the option region (here --region), or set AWS_REGION",
    "awsProfile": "correct the option awsProfile (here --profile), AWS_PROFILE, or the shared configuration files",
    "endpointUrl": "correct the option endpointUrl (here --endpoint-url), AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_KINESIS, "
    "or endpoint_url of the profile",
    "caBundle": "let the option caBundle (here --ca-bundle) or AWS_CA_BUNDLE name a PEM file",
}
"""Of settings that are missing or wrong, by their option."""
_LOGIN: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile (aws configure), or run with a role"
_RENEW: Final = "log in again (aws sso login), or fetch new keys: the keys of a role expire after some hours"
_BY_HAND: Final = "run the profile's credential_process by hand, where it has one, to see what it says"


class AwsMissingError(Exception):
    """The session cannot be made; the message says what is missing.

    `option` is the setting that is missing or wrong; empty where a package is missing.
    """

    def __init__(self, text: str, option: str = "") -> None:
        super().__init__(text)
        self.option = option


def open_session(surroundings: Surroundings) -> AwsSession:
    """A session of Penstock, as its packages make it.

    Raises:
        AwsMissingError: a package or the region is missing, or a setting is wrong.
    """
    try:
        from penstock.aws import AwsOptionError, AwsOptions, AwsSession
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
    except AwsOptionError as error:
        raise AwsMissingError(str(error), error.option) from error


def _wrong(check: str, option: str, text: str) -> Finding:
    """A setting that no job can start with."""
    return problem(check, text, _CURES.get(option, f"correct the option {option}"))


def check_region(surroundings: Surroundings) -> Iterator[Finding]:
    """From the option, the environment or the profile."""
    try:
        import penstock.aws  # noqa: F401  # is it there?
    except ImportError as error:
        yield skipped("Region", f"penstock.aws cannot be imported: {error}", INSTALL)
        return
    try:
        # Whether the endpoint can be one says its own check.
        session = open_session(replace(surroundings, endpoint_url=None))
    except AwsMissingError as error:
        yield _wrong("Region", error.option, str(error))
        return
    yield ok("Region", session.region)


def check_credentials(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether there are any, from where, and until when. They are never shown."""
    try:
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
    except Exception as error:
        # Botocore has a dozen of its own, and raises whatever an answer of a process or a service leads to.
        yield _no_credentials(error, surroundings)
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


def _no_credentials(error: Exception, surroundings: Surroundings) -> Finding:
    """Why credentials are missing, as penstock.aws reports it: botocore's text may come from a credential process."""
    text = f"not available: {type(error).__name__}"
    with suppress(Exception):
        # Without that package, or where its error is as unforeseen as botocore's, the type is all that may be shown.
        from penstock.aws import AwsError, AwsOptions, AwsSession

        try:
            # Any region: whether there is one says another check.
            AwsSession(AwsOptions(region="us-east-1", profile=surroundings.profile)).frozen_credentials()
        except AwsError as same:
            text = str(same)
            option = getattr(same, "option", None)
            if option in _CURES:
                return _wrong("Credentials", option, text)
    return problem("Credentials", text, f"{_LOGIN}; or {_RENEW}; or {_BY_HAND}")


def check_endpoint(surroundings: Surroundings) -> Iterator[Finding]:
    """Whether Kinesis answers, and whether this machine's clock is the service's."""
    try:
        session = open_session(surroundings)
    except AwsMissingError as error:
        if error.option == "endpointUrl":
            yield _wrong("Endpoint", error.option, str(error))
        else:
            yield skipped("Endpoint", f"it is not known: {error}")
        return
    from penstock.aws import AwsOptionError

    try:
        url, proxy = session.endpoint_url(), session.proxy()
    except AwsOptionError as error:
        yield _wrong("Endpoint", error.option, str(error))
        return
    if proxy is not None:
        text = f"{url} is behind the proxy {proxy.authority}: the calls for --stream show whether it answers"
        yield skipped("Endpoint", text)
        return
    parts = urlsplit(url)
    host = parts.hostname or ""
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
    except AwsOptionError as error:
        yield _wrong("Endpoint", error.option, str(error))
        return
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        # UnicodeError is Python's for a host that cannot be one.
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
    if isinstance(error, socket.gaierror | UnicodeError):
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
    cure = "synchronize the clock by NTP: timedatectl set-ntp true; in a container or virtual machine, on its host"
    if abs(skew) >= SKEW_PROBLEM_SECONDS:
        return problem("Clock", f"{text}: signatures are refused", cure)
    return warning("Clock", f"{text}: lags and start positions are off by that", cure)
