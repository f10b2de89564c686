"""Credentials that are refreshed before they expire, and looked up again when a service refuses them."""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partialmethod
from typing import TYPE_CHECKING, Any, Final

from botocore.credentials import ProcessProvider, RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    InvalidConfigError,
    MissingDependencyException,
    PartialCredentialsError,
    ProfileNotFound,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
)

from penstock.aws._backoff import BackoffPolicy
from penstock.aws._classify import EXPIRED_CODES, ErrorKind, classify, error_code
from penstock.aws.errors import AwsCredentialsError, AwsError

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials


_LOGGERS: Final = (
    "botocore.auth",
    "botocore.awsrequest",
    "botocore.credentials",
    "botocore.endpoint",
    "botocore.hooks",
    "botocore.httpsession",
    "botocore.parsers",
    "botocore.tokens",
)
_NAMES: Final = (
    "x-amz-security-token|authorization|secret_?access_?key|session_?token|external_?id|web_?identity_?token"
)
_SECRET: Final = re.compile(rf"(?i)((?:{_NAMES})['\"]?\s*[:=>]\s*b?['\"]?)(?:AWS4-HMAC-SHA256 )?[^'\"<&\n,}}]+")


def redacted(text: str) -> str:
    """The text with asterisks instead of the values of secret headers, fields and elements."""
    return _SECRET.sub(r"\1***", text)


