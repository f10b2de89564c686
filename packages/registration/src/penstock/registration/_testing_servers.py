"""Servers for tests, over real sockets: a DynamoDB, and a wire to Kinesis that can be cut."""

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

from penstock.aws import AwsClient, AwsSession
from penstock.aws.testing import emulator_options


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
            """A caller that is gone, as some tests want it, is not an error."""

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


class DynamoDbClients:
    """A session for a DynamoDB of tests, with dummy keys."""

    def __init__(self, endpoint_url: str) -> None:
        self._endpoint_url = endpoint_url
        self._session = AwsSession(emulator_options(endpoint_url))

    def aio_client(self, service_name: str) -> AwsClient:
        """A client of it, whatever the service."""
        return self._session.aio_client(service_name, endpoint_url=self._endpoint_url)


@contextmanager
def running_dynamodb() -> Iterator[str]:
    """Run moto's DynamoDB on a port of the loopback interface, on threads of its own. Gives its endpoint.

    Needs the extra `testing`. Each request is carried out in one piece, as DynamoDB does it for one item: moto by
    itself lets another request in between condition and write.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        # Without it a client's next request on a connection waits for a delayed acknowledgement.
        wbufsize = -1
        protocol_version = "HTTP/1.1"

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """A line per request is too much."""

    one_at_a_time = threading.Lock()
    moto: Any = DomainDispatcherApplication(create_backend_app)

    def serve(environment: Any, start_response: Any) -> Any:
        with one_at_a_time:
            return list(moto(environment, start_response))

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="dynamodb", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
