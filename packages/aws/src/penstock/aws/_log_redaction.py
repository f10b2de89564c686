"""Keeps secrets out of what botocore logs at DEBUG: whole requests, and STS's answers with the keys of a role."""

from __future__ import annotations

import logging
import re
from typing import Final

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
    """The text with stars for what headers, fields and elements of these names hold."""
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
    """See to it; can be repeated. Costs nothing while those loggers are not at DEBUG."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_REDACTION)