class _Redaction(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        shown = redacted(message)
        if shown != message:
            record.msg, record.args = shown, None
        return True


_REDACTION: Final = _Redaction()


def redact_botocore() -> None:
    """Hide secrets in botocore's logs. Can be called again. Costs nothing unless the loggers are at DEBUG."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_REDACTION)


def _start_process(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a `credential_process` without the tokens of Penstock's services: it needs none of them."""
    environment = {name: text for name, text in os.environ.items() if not _TOKEN.fullmatch(name)}
    return subprocess.Popen(command, env=environment, **options)


_TOKEN: Final = re.compile(r"PENSTOCK_.*TOKEN.*", re.IGNORECASE)
# Botocore makes this class in several places, for a profile itself and for its source_profile, and has no setting.
ProcessProvider.__init__ = partialmethod(ProcessProvider.__init__, popen=_start_process)  # type: ignore[assignment]

_log = logging.getLogger(__name__)

RENEWAL_SECONDS = 5.0
"""Minimum interval of renewals: many callers are refused at once, one renews, and the others use the result."""

# Sources ask STS, a metadata service, a process or a file; botocore raises RuntimeError for new credentials that have
# expired already, and KeyError or ValueError for answers that lack something.
_SOURCE_ERRORS = (BotoCoreError, ClientError, OSError, RuntimeError, KeyError, ValueError)

# Errors that need a new login or a corrected configuration file.
_LASTING = (
    InvalidConfigError,
    MissingDependencyException,
    PartialCredentialsError,
    ProfileNotFound,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
)

_BACKOFF = BackoffPolicy(base=timedelta(seconds=1), maximum=timedelta(seconds=10), exponent=2)
_MIN_SECONDS_BETWEEN_REFRESHES = 60.0


def _credentials_error(error: Exception) -> AwsCredentialsError:
    """The error of this package for an error of a source of credentials."""
    code = error_code(error)
    if code is None:
        # A process, a file, a metadata service; anything else is a defect of the source.
        is_retryable = isinstance(error, _SOURCE_ERRORS) and not isinstance(error, _LASTING)
    else:
        # The file of a web identity token is written by others, often some seconds late.
        is_late = code in EXPIRED_CODES and getattr(error, "operation_name", "") == "AssumeRoleWithWebIdentity"
        is_retryable = is_late or classify(error) is not ErrorKind.FATAL
    return AwsCredentialsError(
        code=code or type(error).__name__, reason=_for_others(error) or redacted(str(error)), is_retryable=is_retryable
    )


def _for_others(error: Exception) -> str | None:
    """A message without paths and process output of this host; None if the error contains neither.

    Services pass errors to their clients, and show them as the condition of a shard.
    """
    if isinstance(error, OSError):
        return f"{error.strerror or 'it failed'} (the log names the file)"
    if isinstance(error, ConfigNotFound | ConfigParseError):
        return "a configuration file cannot be read (the log names it)"
    if isinstance(error, CredentialRetrievalError) and error.kwargs.get("provider") == "custom-process":
        return "the credential process failed (the log has its words)"
    return None


def _log_own_words(error: Exception) -> None:
    if _for_others(error) is not None:
        _log.error("cannot fetch AWS credentials: %s: %s", type(error).__name__, redacted(str(error)))


class _Quiet(logging.Filter):
    """Drops botocore's logs, with tracebacks, of each failed attempt: this module logs the failure once."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING or not getattr(self.here, "on", False)


_quiet = _Quiet()
logging.getLogger("botocore.credentials").addFilter(_quiet)


class RenewableCredentials:
    """Credentials for boto3 and signatures, whose source can be replaced. Safe to share.

    Credentials that know their end are refreshed in a thread from 15 minutes before it; a refresh that fails is tried
    again with back-off, and the old ones are used until they expire. `renew` is for changes that cannot be seen
    here: a file that was rewritten, a session that was revoked, a clock that is wrong.

    Args:
        find: looks for credentials. Called once immediately.
        is_fixed: whether `find` always returns the same credentials.
        clock: monotonic seconds.

    Raises:
        AwsCredentialsError: `find` failed.
    """

    method = "penstock"

    def __init__(
        self, find: Callable[[], Credentials], *, is_fixed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find
        self._is_fixed = is_fixed
        self._clock = clock
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._next_refresh_at = 0.0
        self._failures = 0
        self._failure: Exception | None = None
        self._renew_at = -math.inf
        self._fruitless = 0
        self._found_others = False
        self._are_refused = False
        self._given: ReadOnlyCredentials | None = None
        try:
            self._source = self._look()
        except AwsError:
            raise
        except _SOURCE_ERRORS as error:
            _log_own_words(error)
            raise _credentials_error(error) from error

    def _look(self) -> Credentials:
        source = self._find()
        if isinstance(source, RefreshableCredentials):
            # botocore hides failures before its mandatory time: the cause would be unknown, and no back-off possible.
            source._mandatory_refresh_timeout = source._advisory_refresh_timeout  # type: ignore[attr-defined]
        return source

    @property
    def is_fixed(self) -> bool:
        """Whether the credentials of this process never change."""
        return self._is_fixed or self._source.method == "env"

    @property
    def access_key(self) -> str:
        """See `botocore.credentials.Credentials`."""
        return str(self.get_frozen_credentials().access_key)

    @property
    def secret_key(self) -> str:
        """See `botocore.credentials.Credentials`."""
        return str(self.get_frozen_credentials().secret_key)

    @property
    def token(self) -> str | None:
        """See `botocore.credentials.Credentials`."""
        return self.get_frozen_credentials().token

    @property
    def account_id(self) -> str | None:
        """See `botocore.credentials.Credentials`."""
        return self.get_frozen_credentials().account_id

    def get_deferred_property(self, property_name: str) -> Callable[[], Any]:
        """See `botocore.credentials.Credentials`."""
        return lambda: getattr(self, property_name, None)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The current credentials. Blocks on the network if `must_fetch`; otherwise it may start a refresh.

        Raises:
            AwsCredentialsError: the credentials have expired, and no others can be fetched.
        """
        # Read once: another thread may remove refused credentials at any time.
        given = None if self.must_fetch else self._given
        if given is None:
            with self._refreshing:
                # Another caller may have fetched them meanwhile, or failed.
                if self.must_fetch:
                    self._fetch()
                given = self._given
        elif self._is_due and self._clock() >= self._next_refresh_at and self._refreshing.acquire(blocking=False):
            threading.Thread(target=self._refresh, name="refresh credentials", daemon=True).start()
        assert given is not None
        return given

    @property
    def must_fetch(self) -> bool:
        """Whether `get_frozen_credentials` has to fetch credentials first, and so may block."""
        source = self._source
        return self._given is None or (isinstance(source, RefreshableCredentials) and source.refresh_needed(0))

    @property
    def _is_due(self) -> bool:
        source = self._source
        return isinstance(source, RefreshableCredentials) and source.refresh_needed()

    def _fetch(self) -> None:
        error = self._failure
        # Many callers ask at once: the source is not asked before the back-off is over.
        if error is None or self._clock() >= self._next_refresh_at:
            error = self._try()
            if error is not None and self._failures == 1:
                _log_own_words(error)
        if isinstance(error, AwsError):
            raise error
        if error is not None:
            raise _credentials_error(error) from error

    def _refresh(self) -> None:
        try:
            logged, error = self._failures > 0, self._try()
        finally:
            self._refreshing.release()
        if error is not None and not logged:
            _log.warning(
                "cannot refresh the AWS credentials: using the old ones until they expire, in at most 15 minutes, and "
                "trying again meanwhile: %s: %s",
                type(error).__name__,
                redacted(str(error)),
            )

    def _try(self) -> Exception | None:
        """Refresh or fetch credentials; return the error or None. Needs `_refreshing`."""
        _quiet.here.on = True
        try:
            if self._are_refused:
                self._source = self._look()
            self._given = self._source.get_frozen_credentials()
        except Exception as error:
            # A source may be foreign code; an error would end the refresh thread unnoticed.
            self._failure = error
            self._next_refresh_at = self._clock() + _BACKOFF.delay_seconds(self._failures)
            self._failures += 1
            return error
        finally:
            _quiet.here.on = False
        if self._failures:
            _log.info("fetched AWS credentials after %d failed attempts", self._failures)
        self._succeeded()
        return None

    def _succeeded(self) -> None:
        self._failure, self._failures, self._are_refused = None, 0, False
        # Credentials for 15 minutes are due for a refresh from the start.
        self._next_refresh_at = self._clock() + _MIN_SECONDS_BETWEEN_REFRESHES

    def renew(self) -> bool:
        """Look for credentials again; return whether another call is worthwhile. Blocks.

        It is when others were found, now or within the last seconds; and when their source is away, because the next
        signature asks it again, and raises a retryable error.
        """
        if self._is_fixed:
            return False
        with self._lock:
            if self._clock() >= self._renew_at:
                self._found_others = self._replace()
                self._fruitless = 0 if self._found_others else min(self._fruitless + 1, 4)
                # What replaces a token may be late: after 1, 2 and 4 seconds it is looked for again.
                wait = RENEWAL_SECONDS if self._found_others else min(RENEWAL_SECONDS, 2.0 ** (self._fruitless - 1))
                self._renew_at = self._clock() + wait
            return self._found_others

    def _replace(self) -> bool:
        _quiet.here.on = True
        try:
            source = self._look()
            found = source.get_frozen_credentials()
        except (AwsError, *_SOURCE_ERRORS) as error:
            # The caller reports that the old credentials were refused.
            _log.warning("credentials were refused, and none are found in their place: %s", redacted(str(error)))
            failure = error if isinstance(error, AwsError) else _credentials_error(error)
            if not isinstance(failure, AwsCredentialsError) or not failure.is_retryable:
                return False
            # The source is unavailable. Refused credentials are useless, so the next signature asks it again.
            with self._refreshing:
                self._given, self._are_refused, self._failure = None, True, error
                self._next_refresh_at = self._clock() + _BACKOFF.delay_seconds(self._failures)
                self._failures += 1
            return True
        finally:
            _quiet.here.on = False
        if found == self._given:
            return False
        with self._refreshing:
            self._source, self._given = source, found
            self._succeeded()
        _log.info("credentials were refused: others were found in their place")
        return True
