"""A server's certificate, key and clients' authority, read again when the files have changed."""

import logging
import ssl
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import grpc

from penstock.rpc._security.files import FileChanges, read_file, stamp_of
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
    half written, handshakes go on with what was. Connections that are open keep what they began with.
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
