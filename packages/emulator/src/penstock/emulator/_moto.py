"""Services that moto answers beside Kinesis, on a port of their own."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Any

from penstock.emulator.errors import CompanionError

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_SERVICES = frozenset({"kinesis", "firehose"})
"""What the emulator itself answers."""


class Companions:
    """A server of moto's that has started."""

    def __init__(self, server: Any, services: Sequence[str]) -> None:
        self._server = server
        host, port = server.get_host_and_port()
        self.endpoints = dict.fromkeys(services, f"http://{host}:{port}")
        """The endpoint by service."""

    def stop(self) -> None:
        """End it; takes up to half a second."""
        self._server.stop()


def start_companions(services: Sequence[str]) -> Companions:
    """Start moto's server on a port of the loopback interface; blocks while moto is imported.

    Raises:
        CompanionError: moto is not installed, or does not know a service.
    """
    wanted = tuple(service for service in services if service not in OWN_SERVICES)
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise CompanionError(services=wanted, reason="moto is missing; install penstock-emulator[companions]")
    # Only here: moto is optional, and takes longer to import than everything else to start.
    from moto.backend_index import backend_url_patterns
    from moto.server import ThreadedMotoServer

    known = {service for service, _ in backend_url_patterns}
    unknown = sorted(set(wanted) - known)
    if unknown:
        raise CompanionError(services=wanted, reason=f"moto does not know {', '.join(unknown)}")
    # Otherwise it writes a line to standard error for every request.
    requests = logging.getLogger("werkzeug")
    if requests.level == logging.NOTSET:
        requests.setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return Companions(server, wanted)
