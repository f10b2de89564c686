"""gRPC channels and servers: TLS, mTLS, bearer token, health, reflection, drain, trace context."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.rpc._attempts import Attempts
    from penstock.rpc._channel import DEFAULT_MAX_MESSAGE_BYTES, open_aio_channel, open_channel
    from penstock.rpc._client_settings import ClientSettings
    from penstock.rpc._failures import explain_failure, failed_call
    from penstock.rpc._files import stamp_of
    from penstock.rpc._loop_thread import LoopThread
    from penstock.rpc._run import run_service, set_up_logging
    from penstock.rpc._security import ClientSecurity, ServerSecurity, is_loopback
    from penstock.rpc._server import GrpcServer, Register, ServerSettings
    from penstock.rpc._sockets import MAX_SOCKET_PATH_BYTES, is_answered
    from penstock.rpc._status import StatusTable, abort_with, status_of, typed_error
    from penstock.rpc._token_check import token_check
    from penstock.rpc.errors import (
        LoopThreadClosedError,
        LoopThreadForkedError,
        PenstockRpcError,
        RpcOptionError,
        ServerStartError,
    )

__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "MAX_SOCKET_PATH_BYTES",
    "Attempts",
    "ClientSecurity",
    "ClientSettings",
    "GrpcServer",
    "LoopThread",
    "LoopThreadClosedError",
    "LoopThreadForkedError",
    "PenstockRpcError",
    "Register",
    "RpcOptionError",
    "ServerSecurity",
    "ServerSettings",
    "ServerStartError",
    "StatusTable",
    "abort_with",
    "explain_failure",
    "failed_call",
    "is_answered",
    "is_loopback",
    "open_aio_channel",
    "open_channel",
    "run_service",
    "set_up_logging",
    "stamp_of",
    "status_of",
    "token_check",
    "typed_error",
]

_MODULES = {
    "_attempts": ("Attempts",),
    "_channel": ("DEFAULT_MAX_MESSAGE_BYTES", "open_aio_channel", "open_channel"),
    "_client_settings": ("ClientSettings",),
    "_failures": ("explain_failure", "failed_call"),
    "_files": ("stamp_of",),
    "_loop_thread": ("LoopThread",),
    "_run": ("run_service", "set_up_logging"),
    "_security": ("ClientSecurity", "ServerSecurity", "is_loopback"),
    "_server": ("GrpcServer", "Register", "ServerSettings"),
    "_sockets": ("MAX_SOCKET_PATH_BYTES", "is_answered"),
    "_status": ("StatusTable", "abort_with", "status_of", "typed_error"),
    "_token_check": ("token_check",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On first use: Spark imports this package in processes that need little of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
