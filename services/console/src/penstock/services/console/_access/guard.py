"""Who may ask, and what answers forbid a browser to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from aiohttp import web

from penstock.rpc import AuditLog, Callers, OpenCalls, Principal, ServerSecurity
from penstock.services.console._access.hosts import holds_token, is_known_host, is_same_origin
from penstock.services.console._access.logins import Sessions, session_words
from penstock.services.console._views.templates import Templates

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: browsers would then send forms with the origin `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    # Not the versions of what it is made of.
    "Server": "penstock-console",
}
_OPEN = ("/healthz", "/login", "/static/console.css", "/static/console.js", "/static/console.svg")
_TITLES: Final = {
    401: "Who are you?",
    403: "This is not allowed",
    404: "There is no such thing",
    405: "There is no such action",
    408: "This took too long",
    409: "This cannot be done now",
    413: "This is too large",
    421: "Not under this name",
    429: "Wait a moment",
}
_REFUSALS: Final = (401, 403, 421, 429)
"""Statuses that belong into the audit log."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Who:
    """Who asks."""

    words: str
    """For the log; no secret."""
    session_id: str | None = field(default=None, repr=False)
    """Of a browser that has a cookie."""
    is_program: bool = False
    """Whether the token came in a header, which no other page can make a browser send."""
    principal: Principal | None = None
    """Who that is to files of principals; None for nobody yet."""
    address: str = ""
    """Where the request comes from."""


WHO = web.RequestKey("who", Who)


