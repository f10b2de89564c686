"""What the tests of the console's security share: a console that runs, requests, and what comes back."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration_tests.security_tools import DEADLINE, TOKEN, Pki, Service, environment_of
from penstock.rpc.testing import service_process

EXPIRED = "a-token-of-last-year-with-32-characters"
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Service]:
    """The console, with settings as variables of its environment; its log is checked at the end."""
    errors = folder / "console.log"
    environment = environment_of("stage-scheduler", folder)
    environment |= {f"PENSTOCK_CONSOLE_{name}": value for name, value in settings.items()}
    with errors.open("wb") as log, service_process("penstock.services.console", ["serve"], environment, log) as process:
        service = Service("console", process, errors)
        yield service
    check_log(service)


def check_log(service: Service) -> None:
    """No token is in it, and nothing that was sent is a failure of the console."""
    log = service.errors.read_text()
    assert TOKEN not in log
    assert EXPIRED not in log
    assert "Traceback" not in log
    assert not re.search(r"^[-0-9:, ]+ERROR ", log, re.MULTILINE)


def context_of(pki: Pki, own: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pki.folder / "ca.pem"))
    if own is not None:
        context.load_cert_chain(pki.folder / f"{own}.pem", pki.folder / f"{own}.key")
    return context


def ask(
    service: Service, path: str, *, method: str = "GET", context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer, on a connection of its own."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=DEADLINE, context=context)
    try:
        connection.request(method, path, headers={"Accept": "text/html", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def answers(service: Service) -> bool:
    return ask(service, "/healthz")[0] == 200 and ask(service, "/", Authorization=f"Bearer {TOKEN}")[0] == 200


def rest_of(connection: socket.socket, seconds: float = DEADLINE) -> bytes | None:
    """What comes until the other side ends the connection; None when it does not."""
    said = b""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            return said
        except TimeoutError:
            return None
        if not part:
            return said
        said += part
    return None
