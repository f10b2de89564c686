"""Access to the console, headers that restrict browsers, and TLS."""

from __future__ import annotations

import binascii
import ipaddress
import logging
import ssl
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from penstock.rpc import Callers, FileChanges, ServerSecurity, stamp_of
from penstock.services.console._views.view import Templates

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    # aiohttp would name its version and Python's.
    "Server": "penstock-console",
}
_TITLES: Final = {
    401: "A token is needed",
    404: "Not found",
    405: "This method is not allowed",
    421: "Unknown host name",
}
_log = logging.getLogger(__name__)


class Access:
    """Middlewares, the outermost first: `headers`, `host`, `token`.

    Args:
        security: the tokens that open the console. Certificates are checked in the handshake.
        hosts: names by which browsers may call the console.
        templates: renders refusals.

    Raises:
        RpcOptionError: the file of tokens cannot be read, or is empty.
    """

    def __init__(self, security: ServerSecurity, hosts: frozenset[str], templates: Templates) -> None:
        self._callers = Callers(security) if security.wants_token else None
        self._hosts = hosts
        self._templates = templates

    @web.middleware
    async def headers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every answer has the headers; refusals and failures are pages, too."""
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            response = self._refusal(refusal.status, refusal.text or refusal.reason)
            response.headers.update(
                (name, refusal.headers[name]) for name in ("Allow", "WWW-Authenticate") if name in refusal.headers
            )
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            response = self._refusal(500, "The console failed. Its log says why.")
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @web.middleware
    async def host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse host names that are not the console's."""
        if not is_known_host(request.headers.get("Host", ""), self._hosts):
            raise web.HTTPMisdirectedRequest(text="The console does not have this name: add it to --allowed-hosts.")
        return await handler(request)

    @web.middleware
    async def token(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests without a valid token, except for health checks."""
        if self._callers is not None and request.path != "/healthz":
            refusal = self._callers.refusal(token_of(request.headers.get("Authorization", "")))
            if refusal is not None:
                # Browsers ask for a password and send it from then on. Programs may send a bearer token.
                asked = {"WWW-Authenticate": 'Basic realm="penstock-console", charset="UTF-8"'}
                words = f"{refusal.capitalize()}. In a browser it is the password, with any user name."
                raise web.HTTPUnauthorized(headers=asked, text=words)
        return await handler(request)

    def _refusal(self, status: int, words: str) -> web.Response:
        title = _TITLES.get(status, "This did not work")
        text = self._templates.render("refusal.html", status=status, title=title, words=words)
        return web.Response(status=status, text=text, content_type="text/html")


def token_of(header: str) -> str:
    """The token in an `Authorization` header: after `Bearer`, or the password of `Basic`. Empty without one."""
    scheme, _, sent = header.partition(" ")
    if scheme.lower() == "bearer":
        return sent.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(sent.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def is_known_host(header: str, names: Collection[str]) -> bool:
    """Whether the Host header is an address, localhost or one of the names.

    A foreign page whose own name leads to this machine (DNS rebinding) calls by that name. A page cannot make an
    address lead elsewhere.
    """
    try:
        parts = urlsplit(f"//{header}")
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if parts.path or parts.query or parts.fragment or "@" in header:
        return False
    if host == "localhost" or host in {name.lower() for name in names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def tls_context(security: ServerSecurity) -> ssl.SSLContext | None:
    """The context of a server that follows its files; None without TLS.

    Each handshake uses the files as they are then. Files that do not fit together are left out until they do.

    Raises:
        RpcOptionError: a file cannot be read, or does not hold what it should.
    """
    listening = current = _read_context(security)
    if listening is None:
        return None
    files = (security.certificate_file, security.private_key_file, security.client_ca_file)
    changes = FileChanges(partial(stamp_of, files), "the certificates stay as they were")

    def follow(handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal current
        # A new context: an authority that was taken out of the file must not count any more.
        made = changes.take_over(partial(_read_context, security))
        if made is not None:
            current = made
            _log.info("took over the changed certificates of %s", files[0])
        assert current is not None  # there is TLS
        handshake.context = current

    # It is called for clients that send no name, too.
    listening.sni_callback = follow
    return listening


def _read_context(security: ServerSecurity) -> ssl.SSLContext | None:
    # Reports wrong files in the same words as the other services.
    if security.server_credentials() is None:
        return None
    assert security.certificate_file is not None  # there are credentials
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would skip the check by an authority that has changed.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.load_cert_chain(security.certificate_file, security.private_key_file)
    if security.client_ca_file is not None:
        context.load_verify_locations(security.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
