"""A certificate for one session: whoever has the session's token trusts it, and nobody else knows it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.spark_plugin.errors import ExtraMissingError

SERVER_NAME = "penstock-readers"
"""In the certificate: executors come and go at addresses that nobody knows when it is made."""
_SKEW = timedelta(days=1)
_LIFE = timedelta(days=3650)
"""Its key lives no longer than the session does."""


@dataclass(frozen=True, slots=True)
class SessionCertificate:
    """A certificate that signs itself, and its key, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_certificate(now: datetime | None = None) -> SessionCertificate:
    """Make one anew.

    Raises:
        ExtraMissingError: what makes certificates is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ExtraMissingError(
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
