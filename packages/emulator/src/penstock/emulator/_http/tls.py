"""A certificate authority made on the fly."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


def server_context(host: str, ca_file: Path) -> ssl.SSLContext:
    """Make a server certificate for localhost and `host`, and write its authority to `ca_file`.

    HTTP/2 is offered first, as Kinesis does: the client's ALPN decides.
    """
    authority = trustme.CA(organization_name="Penstock emulator")
    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", host))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.cert_pem.write_to_path(str(ca_file))
    return context
