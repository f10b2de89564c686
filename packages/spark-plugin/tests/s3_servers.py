"""An S3 for tests, over a real socket: moto's, and a wire to it that can be cut."""

import http.client
import logging
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

KEYS = {"awsAccessKeyId": "test", "awsSecretAccessKey": "test", "region": "us-east-1"}


@contextmanager
def running_s3() -> Iterator[str]:
    """moto's server, at first without a bucket; its endpoint."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        endpoint_url = "http://{}:{}".format(*server.get_host_and_port())
        # All servers of a process have the same buckets: earlier tests may have left some.
        urllib.request.urlopen(urllib.request.Request(f"{endpoint_url}/moto-api/reset", method="POST")).close()
        yield endpoint_url
    finally:
        server.stop()


def s3_client(endpoint_url: str) -> Any:
    """A plain client."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def options(endpoint_url: str, **more: str) -> dict[str, str]:
    """Options of a store there."""
    return {**KEYS, "endpointUrl": endpoint_url, **more}


@dataclass
class Wire:
    """What happens to the next requests that pass."""

    url: str = ""
    lose_answers: int = 0
    """Of as many writes the answer is lost, after they were carried out."""
    refuse: int = 0
    """As many requests are answered with 503 SlowDown, and not carried out."""
    down: bool = False
    """All are."""
    passed: list[tuple[str, str]] = field(default_factory=list)
    """Methods and paths."""


@contextmanager
def running_wire(endpoint_url: str) -> Iterator[Wire]:
    """Lay a wire to a server: an HTTP server on a port of the loopback interface that passes everything on."""
    wire = Wire()
    target = urlsplit(endpoint_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if wire.down or wire.refuse > 0:
                wire.refuse -= 1
                self._answer(
                    503, [], b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
                )
                return
            connection = http.client.HTTPConnection(target.hostname or "", target.port or 80)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            wire.passed.append((self.command, self.path))
            if self.command == "PUT" and wire.lose_answers > 0:
                wire.lose_answers -= 1
                self.close_connection = True
                self.connection.close()
                return
            length = dict(answer.getheaders()).get("content-length", "") if self.command == "HEAD" else str(len(data))
            self._answer(answer.status, answer.getheaders(), data, length=length)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, length: str | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)) if length is None else length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    wire.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield wire
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
