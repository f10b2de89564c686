"""A wire to Kinesis that remembers what passed, and that can be cut between a call and its answer."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True)
class WireCall:
    """A call that was answered."""

    operation: str
    """As the API reference names it: `RegisterStreamConsumer`."""
    parameters: dict[str, Any]
    status: int
    answer: dict[str, Any]
    arrived_at: float
    """Monotonic seconds."""


@dataclass
class Wire:
    """What passed, and what is to happen."""

    url: str = ""
    calls: list[WireCall] = field(default_factory=list)
    """In the order of their answers."""
    before_answer: dict[str, Callable[[], None]] = field(default_factory=dict)
    """By operation: called once, after Kinesis carried the next such call out and before the caller hears of it."""

    def count(self, operation: str) -> int:
        """How many calls of the operation were answered."""
        return sum(call.operation == operation for call in list(self.calls))


@contextmanager
def running_wire(endpoint_url: str) -> Iterator[Wire]:
    """Lay a wire to an emulator: an HTTP server on a port of the loopback interface that passes everything on."""
    wire = Wire()
    target = urlsplit(endpoint_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            arrived_at = time.monotonic()
            operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                connection.request("POST", self.path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            finally:
                connection.close()
            wire.calls.append(
                WireCall(
                    operation=operation,
                    parameters=json.loads(body or b"{}"),
                    status=response.status,
                    answer=json.loads(answer or b"{}"),
                    arrived_at=arrived_at,
                )
            )
            hook = wire.before_answer.pop(operation, None)
            if hook is not None:
                hook()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            """A line per request is too much."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """A caller that is gone, as some tests want it, is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    wire.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="wire", daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
