"""Credentials of a user's function, and chains of roles."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    AssumeRoleWithWebIdentityCredentialFetcher,
    Credentials,
    DeferredRefreshableCredentials,
)
from botocore.utils import FileWebIdentityTokenLoader

from penstock.aws._options import CREDENTIALS_PROVIDER
from penstock.aws.errors import AwsCredentialsError, AwsError, AwsOptionError

if TYPE_CHECKING:
    from penstock.aws._options import AwsOptions

_WITHOUT_END = timedelta(days=3650)
"""Lifetime of credentials without an end, from a provider whose earlier credentials had one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidedCredentials:
    """What a credentials provider returns."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    """Token of temporary credentials."""
    expires_at: datetime | None = None
    """End, with a time zone. The provider is called again from 15 minutes before; None: only after a refusal."""


class CredentialsProvider(Protocol):
    """A function, or any other callable, that `credentialsProvider` names as `package.module:callable`.

    It is called in each process that signs requests (the driver, and each Python worker of the executors), on any
    thread, and again before its credentials expire or when a service refuses them. It may block. Its errors are raised
    as an `AwsCredentialsError` and retried with back-off, like errors of other sources of credentials.
    """

    def __call__(self) -> ProvidedCredentials:
        """Return credentials that have not expired."""
        ...


def load_provider(name: str) -> CredentialsProvider:
    """The callable that the option names.

    Raises:
        AwsOptionError: it cannot be imported in this process, or cannot be called.
    """
    module, colon, path = name.partition(":")
    if not colon or re.fullmatch(CREDENTIALS_PROVIDER, name) is None:
        raise AwsOptionError("credentialsProvider", f"{name!r} must be package.module:callable")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        reason = f"cannot import {name!r}: {error}. Its module must be installed on the driver and on all executors"
        raise AwsOptionError("credentialsProvider", reason) from error
    if not callable(found):
        raise AwsOptionError("credentialsProvider", f"{name!r} is not callable")
    return found  # type: ignore[no-any-return]  # what it returns is checked


def provided_credentials(name: str) -> Credentials:
    """The credentials of a provider, which is called again before they expire.

    Raises:
        AwsOptionError: the provider is unknown.
        AwsCredentialsError: it gives none.
    """
    provider = load_provider(name)

    def ask() -> ProvidedCredentials:
        try:
            given = provider()
        except AwsError:
            raise
        except Exception as error:
            code = type(error).__name__
            raise AwsCredentialsError(code=code, reason=f"{name} raised: {error}", is_retryable=True) from error
        if not isinstance(given, ProvidedCredentials):
            reason = f"{name} returned {type(given).__name__}, not penstock.aws.ProvidedCredentials"
            raise AwsCredentialsError(code="TypeError", reason=reason, is_retryable=False)
        wrong = _wrong_with(given)
        if wrong is not None:
            raise AwsCredentialsError(code="ValueError", reason=f"{name} returned {wrong}", is_retryable=False)
        if given.expires_at is not None and given.expires_at <= datetime.now(UTC):
            reason = f"{name} returned credentials that expired at {given.expires_at.isoformat()}"
            raise AwsCredentialsError(code="ExpiredCredentials", reason=reason, is_retryable=True)
        return given

    first = ask()
    if first.expires_at is None:
        return Credentials(first.access_key_id, first.secret_access_key, first.session_token, "penstock-provider")
    unused = [first]

    def fetch() -> dict[str, Any]:
        given = unused.pop() if unused else ask()
        return {
            "access_key": given.access_key_id,
            "secret_key": given.secret_access_key,
            "token": given.session_token,
            "expiry_time": (given.expires_at or datetime.now(UTC) + _WITHOUT_END).isoformat(),
        }

    return DeferredRefreshableCredentials(fetch, "penstock-provider")


def _wrong_with(given: ProvidedCredentials) -> str | None:
    """Why the credentials cannot sign requests, without their values."""
    for name, is_needed in (("access_key_id", True), ("secret_access_key", True), ("session_token", False)):
        text: Any = getattr(given, name)
        if not text and not is_needed:
            continue
        if not isinstance(text, str):
            return f"{name} that is {type(text).__name__}, not str"
        if not text or not text.isascii() or not text.isprintable():
            return f"{name} that is empty or has signs that no header can have, such as a line break"
    end: Any = given.expires_at
    if end is not None and not isinstance(end, datetime):
        return f"expires_at that is {type(end).__name__}, not datetime"
    return "expires_at without a time zone" if end is not None and end.tzinfo is None else None


def assume_roles(options: AwsOptions, source: Credentials | None, create_sts_client: Callable[..., Any]) -> Credentials:
    """Credentials of the last role of the options. Each role is assumed with the credentials of the previous role.

    The first is assumed with `source`, or with the web identity. Duration, tags and external id are the last role's.
    """
    roles, held = options.role_arns, source
    for number, role_arn in enumerate(roles):
        arguments: dict[str, Any] = {"RoleSessionName": options.role_session_name or "penstock"}
        if number == len(roles) - 1:
            if options.role_session_seconds is not None:
                arguments["DurationSeconds"] = options.role_session_seconds
            if options.role_session_tags:
                arguments["Tags"] = [{"Key": key, "Value": value} for key, value in options.role_session_tags]
            if options.role_external_id is not None:
                arguments["ExternalId"] = options.role_external_id
        fetcher: Any
        if number == 0 and options.web_identity_token_file is not None:
            token = FileWebIdentityTokenLoader(options.web_identity_token_file)
            fetcher = AssumeRoleWithWebIdentityCredentialFetcher(
                create_sts_client, token, role_arn, extra_args=arguments
            )
        else:
            fetcher = AssumeRoleCredentialFetcher(create_sts_client, held, role_arn, extra_args=arguments)
        held = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    assert held is not None
    return held
