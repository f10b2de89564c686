"""Typed errors over gRPC: one table per service maps them to status codes, and this maps them back."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

import grpc

TYPE_KEY = "penstock-error"
FIELDS_KEY = "penstock-error-fields"

_log = logging.getLogger("penstock.rpc")
StatusTable = Mapping[type[BaseException], grpc.StatusCode]


@runtime_checkable
class InternalError(Protocol):
    """An error that says what only its service's operator may know, such as a path."""

    def for_clients(self) -> Exception:
        """The same error, in words for clients."""
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


def status_of(error: BaseException, table: StatusTable) -> grpc.StatusCode | None:
    """The code of the nearest class of the error that the table names; None when it names none."""
    for kind in type(error).__mro__:
        if kind in table:
            return table[kind]
    return None


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: Exception, table: StatusTable) -> NoReturn:
    """End the call with the error's status; its class name and fields travel in the trailing metadata.

    An `InternalError` is logged, and told in its words for clients.

    Raises:
        Exception: the error itself, when the table does not name it: a bug, which gRPC reports as UNKNOWN.
    """
    code = status_of(error, table)
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


def typed_error(error: grpc.RpcError, types: Iterable[type[Exception]]) -> Exception | None:
    """The error that the servicer raised, made again from its fields; None when it is none of `types`.

    The classes take their fields as keyword arguments and keep them under the same names.
    """
    metadata = getattr(error, "trailing_metadata", lambda: None)() or ()
    trailer = dict(metadata)
    name, fields = trailer.get(TYPE_KEY), trailer.get(FIELDS_KEY)
    for kind in types:
        if kind.__name__ == name and isinstance(fields, str):
            try:
                told = json.loads(fields)
                known = inspect.signature(kind).parameters
                # A newer service may tell more than this release knows.
                return kind(**{field: told[field] for field in told if field in known})
            except (TypeError, ValueError):
                return None
    return None
