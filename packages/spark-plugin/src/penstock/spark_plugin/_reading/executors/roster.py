"""The readers that run: each keeps a connection to the driver while it serves, and ends when the connection ends.

A line of JSON each way, and then silence: a reader that is killed is missed at once, as its system closes the
connection, and one whose machine is gone within half a minute. Only readers with the session's token are accepted.
"""

import asyncio
import hmac
import json
import logging
import socket
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.rpc import LoopThread, ServerStartError
from penstock.spark_plugin._reading.executors.fleet_file import ExecutorReader
from penstock.spark_plugin.errors import ExecutorReadersError, MissingLibraryError

SERVER_NAME = "penstock-readers"
"""In the certificate: the addresses of executors are not known when it is made."""
_SKEW = timedelta(days=1)
_LIFE = timedelta(days=3650)
"""Its key lives no longer than the session does."""


@dataclass(frozen=True, slots=True)
class SessionCertificate:
    """A certificate that signs itself, and its key, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_certificate(now: datetime | None = None) -> SessionCertificate:
    """Make a new certificate.

    Raises:
        MissingLibraryError: what makes certificates is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingLibraryError.of_extra(
            "encryption", "start_readers beyond loopback (encrypt=False goes without)", "cryptography"
        ) from error
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, SERVER_NAME)])
    usage = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"),
            *("encipher_only", "decipher_only"),
        ),
        False,
    )
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return SessionCertificate(
        made.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


_log = logging.getLogger(__name__)
_HELLO_SECONDS = 10.0
_LINE_BYTES = 64 * 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
"""A machine that is gone says nothing: it is asked after 10 s, and missed 15 s later."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a reader needs to know: goes to executors as a broadcast variable. Holds secrets, which its repr hides."""

    host: str
    """Host of the driver, where the roster is."""
    port: int
    token: str = field(repr=False)
    """Token of the roster and of the readers."""
    options: dict[str, str] = field(repr=False)
    """Options of the readers: how AWS is reached, and the buffers."""
    loopback: bool
    """Whether readers stay on 127.0.0.1."""
    certificate: SessionCertificate | None
    """Certificate of the roster and of the readers; None for plain text."""


class Roster:
    """The driver's end.

    Args:
        bind_host: address to listen on.
        port: 0 lets the system pick one.
        token: what readers send.
        certificate: of the roster; None for plain text.
        changed: called with the readers that are there, in the order of their numbers, each time that one comes or
            goes; from the roster's thread.
        failed: called with the number of a reader that could not be started, and why; likewise.

    Raises:
        ServerStartError: the address cannot be listened on.
    """

    def __init__(
        self,
        bind_host: str,
        port: int,
        token: str,
        certificate: SessionCertificate | None,
        changed: Callable[[tuple[ExecutorReader, ...]], None],
        failed: Callable[[int, str], None],
    ) -> None:
        self._token = token
        self._changed = changed
        self._failed = failed
        self._there: dict[asyncio.StreamWriter, ExecutorReader] = {}
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = LoopThread("penstock reader roster")
        try:
            self._server = self._thread.call(self._start(bind_host.strip("[]"), port, _server_context(certificate)))
        except OSError as error:
            self._thread.close()
            raise ServerStartError(f"{bind_host}:{port}", str(error)) from error
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Close all connections: the readers end. Can be called again."""
        if not self._thread.is_closed:
            self._thread.call(self._stop())
            self._thread.close()

    async def _start(self, host: str, port: int, context: ssl.SSLContext | None) -> asyncio.Server:
        return await asyncio.start_server(self._serve, host, port, ssl=context, limit=_LINE_BYTES)

    async def _stop(self) -> None:
        self._server.close()
        writers = list(self._open)
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = json.loads(await reader.readline())
                if not hmac.compare_digest(hello.pop("token").encode(), self._token.encode()):
                    _log.warning("refused a reader at %s: wrong token", writer.get_extra_info("peername"))
                    return
            if "failure" in hello:
                self._failed(hello["number"], hello["failure"])
                return
            _keep_alive(writer.get_extra_info("socket"))
            self._there[writer] = ExecutorReader(**hello)
            writer.write(b"{}\n")
            self._tell()
            await reader.read(1)  # nothing ever comes: this ends with the connection
        except (OSError, TimeoutError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.debug("a connection to the roster ended: %r", error)
        finally:
            self._open.discard(writer)
            if self._there.pop(writer, None) is not None:
                self._tell()
            writer.close()

    def _tell(self) -> None:
        self._changed(tuple(sorted(self._there.values(), key=lambda one: (one.number, one.address))))


def _server_context(certificate: SessionCertificate | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Python's ssl takes a chain from files alone.
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        context.load_cert_chain(*write_certificate(certificate, Path(folder)))
    return context


def write_certificate(certificate: SessionCertificate, folder: Path) -> tuple[Path, Path]:
    """Write the certificate and its key into a folder that is this user's alone; give their paths."""
    files = folder / "certificate.pem", folder / "key.pem"
    for file, content in zip(files, (certificate.certificate, certificate.key), strict=True):
        file.touch(0o600)
        file.write_bytes(content)
    return files


def join_roster(invitation: Invitation, reader: ExecutorReader) -> socket.socket:
    """Put a reader on the roster, for as long as the socket that is given stays open.

    Raises:
        ExecutorReadersError: the driver refuses it.
        OSError: the driver cannot be reached.
    """
    connection = _connect(invitation)
    try:
        answer = _say(connection, invitation, asdict(reader))
        if not answer:
            raise ExecutorReadersError(f"the driver at {invitation.host}:{invitation.port} refused this reader")
        connection.settimeout(None)
        return connection
    except BaseException:
        connection.close()
        raise


def report_failure(invitation: Invitation, number: int, failure: str) -> None:
    """Let the driver know why a reader could not be started, if it can be reached."""
    with suppress(OSError), _connect(invitation) as connection:
        _say(connection, invitation, {"number": number, "failure": failure})


def own_address(invitation: Invitation) -> str:
    """The address of this machine from which the driver is reached.

    Raises:
        OSError: it cannot be reached.
    """
    with socket.create_connection((invitation.host.strip("[]"), invitation.port), _HELLO_SECONDS) as probe:
        return str(probe.getsockname()[0])


def _connect(invitation: Invitation) -> socket.socket:
    connection = socket.create_connection((invitation.host.strip("[]"), invitation.port), _HELLO_SECONDS)
    try:
        _keep_alive(connection)
        if invitation.certificate is None:
            return connection
        context = ssl.create_default_context(cadata=invitation.certificate.certificate.decode())
        return context.wrap_socket(connection, server_hostname=SERVER_NAME)
    except BaseException:
        connection.close()
        raise


def _say(connection: socket.socket, invitation: Invitation, what: dict[str, Any]) -> bytes:
    connection.sendall(json.dumps({"token": invitation.token, **what}).encode() + b"\n")
    return connection.recv(16)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
