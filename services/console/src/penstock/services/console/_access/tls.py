"""The console's certificate and the authority of its browsers, read again when the files have changed."""

from __future__ import annotations

import logging
import ssl
from functools import partial

from penstock.rpc import FileChanges, ServerSecurity, stamp_of

_log = logging.getLogger(__name__)


class TlsFiles:
    """What the next handshake shows and demands.

    New files are taken over when they fit together; while one is half written, or lacks its other half, handshakes go
    on with what was. Connections that are open keep what they began with.

    Args:
        security: names the files.

    Raises:
        RpcOptionError: a file cannot be read, or does not hold what it should.
    """

    def __init__(self, security: ServerSecurity) -> None:
        self._security = security
        self._files = (security.certificate_file, security.private_key_file, security.client_ca_file)
        self._changes = FileChanges(partial(stamp_of, self._files), "the certificates stay as they were")
        self._context = _make(security)

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; None where there is no TLS. The same one as long as the files are the same."""
        if self._context is None:
            return None
        # A new one, not the old one with more in it: an authority that was taken out counts no longer.
        made = self._changes.take_over(partial(_make, self._security))
        if made is not None:
            self._context = made
            _log.info("took over the changed certificates of %s", self._files[0])
        return self._context


def _make(security: ServerSecurity) -> ssl.SSLContext | None:
    # Says what is wrong with the files in the same words as the other services.
    if security.server_credentials() is None:
        return None
    assert security.certificate_file is not None  # there are credentials
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(security.certificate_file, security.private_key_file)
    if security.client_ca_file is not None:
        context.load_verify_locations(security.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
