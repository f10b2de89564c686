"""Rights of callers: a TOML file of principals, and the decisions that follow from it.

```toml
[[principal]]
name = "orders"
token_sha256 = "…"                     # of its token: printf %s "$TOKEN" | sha256sum
services = ["shard-reader"]
streams = ["orders-*"]
```

What is not listed is not allowed. `docs/pages/operations/who-may-do-what.md` says what each list means.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import time
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics

from penstock.rpc._security.files import RereadFile
from penstock.rpc._security.token_file import MIN_TOKEN_CHARACTERS
from penstock.rpc.errors import RpcOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

RESOURCES: Final = ("streams", "consumers", "destinations", "jobs", "stores")
"""Kinds of what methods act on."""
_GLOBS: Final = ("services", "methods", *RESOURCES)
_PROOFS: Final = ("token_sha256", "certificate")
_AT_ONCE: Final = "calls_at_once"
_KEYS: Final = ("name", *_PROOFS, "expires", *_GLOBS, "admin", _AT_ONCE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVED: Final = ("nobody", "anybody", "token", "certificate")
"""Names by which the audit log calls callers that are no principals."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_HEADER: Final = re.compile(r"\s*\[\[\s*principal\s*\]\]\s*(#.*)?")
_ASSIGNED: Final = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")
_OPTION: Final = "principals"
_ERRORS = metrics.get_meter("penstock.rpc").create_counter(
    "principalsFileErrors", unit="{error}", description="Changed files of principals that could not be read"
)


@dataclass(frozen=True, kw_only=True)
class Principal:
    """A caller and its rights. Globs work as in a shell, and match whole names."""

    name: str
    """For logs, errors and the audit log. Also part of what its leases and sessions are kept under."""
    token_sha256: frozenset[str] = field(default=frozenset(), repr=False)
    """SHA-256, in hexadecimal, of the tokens of which it sends one. None: it sends no token."""
    certificate: frozenset[str] = frozenset()
    """Alternative names (DNS, URI, address) of which the client's certificate has one. Empty: none is needed.

    With tokens and certificates both are needed.
    """
    expires: datetime | None = None
    """When it may do nothing any more."""
    services: tuple[str, ...] = ()
    """Globs of services that it may call."""
    methods: tuple[str, ...] = ("*",)
    """Globs of their methods. Default: all that need no admin."""
    streams: tuple[str, ...] = ()
    """Globs of names of streams."""
    consumers: tuple[str, ...] = ()
    """Globs of names of stream consumers."""
    destinations: tuple[str, ...] = ()
    """Globs of what a gateway writes to: `kinesis:orders`, `dynamodb:table`, `sqs:https://…/queue`."""
    jobs: tuple[str, ...] = ()
    """Globs of job ids, also of reading sessions. One also matches what follows in the id after a `/` or `@`."""
    stores: tuple[str, ...] = ()
    """Globs of places of stage results."""
    admin: bool = False
    """Whether it may act on what other principals hold, and call methods that do so."""
    calls_at_once: int | None = None
    """Calls that it may have open, streams and others together. None: as many as the service says."""
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Where the file has each setting, and, by an empty name, the principal."""
    is_everybody: bool = False
    """Whether there are no principals: whoever gets in may do all, and owns nothing apart."""

    def may_call(self, service: str, method: str, *, needs_admin: bool = False) -> str | None:
        """Why the method is refused; None if it is not."""
        if self.is_everybody:
            return None
        for kind, value in (("services", service), ("methods", method)):
            if not _matches(value, getattr(self, kind)):
                return f"{self._may_not(f'call {service}/{method}')}: {self._cure(kind, value)}"
        return self.may_administer(f"call {service}/{method}") if needs_admin else None

    def may_administer(self, what: str) -> str | None:
        """Why something that needs admin is refused; None if it is not."""
        if self.is_everybody or self.admin:
            return None
        line = self._line("admin")
        where = f"in line {line}" if "admin" in self.lines else f"below line {line}"
        return f"{self._may_not(what)}: write admin = true {where} of the file of principals"

    def may_use(self, kind: str, value: str) -> str | None:
        """Why a resource is refused; None if it is not. The value `*` means all resources of the kind."""
        if self.is_everybody:
            return None
        globs: tuple[str, ...] = getattr(self, kind)
        values = _job_names(value) if kind == "jobs" else (value,)
        if any(_matches(one, globs) for one in values):
            return None
        noun = kind.removesuffix("s")
        what = f"use all {kind} at once, as this call does" if value == "*" else f"use {noun} {value[:200]!r}"
        return f"{self._may_not(what)}: {self._cure(kind, value[:200])}"

    def may_open(self, calls: int, otherwise: int | None = None) -> str | None:
        """Why a further call is refused where this many are open; None if it is not.

        Args:
            calls: that are open.
            otherwise: how many may be, where nothing is said of the principal; None: as many as it likes.
        """
        most = otherwise if self.calls_at_once is None else self.calls_at_once
        if most is None or calls < most:
            return None
        own = f"in line {self._line(_AT_ONCE)} of the file of principals"
        where = "of the service" if self.calls_at_once is None else own
        who = "caller" if self.is_everybody else "principal"
        return f"{who} {self.name!r} has {calls} calls open, as many as it may: end one, or raise {_AT_ONCE} {where}"

    def is_valid(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.is_everybody or self.expires is None or now < self.expires

    def _may_not(self, what: str) -> str:
        return f"principal {self.name!r} may not {what}"

    def _line(self, key: str) -> int:
        return self.lines.get(key, self.lines.get("", 0))

    def _cure(self, kind: str, value: str) -> str:
        if kind in self.lines:
            return f"add {value!r} to {kind} in line {self._line(kind)} of the file of principals"
        return f"write {kind} = [{value!r}] below line {self._line(kind)} of the file of principals"


def everybody(name: str) -> Principal:
    """The caller of a server without principals, which may do everything."""
    return Principal(name=name, admin=True, is_everybody=True)


def _matches(value: str, globs: Iterable[str]) -> bool:
    if value == "*":
        return "*" in globs
    return any(fnmatchcase(value, glob) for glob in globs)


def _job_names(value: str) -> list[str]:
    """The id, and its parts before each `/` or `@`: a query's session has its streams behind it, a run its number."""
    return [value, *(value[: found.start()] for found in re.finditer("[/@]", value))]


def parse_principals(content: bytes) -> tuple[Principal, ...]:
    """The principals of a file, in its order.

    Raises:
        RpcOptionError: the file is not TOML, or an entry is not a principal. Names the line; never shows a digest.
    """
    try:
        text = content.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise RpcOptionError(_OPTION, "the file of principals is not text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise RpcOptionError(_OPTION, f"the file of principals is not TOML: {error}") from error
    except RecursionError as error:
        raise RpcOptionError(_OPTION, "the file of principals is nested too deeply") from error
    except ValueError as error:
        # TOML's numbers have no bound, and Python's have one when they are read.
        raise RpcOptionError(_OPTION, "the file of principals has a number with thousands of digits") from error
    tables = document.pop("principal", [])
    if document:
        raise RpcOptionError(_OPTION, f"unknown {next(iter(document))!r}: the file has [[principal]] tables only")
    places = _places(text)
    if not isinstance(tables, list) or len(places) != len(tables):
        raise RpcOptionError(_OPTION, "write each principal below a line [[principal]] of its own")
    principals = tuple(_principal(table, lines) for table, lines in zip(tables, places, strict=True))
    _check_unique(principals)
    return principals


def _places(text: str) -> list[dict[str, int]]:
    places: list[dict[str, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if _HEADER.fullmatch(line):
            places.append({"": number})
        elif places and (found := _ASSIGNED.match(line)):
            places[-1].setdefault(found[1], number)
    return places


def _principal(table: Any, lines: dict[str, int]) -> Principal:
    # Keys are quoted that are flags of a service, too: a reason would name the flag.
    def wrong(key: str, reason: str) -> RpcOptionError:
        return RpcOptionError(_OPTION, f"line {lines.get(key, lines[''])}: {reason}")

    if not isinstance(table, dict):
        raise wrong("", "write a principal's settings below its line [[principal]]")
    for key in table:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            cure = f"did you mean {close[0]!r}?" if close else ", ".join(map(repr, _KEYS))
            raise wrong(key, f"unknown {key[:50]!r}: {cure}")
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong("name", "a principal needs a name: 1 to 64 letters, digits and ._-")
    if name in _RESERVED:
        raise wrong("name", f"{name!r} is how the audit log calls other callers: choose another name")
    given: dict[str, Any] = {"name": name, "lines": lines}
    for key in (*_PROOFS, *_GLOBS):
        if key in table:
            value = [table[key]] if isinstance(table[key], str) else table[key]
            if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
                raise wrong(key, f"{key} must be a list of texts")
            given[key] = frozenset(value) if key in _PROOFS else tuple(value)
    if any(not _DIGEST.fullmatch(one) for one in given.get("token_sha256", ())):
        cure = 'make it by `printf %s "$TOKEN" | sha256sum`'
        raise wrong("token_sha256", f"token_sha256 must be 64 lower-case hexadecimal digits: {cure}")
    if not any(given.get(key) for key in _PROOFS):
        raise wrong("", f"principal {name!r} proves itself by nothing: give token_sha256, certificate, or both")
    if "admin" in table and not isinstance(table["admin"], bool):
        raise wrong("admin", "admin must be true or false")
    given["admin"] = table.get("admin", False)
    if _AT_ONCE in table:
        number = table[_AT_ONCE]
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise wrong(_AT_ONCE, f"{_AT_ONCE!r} must be a whole number, and at least 1")
        given[_AT_ONCE] = number
    expires = table.get("expires")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise wrong("expires", "expires must be a moment with a zone, such as 2027-01-31T00:00:00Z")
    return Principal(expires=expires, **given)


def _check_unique(principals: Sequence[Principal]) -> None:
    names: dict[str, Principal] = {}
    proofs: dict[str, Principal] = {}
    for one in principals:
        other = names.setdefault(one.name, one)
        # By a certificate alone a principal is found only where it sends no token.
        for proof in one.token_sha256 or one.certificate:
            other = proofs.setdefault(proof, one) if other is one else other
        if other is not one:
            same = "name" if other.name == one.name else ("token" if one.token_sha256 else "certificate")
            raise RpcOptionError(
                _OPTION, f"lines {other.lines['']} and {one.lines['']}: two principals have the same {same}"
            )


@dataclass(frozen=True, slots=True)
class _Book:
    by_token: Mapping[str, Principal] = field(default_factory=dict)
    by_certificate: Mapping[str, Principal] = field(default_factory=dict)


_NOBODY: Final = _Book()


class PrincipalsFile:
    """The principals of a file, read again when it has changed. Safe to use from several threads.

    Args:
        path: the file.
        clock: seconds that only grow, for how long a file cannot be read.

    Raises:
        RpcOptionError: at first, it cannot be read, is malformed, or holds no principal.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = RereadFile(path, _OPTION, _book, _NOBODY, noun="principal", errors=_ERRORS, clock=clock)
        if self._file.value() == _NOBODY:
            raise RpcOptionError(_OPTION, f"{path} holds no principal: write one below a line [[principal]]")

    def takes_certificates(self) -> bool:
        """Whether a principal proves itself by its certificate, alone or with a token."""
        book = self._file.value()
        return bool(book.by_certificate) or any(one.certificate for one in book.by_token.values())

    def knows(self, token: str) -> str | None:
        """Why a token is refused, whatever the certificate; None if it may be one's."""
        book = self._file.value()
        if not token and book.by_certificate:
            return None
        found = self._of(token) if token else None
        if found is None:
            return "the bearer token is missing or wrong"
        if len(token) < MIN_TOKEN_CHARACTERS:
            # The file has its digest alone: only now it is seen.
            return f"the bearer token has fewer than {MIN_TOKEN_CHARACTERS} characters: give {found.name!r} another one"
        return None if found.is_valid(datetime.now(UTC)) else "the bearer token has expired"

    def find(self, token: str, names: Iterable[str]) -> Principal | str:
        """The caller with a token and a certificate of these alternative names; or why it is refused."""
        names = set(names)
        if token and (refusal := self.knows(token)) is not None:
            return refusal
        if token:
            found = self._of(token)
            if found is not None and found.certificate and not found.certificate & names:
                return f"principal {found.name!r} needs its certificate too"
            return found or "the bearer token is missing or wrong"
        book = self._file.value().by_certificate
        found = next((book[name] for name in sorted(names) if name in book), None)
        if found is None:
            return "the bearer token is missing, and no principal has the client's certificate"
        return found if found.is_valid(datetime.now(UTC)) else f"principal {found.name!r} has expired"

    def by_token(self, token: str) -> Principal | None:
        """The principal of a token, before the certificate is checked; None if the token is unknown or has expired."""
        return self._of(token) if token and self.knows(token) is None else None

    def _of(self, token: str) -> Principal | None:
        # By digest: the duration of a look-up reveals nothing about a token.
        return self._file.value().by_token.get(token_digest(token))


def token_digest(token: str) -> str:
    """What a file of principals has of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _book(content: bytes) -> _Book:
    by_token: dict[str, Principal] = {}
    by_certificate: dict[str, Principal] = {}
    for one in parse_principals(content):
        if one.token_sha256:
            by_token.update(dict.fromkeys(one.token_sha256, one))
        else:
            by_certificate.update(dict.fromkeys(one.certificate, one))
    return _Book(by_token, by_certificate)
