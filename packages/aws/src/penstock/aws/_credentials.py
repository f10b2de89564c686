"""Credentials that are looked up again when a service refuses them before their time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from penstock.aws.errors import AwsError

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials

_log = logging.getLogger(__name__)

RENEWAL_SECONDS = 5.0
"""A thousand callers are refused at the same moment: one of them renews, the others take what it found."""


class RenewableCredentials:
    """What boto3 and signatures take for credentials; what is behind them can be replaced. Safe to share.

    Credentials that know their end are refreshed by botocore before it. This is for what botocore cannot know: a file
    that was rewritten, a session that was revoked, a clock that is wrong.

    Args:
        find: looks for credentials, from the beginning. Called once now.
        is_fixed: looking again would find the same.
        clock: monotonic seconds.
    """

    method = "penstock"

    def __init__(
        self, find: Callable[[], Credentials], *, is_fixed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find
        self._is_fixed = is_fixed
        self._clock = clock
        self._lock = threading.Lock()
        self._renewed_at: float | None = None
        self._found_others = False
        self._given: ReadOnlyCredentials | None = None
        self._source = find()

    @property
    def access_key(self) -> str:
        """See `botocore.credentials.Credentials`."""
        return str(self._source.access_key)

    @property
    def secret_key(self) -> str:
        """See `botocore.credentials.Credentials`."""
        return str(self._source.secret_key)

    @property
    def token(self) -> str | None:
        """See `botocore.credentials.Credentials`."""
        return self._source.token

    @property
    def account_id(self) -> str | None:
        """See `botocore.credentials.Credentials`."""
        account_id: str | None = getattr(self._source, "account_id", None)
        return account_id

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Credentials of this moment. May block on the network when they are about to expire."""
        self._given = frozen = self._source.get_frozen_credentials()
        return frozen

    def get_deferred_property(self, property_name: str) -> Callable[[], Any]:
        """See `botocore.credentials.Credentials`."""
        return lambda: getattr(self, property_name, None)

    @property
    def refresh_is_due(self) -> bool:
        """Whether the next `get_frozen_credentials` may block."""
        needed: Callable[[], bool] | None = getattr(self._source, "refresh_needed", None)
        return self._given is None or (needed is not None and needed())

    def renew(self) -> bool:
        """Look for credentials anew; tell whether others were found, now or within the last seconds. Blocks."""
        if self._is_fixed:
            return False
        with self._lock:
            if self._renewed_at is None or self._clock() - self._renewed_at >= RENEWAL_SECONDS:
                self._found_others = self._replace()
                self._renewed_at = self._clock()
            return self._found_others

    def _replace(self) -> bool:
        try:
            source = self._find()
            found = source.get_frozen_credentials()
        except (AwsError, BotoCoreError, ClientError, OSError, RuntimeError) as error:
            # The caller tells that the old ones were refused; botocore raises RuntimeError for new ones that are over.
            _log.warning("credentials were refused, and none are found in their place: %s", error)
            return False
        if found == self._given:
            return False
        self._source, self._given = source, found
        _log.info("credentials were refused: others were found in their place")
        return True
