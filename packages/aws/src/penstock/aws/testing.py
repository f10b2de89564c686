"""Test helpers: dummy keys for an emulator, a scripted STS, and an HTTP proxy."""

import base64
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, quote, urlsplit

from penstock.aws._options import AwsOptions

_ROLE_ARN = "arn:aws:iam::123456789012:role/reader"


def emulator_options(endpoint_url: str, ca_bundle: str | None = None) -> AwsOptions:
    """Options with keys that only an emulator accepts."""
    return AwsOptions(
        region="us-east-1",
        endpoint_url=endpoint_url,
        access_key_id="test",
        secret_access_key="test",
        ca_bundle=ca_bundle,
    )


class Sts:
    """An STS that returns the keys `ASIA1`, `ASIA2` and so on, with the lifetime that a test sets."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lifetime = timedelta(hours=1)
        """Lifetime of the credentials that it returns next."""
        self.refusal: tuple[int, str] | None = None
        """HTTP status and code of its answers; None while it works."""
        self.refused_tokens = frozenset[str]()
        """Web identity tokens that have expired."""
        self.asked = 0
        """Requests so far, refused ones too."""
        self.given = 0
        """Credentials so far."""

    def options(self, endpoint_url: str, ca_bundle: str | None = None) -> AwsOptions:
        """Options with a role of this STS."""
        return AwsOptions(
            region="us-east-1",
            endpoint_url=endpoint_url,
            ca_bundle=ca_bundle,
            access_key_id="test",
            secret_access_key="test",
            role_arn=_ROLE_ARN,
            sts_endpoint_url=self.url,
        )

    def answer(self, action: str, token: str) -> tuple[int, str]:
        """Status and body of the next answer."""
        self.asked += 1
        refusal = (400, "ExpiredTokenException") if token in self.refused_tokens else self.refusal
        if refusal is not None:
            status, code = refusal
            return status, f"<ErrorResponse><Error><Code>{code}</Code><Message>away</Message></Error></ErrorResponse>"
        self.given += 1
        end = (datetime.now(UTC) + self.lifetime).isoformat()
        return 200, (
            f"<{action}Response><{action}Result><Credentials>"
            f"<AccessKeyId>ASIA{self.given}</AccessKeyId><SecretAccessKey>hush</SecretAccessKey>"
            f"<SessionToken>token{self.given}</SessionToken><Expiration>{end}</Expiration>"
            f"</Credentials><AssumedRoleUser><Arn>{_ROLE_ARN}</Arn><AssumedRoleId>A:p</AssumedRoleId></AssumedRoleUser>"
            f"</{action}Result></{action}Response>"
        )


@contextmanager
def running_sts() -> Iterator[Sts]:
    """Run one on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, body = sts.answer(request["Action"][0], request.get("WebIdentityToken", [""])[0])
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        sts = Sts(f"http://127.0.0.1:{port}")
        yield sts


class Proxy:
    """An HTTP proxy with tunnels (CONNECT) and forwarding of http requests."""

    hosts: dict[str, tuple[str, int]]
    """Addresses of host names that only the proxy knows."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = (
            f"http://{quote(user)}:{quote(password, safe='')}@{self.address}" if user else f"http://{self.address}"
        )
        self.hosts = {}
        self.seen: list[tuple[str, str]] = []
        """Method and target (host and port, or a URL) of each request that it let pass."""
        self.refused = 0
        """Requests without the right user and password."""


@contextmanager
def running_proxy(user: str = "", password: str = "") -> Iterator[Proxy]:
    """Run one on a port of its own; with a user it wants that, and the password."""
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _may_pass(self) -> bool:
            if self.headers.get("Proxy-Authorization") == wanted:
                proxy.seen.append((self.command, self.path))
                return True
            proxy.refused += 1
            self.close_connection = True
            self.send_response(407)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return False

        def do_CONNECT(self) -> None:
            if self._may_pass():
                target = urlsplit(f"//{self.path}")
                self.send_response(200)
                self.end_headers()
                self._join(target.hostname or "", target.port or 443, b"")

        def do_POST(self) -> None:
            target = urlsplit(self.path)
            assert target.scheme == "http", self.path
            if self._may_pass():
                # One request per connection is enough: what is behind it is passed on as it comes.
                self.headers.replace_header("Host", target.netloc)
                del self.headers["Proxy-Authorization"]
                del self.headers["Connection"]
                self.headers["Connection"] = "close"
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                head = f"POST {target.path or '/'} HTTP/1.1\r\n{self.headers.as_string().strip()}".splitlines()
                self._join(target.hostname or "", target.port or 80, "\r\n".join(head).encode() + b"\r\n\r\n" + body)

        def _join(self, host: str, port: int, first: bytes) -> None:
            self.close_connection = True
            with socket.create_connection(proxy.hosts.get(host, (host, port))) as there:
                there.sendall(first)
                up = Thread(target=_pass_on, args=(self.connection, there), daemon=True)
                up.start()
                _pass_on(there, self.connection)
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                up.join()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    with _serving(Server(("127.0.0.1", 0), Handler)) as port:
        proxy = Proxy(port, user, password)
        yield proxy


@contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[int]:
    """Run a server in a thread; its port."""
    with server:
        thread = Thread(target=server.serve_forever, args=(0.01,), name="test server")
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
