"""Logins: sessions by cookie, and tokens of forms."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import Final

SESSION_SECONDS: Final = 12 * 3_600.0
_MOST_SESSIONS = 1_000


class Sessions:
    """Sessions of browsers. They end with the process: its secret is nowhere else.

    Args:
        secret: of the tokens of forms; random unless given.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)
        # By digest: what is in memory opens nothing.
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def begin(self, now: float, token: str = "") -> str:
        """A new session's id, for the cookie. The oldest session ends when there are too many.

        Args:
            now: monotonic seconds.
            token: what it was begun with.
        """
        session_id = secrets.token_urlsafe(32)
        self._known[_digest(session_id)] = (now + SESSION_SECONDS, token)
        while len(self._known) > _MOST_SESSIONS:
            self._known.popitem(last=False)
        return session_id

    def token(self, session_id: str, now: float) -> str | None:
        """What the session was begun with; None when it was not begun here, or has ended."""
        until, token = self._known.get(_digest(session_id), (0.0, ""))
        return token if until > now else None

    def end(self, session_id: str) -> None:
        """End a session. One that is gone is not an error."""
        self._known.pop(_digest(session_id), None)

    def form_token(self, session_id: str) -> str:
        """What forms of the session carry (CSRF)."""
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session_id: str, sent: str) -> bool:
        """Whether a form of this session was sent."""
        return hmac.compare_digest(self.form_token(session_id).encode(), sent.encode())


def session_words(session_id: str) -> str:
    """Names a session in logs without being of use to anybody."""
    return f"session {_digest(session_id)[:8]}"


def _digest(session_id: str) -> str:
    # A cookie may be any bytes.
    return hashlib.sha256(session_id.encode(errors="surrogateescape")).hexdigest()
