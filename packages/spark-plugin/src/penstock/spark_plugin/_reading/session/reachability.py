"""Whether a task's machine can reach the reader, found out before it is asked for records."""

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from penstock.efo_consumer import ReaderUnavailableError
from penstock.rpc import is_answered
from penstock.spark_plugin.errors import SparkPluginError

CONNECT_SECONDS = 5.0
"""Longer than any network in one piece needs; gRPC would try for twenty."""
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")

_reached: dict[tuple[int, str], None] = {}
_lock = threading.Lock()
_MOST_KNOWN = 64


def near_endpoints(sockets: Mapping[str, Path]) -> dict[str, str]:
    """The endpoints of readers whose Unix socket this machine and user have, by address: gRPC takes a third less there.

    Args:
        sockets: of readers on any machine, by address.
    """
    found = {}
    for address, path in sockets.items():
        local = f"unix:{path}"
        if _is_known(local) or is_answered(path):
            _remember(local)
            found[address] = local
    return found


def check_reachable(address: str, *, timeout_seconds: float = CONNECT_SECONDS) -> None:
    """Connect to `host:port` once in this process, and leave.

    gRPC reports a failed connection late, and not always with the reason.

    Raises:
        SparkPluginError: no connection within the time.
    """
    if _is_known(address):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_seconds).close()
    except OSError as error:
        reason = f"no answer within {timeout_seconds:g} s" if isinstance(error, TimeoutError) else str(error)
        raise _unreachable(address, reason, _OPEN_PORT) from error
    _remember(address)


def _is_known(address: str) -> bool:
    with _lock:
        return (os.getpid(), address) in _reached


def _remember(address: str) -> None:
    with _lock:
        while len(_reached) >= _MOST_KNOWN:
            # Workers outlive queries, each of which has an address of its own.
            del _reached[next(iter(_reached))]
        _reached[os.getpid(), address] = None


def forget(address: str) -> None:
    """Connect again before the next task: the reader went away."""
    with _lock:
        _reached.pop((os.getpid(), address), None)


def unreachable(error: ReaderUnavailableError, address: str, *, is_service: bool = False) -> Exception:
    """The error of a reader that went away, with what can be done; a refusal (a wrong token) is left as it is."""
    if error.reason.startswith(_REFUSED):
        return error
    forget(address)
    cure = _OPEN_PORT
    if is_service:
        cure = (
            "It is a shard-reader service (option 'readerEndpoint'): start it again, and let executors reach that port"
        )
    elif error.reason.startswith("DEADLINE_EXCEEDED"):
        cure = (
            "It is in the process python_streaming_source_runner on the driver's machine, which stands still: let it "
            "continue, or end it and start the query again"
        )
    return _unreachable(address, error.reason, cure)


_OPEN_PORT = (
    "It listens on the driver: open that port between executors and driver ('readerPort' fixes it), set 'readerHost' "
    "to an address of the driver that executors can reach, or let 'readerEndpoint' name shard-reader services"
)


def _unreachable(address: str, reason: str, cure: str) -> SparkPluginError:
    executor = socket.gethostname()
    return SparkPluginError.of("READER_UNREACHABLE", executor=executor, address=address, reason=reason, cure=cure)
