"""gRPC channels and servers: TLS, mTLS, bearer token, health, reflection, drain, trace context."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.rpc._channel import DEFAULT_MAX_MESSAGE_BYTES, open_aio_channel, open_channel
    from penstock.rpc._loop_thread import LoopThread
    from penstock.rpc._run import run_service
    from penstock.rpc._security import ClientSecurity, ServerSecurity, is_loopback
    from penstock.rpc._server import GrpcServer, Register, ServerSettings
    from penstock.rpc._status import StatusTable, abort_with, status_of, typed_error
    from penstock.rpc.errors import (
        LoopThreadClosedError,
        LoopThreadForkedError,
        PenstockRpcError,
        RpcOptionError,
        ServerStartError,
    )

__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "ClientSecurity",
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
    "is_loopback",
    "open_aio_channel",
    "open_channel",
    "run_service",
    "status_of",
    "typed_error",
]

_MODULES = {
    "_channel": ("DEFAULT_MAX_MESSAGE_BYTES", "open_aio_channel", "open_channel"),
    "_loop_thread": ("LoopThread",),
    "_run": ("run_service",),
    "_security": ("ClientSecurity", "ServerSecurity", "is_loopback"),
    "_server": ("GrpcServer", "Register", "ServerSettings"),
    "_status": ("StatusTable", "abort_with", "status_of", "typed_error"),
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
