"""gRPC channels and servers: TLS, mTLS, bearer token, health, reflection, drain, trace context."""

from penstock.rpc._channel import DEFAULT_MAX_MESSAGE_BYTES, open_aio_channel, open_channel
from penstock.rpc._run import run_service
from penstock.rpc._security import ClientSecurity, ServerSecurity, is_loopback
from penstock.rpc._server import GrpcServer, Register, ServerSettings
from penstock.rpc._status import StatusTable, abort_with, status_of, typed_error
from penstock.rpc.errors import PenstockRpcError, RpcOptionError, ServerStartError

__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "ClientSecurity",
    "GrpcServer",
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
