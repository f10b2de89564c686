"""The settings of both ends' TLS and tokens, and certificates that are read again when their files have changed."""

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import grpc

from penstock.rpc._flags import check_no_user, host_of, is_loopback
from penstock.rpc._security.files import FileChanges, Stamp, read_file, stamp_of
from penstock.rpc._security.principals import PrincipalsFile
from penstock.rpc._security.token_file import TokenFile, check_length
from penstock.rpc.errors import RpcOptionError

_log = logging.getLogger("penstock.rpc")


def check_pair_of_files(certificate: Path, key: Path) -> None:
    """Raises: RpcOptionError: they cannot be read, or are not a certificate and its key."""
    read_file(certificate, "certificate_file")
    read_file(key, "private_key_file")
    try:
        # gRPC takes anything and fails without a word when it listens or connects.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_passphrase)
    except (OSError, ValueError) as error:
        reason = f"{certificate} and {key} are not a certificate and its key in PEM"
        raise RpcOptionError("certificate_file", f"{reason}: {getattr(error, 'reason', None) or error}") from error


def _no_passphrase() -> str:
    # Without this, OpenSSL asks whoever sits at the terminal, and waits.
    raise ValueError("the key has a passphrase, and gRPC takes none: write it without one")


def check_authority(file: Path, option: str) -> None:
    """Raises: RpcOptionError: it cannot be read, or holds no certificate."""
    read_file(file, option)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (OSError, ValueError) as error:
        raise RpcOptionError(option, f"{file} holds no certificate in PEM") from error


class ServerCertificates:
    """What a server shows and demands in the next handshake.

    New files are taken over when they fit together: while only the certificate or only the key is new, or a file is
    half written, handshakes use the old files. Connections that are open keep what they began with.
    """

    def __init__(self, certificate: Path, key: Path, client_authority: Path | None) -> None:
        self._files = (certificate, key, client_authority)
        self._lock = threading.Lock()
        self._changes = FileChanges(partial(stamp_of, self._files), "the certificates stay as they were")

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for `add_secure_port`.

        Raises:
            RpcOptionError: a file cannot be read, or does not hold what it should.
        """
        # The published stubs know no fetcher that says "as before".
        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._fetch)
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), fetch, require_client_authentication=self._files[2] is not None
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate_file, key_file, authority_file = self._files
        check_pair_of_files(certificate_file, key_file)
        if authority_file is not None:
            check_authority(authority_file, "client_ca_file")
        certificate = read_file(certificate_file, "certificate_file") or b""
        key = read_file(key_file, "private_key_file") or b""
        authority = read_file(authority_file, "client_ca_file")
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        # Called by gRPC's threads before each handshake. None: as before, which is better than no certificate.
        with self._lock:
            configuration = self._changes.take_over(self._configuration)
        if configuration is not None:
            _log.info("took over the changed certificates of %s", self._files[0])
        return configuration


def _check_pair(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        missing = "private_key_file" if key is None else "certificate_file"
        raise RpcOptionError(missing, "a certificate and its private key are given together")


def _check_token(token: str | None, token_file: Path | None) -> None:
    if token is not None and token_file is not None:
        raise RpcOptionError("token_file", "is given together with a token: give one of them")
    if token is not None:
        check_length(token, "token")


@dataclass(frozen=True, kw_only=True)
class ClientSecurity:
    """How a client proves itself and checks the server. By default plain text without a token.

    Files are read when a channel is opened, and again when they have changed: channels need not be opened again.
    """

    ca_file: Path | None = None
    """PEM of the authority that signed the server's certificate. Turns TLS on. Default: gRPC's authorities."""
    ca_certificates: bytes | None = None
    """PEM of that authority itself, for processes on machines that have no such file. Turns TLS on."""
    server_name: str | None = None
    """Name in the server's certificate. Default: the host that is called, which not every certificate can name."""
    certificate_file: Path | None = None
    """PEM of the client's own certificate, for mutual TLS. Turns TLS on."""
    private_key_file: Path | None = None
    """PEM of the key of that certificate."""
    token: str | None = field(default=None, repr=False)
    """Bearer token, sent as `authorization` metadata with each call; at least 32 characters."""
    token_file: Path | None = None
    """File of bearer tokens, one per line, of which the first that has not expired is sent."""
    tls: bool = False
    """Use TLS even when no file is given."""
    allow_plain_text_token: bool = False
    """Send the token without TLS to another machine: for tokens as short-lived as a query."""

    def __post_init__(self) -> None:
        _check_pair(self.certificate_file, self.private_key_file)
        _check_token(self.token, self.token_file)
        if self.ca_file is not None and self.ca_certificates is not None:
            raise RpcOptionError("ca_file", "is given together with ca_certificates: give one of them")

    @property
    def uses_tls(self) -> bool:
        """Whether the channel is encrypted."""
        own = (self.ca_file, self.ca_certificates, self.certificate_file)
        return self.tls or any(one is not None for one in own)

    def check_endpoint(self, endpoint: str) -> None:
        """Refuse to show the token to the network.

        Raises:
            RpcOptionError: a token, no TLS, and an endpoint on another machine; or an endpoint that holds a password.
        """
        check_no_user(endpoint)
        has_token = self.token is not None or self.token_file is not None
        exposed = has_token and not self.uses_tls and not self.allow_plain_text_token
        if exposed and not is_loopback(host_of(endpoint)):
            raise RpcOptionError("token", f"would cross the network to {endpoint} in plain text: turn TLS on")

    def check_files(self) -> None:
        """Read all files once, to say early what is wrong.

        Raises:
            RpcOptionError: one cannot be read, or does not hold what it should.
        """
        self.token_source()
        if self.ca_file is not None:
            check_authority(self.ca_file, "ca_file")
        if self.certificate_file is not None and self.private_key_file is not None:
            check_pair_of_files(self.certificate_file, self.private_key_file)

    def token_source(self) -> Callable[[], str] | None:
        """Gives the token to send with a call; None without one.

        Raises:
            RpcOptionError: the file cannot be read, or holds no token, or one that is too short.
        """
        if self.token_file is not None:
            return TokenFile(self.token_file).current
        token = self.token
        return None if token is None else lambda: token

    def may_be_renewed(self, error: grpc.RpcError) -> bool:
        """Whether another call can succeed: the token was refused, and its file may have been replaced meanwhile."""
        code = getattr(error, "code", lambda: None)()
        return self.token_file is not None and code is grpc.StatusCode.UNAUTHENTICATED

    def stamp(self) -> Stamp:
        """What differs when one of the files of TLS has changed."""
        return stamp_of([self.ca_file, self.certificate_file, self.private_key_file])

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials made of the files, read now: a channel opened later sees rotated files."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca_certificates or read_file(self.ca_file, "ca_file"),
            private_key=read_file(self.private_key_file, "private_key_file"),
            certificate_chain=read_file(self.certificate_file, "certificate_file"),
        )


