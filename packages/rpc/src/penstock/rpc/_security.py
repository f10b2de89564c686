"""What protects a channel and a server: TLS, mutual TLS and a bearer token."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from penstock.rpc.errors import RpcOptionError


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine can be behind the host name or address."""
    name = host.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(endpoint: str) -> str:
    """The host of `host:port`, `[v6]:port`; a Unix socket counts as localhost."""
    if endpoint.startswith("unix:"):
        return "localhost"
    return endpoint.rpartition(":")[0] or endpoint


def _read(path: Path | None, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RpcOptionError(option, f"cannot read {path}: {error.strerror}") from error


def _check_pair(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        missing = "private_key_file" if key is None else "certificate_file"
        raise RpcOptionError(missing, "a certificate and its private key are given together")


@dataclass(frozen=True, kw_only=True)
class ClientSecurity:
    """How a client proves itself and checks the server. By default plain text without a token."""

    ca_file: Path | None = None
    """PEM of the authority that signed the server's certificate. Turns TLS on. Default: those of gRPC."""
    certificate_file: Path | None = None
    """PEM of the client's own certificate, for mutual TLS. Turns TLS on."""
    private_key_file: Path | None = None
    """PEM of the key of that certificate."""
    token: str | None = field(default=None, repr=False)
    """Bearer token, sent as `authorization` metadata with each call."""
    tls: bool = False
    """Use TLS even when no file is given."""
    allow_plain_text_token: bool = False
    """Send the token without TLS to another machine: for tokens as short-lived as a query."""

    def __post_init__(self) -> None:
        _check_pair(self.certificate_file, self.private_key_file)

    @property
    def uses_tls(self) -> bool:
        """Whether the channel is encrypted."""
        return self.tls or self.ca_file is not None or self.certificate_file is not None

    def check_endpoint(self, endpoint: str) -> None:
        """Refuse to show the token to the network.

        Raises:
            RpcOptionError: a token, no TLS, and an endpoint on another machine.
        """
        exposed = self.token is not None and not self.uses_tls and not self.allow_plain_text_token
        if exposed and not is_loopback(host_of(endpoint)):
            raise RpcOptionError("token", f"would cross the network to {endpoint} in plain text: turn TLS on")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials made of the files, read now: a channel opened later sees rotated files."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca_file, "ca_file"),
            private_key=_read(self.private_key_file, "private_key_file"),
            certificate_chain=_read(self.certificate_file, "certificate_file"),
        )


@dataclass(frozen=True, kw_only=True)
class ServerSecurity:
    """What a server demands. By default nothing: it listens on loopback only, unless told otherwise."""

    certificate_file: Path | None = None
    """PEM of the server's certificate. Turns TLS on."""
    private_key_file: Path | None = None
    """PEM of the key of that certificate."""
    client_ca_file: Path | None = None
    """PEM of the authority that signs clients' certificates. Turns mutual TLS on."""
    token: str | None = field(default=None, repr=False)
    """Bearer token that every call must carry; health checks need none."""

    def __post_init__(self) -> None:
        _check_pair(self.certificate_file, self.private_key_file)
        if self.client_ca_file is not None and self.certificate_file is None:
            raise RpcOptionError("client_ca_file", "mutual TLS needs certificate_file and private_key_file too")
        if self.token is not None and not self.token:
            raise RpcOptionError("token", "is empty; leave it out to ask for none")

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Credentials made of the files; None for plain text.

        Raises:
            RpcOptionError: a file cannot be read, or holds no certificate or not its key.
        """
        certificate = _read(self.certificate_file, "certificate_file")
        key = _read(self.private_key_file, "private_key_file")
        if certificate is None or key is None:
            return None
        assert self.certificate_file is not None  # it was read
        try:
            # gRPC takes anything and fails without a word when it listens.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate_file, self.private_key_file)
        except ssl.SSLError as error:
            reason = f"{self.certificate_file} and {self.private_key_file} are no certificate and its key in PEM"
            raise RpcOptionError("certificate_file", f"{reason}: {error.reason or error}") from error
        authority = _read(self.client_ca_file, "client_ca_file")
        return grpc.ssl_server_credentials(
            [(key, certificate)],
            root_certificates=authority,
            require_client_auth=authority is not None,
        )
