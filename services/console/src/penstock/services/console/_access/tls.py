"""The console's certificate and the authority of its browsers, read again when the files have changed."""

from __future__ import annotations

import logging
import ssl

from penstock.rpc import PenstockRpcError, ServerSecurity, stamp_of

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
        self._stamp = stamp_of(self._files)
        self._context = _make(security)

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; None where there is no TLS. The same one as long as the files are the same."""
        if self._context is None:
            return None
        stamp = stamp_of(self._files)
        if stamp == self._stamp:
            return self._context
        self._stamp = stamp
        try:
            made = _make(self._security)
        except (PenstockRpcError, OSError, ValueError) as error:
            _log.warning("the certificates stay as they were: %s", error)
            return self._context
        if stamp_of(self._files) != stamp:
            # Changed again meanwhile: what was read may not fit together. The next connection looks again.
            self._stamp = ()
            return self._context
        # A new one, not the old one with more in it: an authority that was taken out counts no longer.
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
