"""Stores by URL, as operators name them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from platformdirs import user_state_path

from penstock.aws import AwsSession
from penstock.registration._lease.record import LeaseStore
from penstock.registration._stores.dynamodb import DynamoDbLeaseStore
from penstock.registration._stores.sqlite import SqliteLeaseStore
from penstock.registration.errors import RegistrationOptionError

_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_FORMS: Final = "sqlite:///PATH or dynamodb://TABLE"


def default_store_path() -> Path:
    """`registry.db` in the user's state directory."""
    return user_state_path("penstock") / "registry.db"


def store_location(url: str) -> Path | str:
    """The file of a `sqlite:` URL, the table of a `dynamodb:` URL.

    Raises:
        RegistrationOptionError: another kind of store, no path, not the name of a table, or more than these.
    """
    parts = urlsplit(url)
    # There may be a password before an @.
    shown = "the URL" if "@" in url else repr(url)
    if parts.query or parts.fragment:
        raise RegistrationOptionError(
            option="store", reason=f"{shown} has a ? or #, which ends a path: write %3F and %23, or leave it out"
        )
    if parts.scheme == "dynamodb":
        if not _TABLE.fullmatch(parts.netloc) or parts.path.strip("/"):
            raise RegistrationOptionError(option="store", reason=f"{shown} names no table: write dynamodb://TABLE")
        return parts.netloc
    if parts.scheme != "sqlite":
        raise RegistrationOptionError(option="store", reason=f"{shown} is not of the form {_FORMS}")
    path = unquote(parts.path)
    if parts.netloc or not path.strip("/"):
        raise RegistrationOptionError(option="store", reason=f"{shown} names no file: write sqlite:///PATH")
    # Four slashes, as some libraries want them for an absolute path, mean the same as three.
    return Path("/" + path.lstrip("/")) if path.startswith("/") else Path(path)


def open_store(url: str, session: AwsSession, *, read_only: bool = False) -> LeaseStore:
    """The store at `sqlite:///absolute/path`, `sqlite:relative/path` or `dynamodb://table`.

    DynamoDB is reached with the session's credentials and region, at `AWS_ENDPOINT_URL_DYNAMODB` if that is set. With
    `read_only` no file or table is made or changed.

    Raises:
        RegistrationOptionError: see `store_location`.
        AwsOptionError: `session` is not an `AwsSession`.
    """
    location = store_location(url)
    namespace = AwsSession.of(session).endpoint_url("kinesis")
    if isinstance(location, Path):
        return SqliteLeaseStore(location, namespace=namespace, read_only=read_only)
    return DynamoDbLeaseStore(session, location, namespace=namespace, read_only=read_only)
