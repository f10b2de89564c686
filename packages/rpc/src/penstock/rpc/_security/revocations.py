"""Certificates that their authority has taken back: lists (CRL) that are read again when they have changed.

gRPC's Python servers take none for the handshake, so callers are looked at behind it, before anything is read of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry import metrics

from penstock.rpc._security.files import RereadFile, read_file
from penstock.rpc.errors import RpcOptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTION: Final = "client_crl_file"
_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_ERRORS = metrics.get_meter("penstock.rpc").create_counter(
    "revocationsFileErrors", unit="{error}", description="Changed files of revoked certificates that could not be read"
)


@dataclass(frozen=True)
class RevocationList:
    """What an authority has taken back."""

    serial_numbers: frozenset[int]
    issued: datetime
    """In UTC, as is `ends`."""
    ends: datetime | None
    """From when on the authority no longer stands by it; None if it does not say."""


Revocations: TypeAlias = Mapping[Any, RevocationList]
"""By the name of the authority, as cryptography has it."""


def parse_revocations(content: bytes, authorities: bytes) -> Revocations:
    """The newest list of each authority in a file; signatures are verified.

    Args:
        content: lists in PEM.
        authorities: certificates in PEM, of whoever may sign them.

    Raises:
        RpcOptionError: the file holds no list, or one that is malformed, partial or not signed by an authority.
    """
    x509 = _x509()
    texts = _LIST.findall(content)
    if not texts:
        cure = "write it in PEM (openssl crl -inform DER -in FILE -out FILE.pem)"
        raise RpcOptionError(OPTION, f"the file holds no list of revoked certificates: {cure}")
    try:
        signers = x509.load_pem_x509_certificates(authorities)
    except Exception as error:
        raise RpcOptionError("client_ca_file", "the file holds no certificate in PEM") from error
    found: dict[Any, RevocationList] = {}
    for number, text in enumerate(texts, 1):
        where = f"list {number} of the file"
        try:
            one = x509.load_pem_x509_crl(text)
            issuer, critical = one.issuer, [extension.oid for extension in one.extensions if extension.critical]
            keys = [signer.public_key() for signer in signers if signer.subject == issuer]
            signed = any(one.is_signature_valid(key) for key in keys)
            listed = RevocationList(
                frozenset(entry.serial_number for entry in one), one.last_update_utc, one.next_update_utc
            )
        except Exception as error:
            # cryptography has an error of its own for each of the ways in which it may be malformed.
            raise RpcOptionError(OPTION, f"{where} is not a list of revoked certificates") from error
        if not signed:
            cure = "put the certificate of who signed it into client_ca_file"
            name = issuer.rfc4514_string()[:200]
            raise RpcOptionError(OPTION, f"{where}, of {name!r}, is not signed by an authority of clients: {cure}")
        if critical:
            raise RpcOptionError(OPTION, f"{where} is partial, or of several authorities: give a whole one of each")
        known = found.get(issuer)
        if known is None or listed.issued > known.issued:
            found[issuer] = listed
    return found


class RevocationsFile:
    """Lists of revoked certificates, read again when they or the authorities have changed. Safe in several threads.

    Args:
        path: file of the lists.
        authorities: file of the authorities' certificates.
        clock: seconds that only grow, for how long a file cannot be read.

    Raises:
        RpcOptionError: at first, a file cannot be read or is malformed, or a list is of no authority.
    """

    def __init__(self, path: Path, authorities: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        def parse(content: bytes) -> Revocations | None:
            return parse_revocations(content, read_file(authorities, "client_ca_file") or b"")

        self._file = RereadFile[Revocations | None](
            path,
            OPTION,
            parse,
            None,
            noun="revocation list",
            ending="no client's certificate is taken any more",
            errors=_ERRORS,
            clock=clock,
            beside=[authorities],
        )

    def refusal(self, certificates: Sequence[bytes]) -> str | None:
        """Why a client is refused; None if none of its certificates is revoked, as far as its authority says.

        Args:
            certificates: the client's own one, in PEM or DER, and what it has sent of the authorities above it.
        """
        lists = self._file.value()
        if lists is None:
            return "cannot check which certificates are revoked: the service's log says why"
        for number, certificate in enumerate(certificates):
            facts = _facts(certificate)
            if facts is None:
                return "the client's certificate cannot be read"
            issuer, serial_number, is_root = facts
            if is_root and number:
                continue
            listed = lists.get(issuer)
            if listed is None and number == 0:
                return "cannot check whether the client's certificate is revoked: its authority has no list"
            if listed is None:
                continue
            if serial_number in listed.serial_numbers:
                return "the client's certificate is revoked" if number == 0 else "the client's authority is revoked"
            if listed.ends is not None and listed.ends <= datetime.now(UTC):
                return "the list of revoked certificates of the client's authority has ended: it needs a new one"
        return None if certificates else "the client has shown no certificate"


@lru_cache(maxsize=256)
def _facts(certificate: bytes) -> tuple[Any, int, bool] | None:
    """Issuer, serial number, and whether it is a root; None if it cannot be read."""
    x509 = _x509()
    try:
        is_text = certificate.startswith(b"-----")
        found = x509.load_pem_x509_certificate(certificate) if is_text else x509.load_der_x509_certificate(certificate)
        return found.issuer, found.serial_number, found.issuer == found.subject
    except Exception:
        # As above.
        return None


def _x509() -> Any:
    """The module, which only services with such lists need."""
    try:
        from cryptography import x509
    except ImportError as error:
        reason = "lists of revoked certificates are read by cryptography: pip install 'penstock-rpc[service]'"
        raise RpcOptionError(OPTION, reason) from error
    return x509
