"""Errors to gRPC status codes and back."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, Protocol, runtime_checkable

import grpc

from penstock.rpc._client.settings import ClientSettings
from penstock.rpc.errors import CodedError

TYPE_KEY = "penstock-error"
FIELDS_KEY = "penstock-error-fields"

_log = logging.getLogger("penstock.rpc")
_undoing: Final[set[asyncio.Future[object]]] = set()
# Of classes, and of codes, which count more.
StatusTable = Mapping[type[BaseException] | str, grpc.StatusCode]


@runtime_checkable
class InternalError(Protocol):
    """An error that says what only its service's operator may know, such as a path."""

    def for_clients(self) -> Exception:
        """The same error, with a text for clients."""
        ...


def _fields(error: BaseException) -> str | None:
    try:
        # Notes, which Python keeps beside the fields, are none.
        return json.dumps(
            {name: value for name, value in vars(error).items() if name != "__notes__"}, ensure_ascii=True
        )
    except TypeError:
        # A field that is not plain data stays at home; the message still crosses.
        return None


def _status_of(error: BaseException, table: StatusTable) -> grpc.StatusCode | None:
    """The status of the error's code, or of the nearest class that the table names; None when it names none."""
    code = getattr(error, "code", None)
    if isinstance(code, str) and code in table:
        return table[code]
    for kind in type(error).__mro__:
        if kind in table:
            return table[kind]
    return None


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any], table: StatusTable) -> AsyncIterator[None]:
    """What a servicer does in this block ends its call by `abort_with` where it raises an error of the table."""
    try:
        yield
    except Exception as error:
        if _status_of(error, table) is None:
            raise
        await abort_with(context, error, table)


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: Exception, table: StatusTable) -> NoReturn:
    """End the call with the error's status; its class name and fields travel in the trailing metadata.

    An `InternalError` is logged, and sent in its words for clients.

    Raises:
        Exception: the error itself, when the table does not name it: a bug, which gRPC reports as UNKNOWN.
    """
    code = _status_of(error, table)
    if code is None:
        raise error
    if isinstance(error, InternalError):
        _log.error("%s", error)
        error = error.for_clients()
    trailer = [(TYPE_KEY, type(error).__name__)]
    fields = _fields(error)
    if fields is not None:
        trailer.append((FIELDS_KEY, fields))
    await context.abort(code, str(error), tuple(trailer))
    raise AssertionError("abort raises")


def when_refused(context: grpc.aio.ServicerContext[Any, Any], undo: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Undo what a call was granted, if the call ends because its caller lost its rights before the answer was sent."""

    def ended(_: Any) -> None:
        if context.code() in _REFUSED or context.code() in [one.value[0] for one in _REFUSED]:
            task = asyncio.ensure_future(undo())
            _undoing.add(task)
            task.add_done_callback(_undoing.discard)

    context.add_done_callback(ended)  # type: ignore[arg-type]  # the stubs name the argument


def typed_error(error: grpc.RpcError, types: Iterable[type[Exception]]) -> Exception | None:
    """The error that the servicer raised, made again from its fields; None when `types` does not have its class.

    The classes take their fields as keyword arguments and keep them under the same names.
    """
    metadata = getattr(error, "trailing_metadata", lambda: None)() or ()
    trailer = dict(metadata)
    name, fields = trailer.get(TYPE_KEY), trailer.get(FIELDS_KEY)
    for kind in types:
        if kind.__name__ == name and isinstance(fields, str):
            try:
                values = json.loads(fields)
                # Other classes may have a field of that name, such as the code that AWS gave.
                if issubclass(kind, CodedError) and "code" in values and values["code"] in kind.codes:
                    return kind.of(values["code"], **values["facts"])
                known = inspect.signature(kind).parameters
                # A newer service may send fields that this release does not know.
                return kind(**{field: values[field] for field in values if field in known})
            except (LookupError, TypeError, ValueError):
                return None
    return None


_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_AWAY: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def failed_call(error: BaseException | None) -> grpc.RpcError | None:
    """The failed call among the causes of an error."""
    while error is not None:
        if isinstance(error, grpc.RpcError):
            return error
        error = error.__cause__
    return None


def explain_failure(
    error: grpc.RpcError, settings: ClientSettings, *, prefix: str, command: str, endpoint_flag: str = "--endpoint"
) -> tuple[str, bool] | None:
    """What keeps a call from a service, with the cure, and whether the service cannot be talked to at all.

    None where the service itself has answered: its words say what is wrong.

    Args:
        error: a call that failed.
        settings: how it was made.
        prefix: of the variables of the environment, such as `PENSTOCK_REGISTRY`.
        command: that serves the service, such as `penstock registry serve`.
        endpoint_flag: the flag of the service's address, as `ClientSettings.add_arguments` has it.
    """
    if TYPE_KEY in dict(getattr(error, "trailing_metadata", lambda: None)() or ()):
        return None
    code = getattr(error, "code", lambda: None)()
    details = str(getattr(error, "details", lambda: None)() or "")
    endpoint, security = settings.endpoint, settings.security
    if code in _REFUSED:
        has = security.token is not None or security.token_file is not None
        cure = f"give the service's by --token-file or {prefix}_TOKEN"
        return f"{endpoint} refuses the caller: the token is {'wrong or expired' if has else 'missing'}: {cure}", False
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"{endpoint} is another service than {command} starts: correct the port", True
    if code not in _AWAY:
        return None
    for phrases, text in _meanings(prefix, command, endpoint_flag, uses_tls=security.uses_tls):
        if any(phrase in details for phrase in phrases):
            return f"{endpoint}: {text}", True
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or "timed out" in details.lower():
        return f"{endpoint}: no answer in time: check the address, firewalls and the service's log", True
    return None


def _meanings(prefix: str, command: str, endpoint_flag: str, *, uses_tls: bool) -> list[tuple[tuple[str, ...], str]]:
    """Words of gRPC's details, and what they mean; the first that are found count."""
    meanings = [
        (
            ("WRONG_VERSION_NUMBER",),
            f"it does not speak TLS: leave --tls and --ca-file out (and unset {prefix}_TLS and {prefix}_CA_FILE), or "
            "start the service with a certificate",
        ),
        (
            ("not in peer certificate", "Hostname Verification", "HOSTNAME_MISMATCH"),
            "its certificate is of another name: use a name that is in it",
        ),
        (
            ("CERTIFICATE_VERIFY_FAILED",),
            f"its certificate is not trusted: give the PEM of the authority that signed it by --ca-file or "
            f"{prefix}_CA_FILE",
        ),
        (
            ("http1.x", "Failed parsing HTTP/2", "Expected SETTINGS"),
            "something else listens there, such as a web server: correct the port",
        ),
        (
            ("Connection refused", "No such file or directory"),
            f"no server listens there: start it (`{command}`), or correct {endpoint_flag} ({prefix}_ENDPOINT)",
        ),
        (("lookup failed", "errors resolving"), "no such host: correct the name, or check DNS"),
        (("unreachable", "No route to host"), "it cannot be reached: check the address, routes and firewalls"),
    ]
    if uses_tls:
        closed = "it ends the connection after the handshake: if it wants mutual TLS, give --certificate-file and "
        closed += "--private-key-file of an authority that it takes"
    else:
        closed = f"it ends the connection: if it speaks TLS, give --ca-file ({prefix}_CA_FILE) or --tls "
        closed += f"({prefix}_TLS=true); else look into its log"
    return [*meanings, (("Socket closed", "reset", "Broken pipe", "CERTIFICATE_REQUIRED", "alert"), closed)]