class Guard:
    """Middlewares, the outermost first: `headers`, `host`, `login`.

    Args:
        security: what the server demands.
        sessions: of browsers.
        hosts: names by which it may be called.
        templates: for refusals.
        audit: where refusals are written, if anywhere.
        open_calls: counts the open requests of each principal.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        security: ServerSecurity,
        sessions: Sessions,
        hosts: frozenset[str],
        templates: Templates,
        audit: AuditLog | None = None,
        open_calls: OpenCalls | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._security = security
        self._callers = Callers(security)
        self._audit = audit
        self._sessions = sessions
        self._hosts = hosts
        self._templates = templates
        self._open_calls = open_calls or OpenCalls()
        self._clock = clock

    @property
    def cookie(self) -> str:
        """Name of the cookie; with TLS one that no other host may set."""
        return "__Host-penstock-console" if self._uses_tls else "penstock-console"

    @property
    def wants_token(self) -> bool:
        """Whether browsers have to log in."""
        return self._security.wants_token

    def address(self, request: web.Request) -> str:
        """Where a request comes from."""
        return request.remote or ""

    def takes(self, request: web.Request, token: str) -> bool:
        """Whether a token that was sent is valid."""
        return token != "" and isinstance(self._callers.find(token, _names(request)), Principal)

    def who(self, request: web.Request, token: str) -> Who:
        """Who sends a token that is valid."""
        found = self._callers.find(token, _names(request))
        principal = found if isinstance(found, Principal) else None
        words = "somebody" if principal is None else self._words(principal, "a bearer of the token")
        address = self.address(request)
        return Who(f"{words} at {address}", principal=principal, address=address)

    def demand(self, request: web.Request, method: str, *, admin: bool = False, **resources: str) -> None:
        """Refuse who may not do something, by the file of principals.

        Args:
            request: who asks.
            method: `View`, or an action.
            admin: whether it acts on what principals hold.
            resources: name by kind, such as `streams`.

        Raises:
            HTTPForbidden: the caller may not do it; the answer says what would allow it.
        """
        principal = request[WHO].principal
        if principal is None:
            return
        reason = principal.may_call("console", method, needs_admin=admin)
        for kind, name in resources.items():
            reason = reason or principal.may_use(kind, name)
        if reason is not None:
            raise web.HTTPForbidden(text=reason)

    def refuse(self, request: web.Request, status: int, reason: str) -> None:
        """Write a refusal into the audit log."""
        if self._audit is not None:
            principal = request[WHO].principal if WHO in request else None
            who = "nobody" if principal is None else principal.name
            method, address = f"{request.method} {request.path}", self.address(request)
            self._audit.refused(who=who, address=address, method=method, reason=reason, code=str(status))

    def set_cookie(self, response: web.StreamResponse, session_id: str) -> None:
        """Let the browser send the session's id, to nobody else and out of no other page."""
        response.set_cookie(self.cookie, session_id, path="/", httponly=True, samesite="Strict", secure=self._uses_tls)

    def forget_cookie(self, response: web.StreamResponse) -> None:
        """Let the browser forget it."""
        response.del_cookie(self.cookie, path="/", httponly=True, samesite="Strict", secure=self._uses_tls)

    @web.middleware
    async def headers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whatever is answered, refusals and failures too, has the headers and is a page."""
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            if refusal.status < 400:
                refusal.headers.update(HEADERS)
                raise
            if refusal.status in _REFUSALS:
                self.refuse(request, refusal.status, refusal.text or refusal.reason)
            response = self._refusal(refusal.status, refusal.text or refusal.reason)
            response.headers.update(
                (name, refusal.headers[name]) for name in ("Allow", "WWW-Authenticate") if name in refusal.headers
            )
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            response = self._refusal(500, "Something went wrong in the console itself; its log says what.")
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @web.middleware
    async def host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse names that are not the console's, and addresses that hold a token."""
        if not is_known_host(request.headers.get("Host", ""), self._hosts):
            words = "The console does not go by this name. Start it with --allowed-hosts to let it."
            raise web.HTTPMisdirectedRequest(text=words)
        if holds_token(request.query_string):
            words = "A token has no place in an address: browsers and proxies write it down. Replace that token."
            raise web.HTTPBadRequest(text=words)
        return await handler(request)

    @web.middleware
    async def login(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse who does not show the token, or send a browser to where it can."""
        who = self._who(request)
        if who is None and request.path not in _OPEN:
            if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
                raise web.HTTPSeeOther("/login?" + urlencode({"next": request.path_qs}))
            asked = {"WWW-Authenticate": 'Bearer realm="penstock-console"'}
            raise web.HTTPUnauthorized(headers=asked, text="Log in, or send the token as a bearer token.")
        request[WHO] = who or Who(f"nobody at {self.address(request)}", address=self.address(request))
        if request.method not in ("GET", "HEAD"):
            by_program = who is not None and who.is_program
            if not by_program and not is_same_origin(request.headers):
                raise web.HTTPForbidden(text="The form does not come from a page of this console.")
        if request.path not in _OPEN and request.path != "/logout":
            self.demand(request, "View")
        caller = request[WHO].principal
        if caller is None or request.path in _OPEN:
            return await handler(request)
        return await self._within(caller, request, handler)

    async def _within(self, caller: Principal, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer within what a principal may use, as services do."""
        refused = self._open_calls.open(caller)
        if refused is not None:
            raise web.HTTPTooManyRequests(text=refused)
        try:
            return await handler(request)
        finally:
            self._open_calls.close(caller)

    @property
    def _uses_tls(self) -> bool:
        return self._security.certificate_file is not None

    def _who(self, request: web.Request) -> Who | None:
        address, names = self.address(request), _names(request)
        at = f"at {address}"
        scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.wants_token and request.path not in _OPEN:
            token = sent.strip()
            found = self._callers.find(token, names)
            if token and isinstance(found, Principal):
                words = f"{self._words(found, 'a bearer of the token')} {at}"
                return Who(words, is_program=True, principal=found, address=address)
        session_id = request.cookies.get(self.cookie, "")
        begun_with = self._sessions.token(session_id, self._clock()) if session_id else None
        # A token that was taken back, or has expired, ends the sessions that were begun with it.
        found = self._callers.find(begun_with or "", names)
        if not isinstance(found, Principal):
            return None
        if begun_with is not None:
            return Who(f"{self._words(found, session_words(session_id))} {at}", session_id, False, found, address)
        if not self._callers.has_principals:
            subject = "somebody" if self._security.client_ca_file is None else _subject(request)
            return Who(f"{subject} {at}", None, False, found, address)
        return Who(f"{self._words(found, _subject(request))} {at}", None, False, found, address)

    def _words(self, found: Principal, otherwise: str) -> str:
        return f"principal {found.name}, {otherwise}" if self._callers.has_principals else otherwise

    def _refusal(self, status: int, words: str) -> web.Response:
        title = _TITLES.get(status, "This did not work")
        text = self._templates.render("refusal.html", status=status, title=title, words=words)
        return web.Response(status=status, text=text, content_type="text/html")


def _names(request: web.Request) -> list[str]:
    """The alternative names of the certificate that the browser has shown."""
    certificate = request.get_extra_info("peercert") or {}
    return [value for _, value in certificate.get("subjectAltName", ())]


def _subject(request: web.Request) -> str:
    certificate = request.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    return f"the holder of the certificate of {names[0] if names else 'nobody'}"
