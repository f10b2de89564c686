"""Unix sockets of servers: for clients of the same machine, who are spared a third of what gRPC takes over TCP."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from penstock.rpc.errors import RpcOptionError, ServerStartError

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

MAX_SOCKET_PATH_BYTES = 100
"""Of a socket's path: Linux takes 107 of them, macOS 103."""
_PATIENCE_SECONDS = 1.0


def check_socket_path(path: Path) -> None:
    """Refuse a path that no socket can have.

    Raises:
        RpcOptionError: it is too long, or not absolute.
    """
    if not path.is_absolute():
        raise RpcOptionError("socket_path", f"{path} is not absolute: clients run in other folders")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise RpcOptionError("socket_path", f"{path} is longer than {MAX_SOCKET_PATH_BYTES} bytes, a socket's most")


def is_answered(path: Path) -> bool:
    """Whether a process listens on the Unix socket, and this user may call it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PATIENCE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


def listen_on_socket(server: grpc.aio.Server, path: Path, credentials: grpc.ServerCredentials | None) -> None:
    """Let a server that has not started listen on a Unix socket, which goes when it ends.

    What a killed server left there is replaced; a server that lives is left alone.

    Raises:
        ServerStartError: the path cannot be listened on.
    """
    endpoint = f"unix:{path}"
    if is_answered(path):
        raise ServerStartError(endpoint, "another server listens there: choose another path")
    # Of the whole process: a file that another thread makes now is this user's alone, too. A mode that is set after the
    # socket is there would let others in before.
    before = os.umask(0o177)
    try:
        if credentials is None:
            server.add_insecure_port(endpoint)
        else:
            server.add_secure_port(endpoint, credentials)
    except (RuntimeError, OSError) as error:
        reason = "its folder must exist, and nothing but an old socket lie there: choose another path"
        raise ServerStartError(endpoint, reason) from error
    finally:
        os.umask(before)