@dataclass(frozen=True, kw_only=True)
class ServerSecurity:
    """What a server demands. By default nothing: it listens on loopback only.

    Changed files are read again: files of TLS at the next connection, files of tokens at the next call.
    """

    certificate_file: Path | None = None
    """PEM of the server's certificate. Turns TLS on."""
    private_key_file: Path | None = None
    """PEM of the key of that certificate."""
    client_ca_file: Path | None = None
    """PEM of the authority that signs clients' certificates. Turns mutual TLS on."""
    token: str | None = field(default=None, repr=False)
    """Bearer token that every call must carry, of at least 32 characters; health checks need none."""
    token_file: Path | None = None
    """File of bearer tokens, one per line, each with an end if it is to have one; those not expired are taken."""
    principals: Path | None = None
    """TOML file of who may do what, in place of tokens that may do all; read again when it has changed."""
    limited_token: str | None = field(default=None, repr=False)
    """Second bearer token beside `token`, good for the methods of `limited_to` alone."""
    limited_to: frozenset[str] = frozenset()
    """Full paths of those methods, such as `/penstock.proto.shard_reader.v1.ShardReaderService/ListSessions`."""
    allow_plain_text: bool = False
    """Listen without TLS where other machines reach it: only where something else encrypts, such as a service mesh."""
    allow_unauthenticated: bool = False
    """Let everybody call who reaches it, with neither a token nor a client's certificate."""

    def __post_init__(self) -> None:
        _check_pair(self.certificate_file, self.private_key_file)
        _check_token(self.token, self.token_file)
        if self.client_ca_file is not None and self.certificate_file is None:
            raise RpcOptionError("client_ca_file", "mutual TLS needs certificate_file and private_key_file too")
        if self.limited_token is not None:
            if self.token is None:
                raise RpcOptionError("limited_token", "goes with a token that is good for all: give that, too")
            check_length(self.limited_token, "limited_token")
        if self.principals is not None and (self.token is not None or self.token_file is not None):
            cure = 'give one of them; a principal with services = ["*"] and admin = true may do what a token may'
            raise RpcOptionError("principals", f"is given together with a token: {cure}")

    @property
    def wants_token(self) -> bool:
        """Whether calls must carry a token, or come from a principal, who may have a certificate instead."""
        return self.token is not None or self.token_file is not None or self.principals is not None

    def check_host(self, host: str) -> None:
        """Refuse to listen where other machines reach it, unless calls are encrypted and callers prove themselves.

        Raises:
            RpcOptionError: one of both is missing, and nothing says that it may be.
        """
        if is_loopback(host):
            return
        if not self.wants_token and self.client_ca_file is None and not self.allow_unauthenticated:
            cure = "set a token (token_file), principals, or the authority of clients' certificates (client_ca_file)"
            other = "allow_unauthenticated lets everybody in"
            raise RpcOptionError(
                "host", f"{host} is reachable from other machines, and anybody may call: {cure}; {other}"
            )
        if self.certificate_file is None and not self.allow_plain_text:
            cure = "set certificate_file and private_key_file; allow_plain_text goes without, where a proxy encrypts"
            raise RpcOptionError("host", f"{host} is reachable from other machines, in plain text: {cure}")

    def check_files(self) -> None:
        """Read all files once, to say early what is wrong.

        Raises:
            RpcOptionError: one cannot be read, or does not hold what it should.
        """
        if self.token_file is not None:
            TokenFile(self.token_file)
        if self.principals is not None:
            by_certificate = PrincipalsFile(self.principals).takes_certificates()
            if by_certificate and self.client_ca_file is None:
                reason = "a principal has a certificate: set client_ca_file, the authority that signs clients' ones"
                raise RpcOptionError("principals", reason)
        self.server_credentials()

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Credentials that follow the files; None for plain text.

        Raises:
            RpcOptionError: a file cannot be read, or holds no certificate or not its key.
        """
        if self.certificate_file is None or self.private_key_file is None:
            return None
        return ServerCertificates(self.certificate_file, self.private_key_file, self.client_ca_file).credentials()
