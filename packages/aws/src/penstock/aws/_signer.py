"""Heads of JSON calls, signed by AWS Signature Version 4.

It signs one form of request, much faster than botocore. Constant parts are computed once, partly by botocore (host,
canonical path), and the key of the day once a day. A test compares the signatures with botocore's, byte for byte.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from penstock.aws.errors import AwsOptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.aws._http_connection import Parts
    from penstock.aws._proxy import HttpProxy

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_CREDENTIALS = ReadOnlyCredentials("", "", None)


@dataclass(frozen=True)
class _DayKey:
    """The signing key of credentials for one day."""

    credentials: ReadOnlyCredentials = field(repr=False)
    day: str
    scope: str
    key: bytes = field(repr=False)


class JsonSigner:
    """Signs POSTs of AWS JSON to one URL.

    Args:
        url: of the service.
        region: such as `eu-west-1`.
        service: as in a signature's scope.
        content_type: with the version of AWS JSON.
        target_prefix: of the header X-Amz-Target.
        wall_clock: seconds since the epoch.
        forward_proxy: the proxy that gets the requests with their full URL; None for a direct connection.
    """

    def __init__(
        self,
        *,
        url: str,
        region: str,
        service: str,
        content_type: str,
        target_prefix: str,
        wall_clock: Callable[[], float] = time.time,
        forward_proxy: HttpProxy | None = None,
    ) -> None:
        self._region = region
        self._service = service
        self._content_type = content_type
        self._target_prefix = target_prefix
        self._wall_clock = wall_clock
        parts = urlsplit(url)
        request = AWSRequest(method="POST", url=url, data=b"")
        auth = SigV4Auth(_NO_CREDENTIALS, service, region)
        self._host = auth.headers_to_sign(request)["host"]
        self._canonical_url = "\n".join(auth.canonical_request(request).split("\n")[1:3])
        self._url = quote(parts.path, safe="/%~") + (f"?{quote(parts.query, safe='/%~=&')}" if parts.query else "")
        self._proxy_fields = ""
        if forward_proxy is not None:
            self._url = f"{parts.scheme}://{self._host}{self._url}"
            if forward_proxy.authorization is not None:
                self._proxy_fields = f"proxy-authorization:{forward_proxy.authorization}\r\n"
        self._day_key = _DayKey(_NO_CREDENTIALS, "", "", b"")
        self._second = -1
        self._date = ""

    def head(
        self, credentials: ReadOnlyCredentials, operation: str, body: bytes | Parts, *, content_type: str | None = None
    ) -> bytes:
        """The request's first line and headers, with the empty line behind them.

        `content_type` defaults to the content type of the signer.

        Raises:
            AwsOptionError: an access key or a session token contains characters that a header cannot have.
            ValueError: the operation has a name that cannot be sent.
        """
        if not (operation.isascii() and operation.isalnum()):
            raise ValueError(f"{operation!r} is not an operation")
        parts = (body,) if isinstance(body, bytes) else body
        digest = sha256()
        for part in parts:
            digest.update(part)
        second = int(self._wall_clock())
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        date = self._date
        day_key = self._day_key
        if day_key.credentials != credentials or day_key.day != date[:8]:
            day_key = self._day_key = self._derive(credentials, date[:8])
        token = credentials.token
        token_name = "x-amz-security-token;" if token else ""
        names = f"content-type;host;x-amz-date;{token_name}x-amz-target"
        fields = (
            f"content-type:{content_type or self._content_type}\n"
            f"host:{self._host}\n"
            f"x-amz-date:{date}\n"
            f"{f'x-amz-security-token:{token}{chr(10)}' if token else ''}"
            f"x-amz-target:{self._target_prefix}.{operation}\n"
        )
        canonical = f"POST\n{self._canonical_url}\n{fields}\n{names}\n{digest.hexdigest()}"
        to_sign = f"{_ALGORITHM}\n{date}\n{day_key.scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(day_key.key, to_sign.encode(), "sha256").hex()
        return (
            f"POST {self._url} HTTP/1.1\r\n"
            f"{fields.replace(chr(10), chr(13) + chr(10))}"
            f"authorization:{_ALGORITHM} Credential={credentials.access_key}/{day_key.scope}, "
            f"SignedHeaders={names}, Signature={signature}\r\n"
            f"{self._proxy_fields}"
            f"content-length:{sum(map(len, parts))}\r\n"
            "user-agent:penstock-aws\r\n\r\n"
        ).encode()

    def _derive(self, credentials: ReadOnlyCredentials, day: str) -> _DayKey:
        # Stubs say that an access key may be missing; a session has none such.
        for option, given in (("awsAccessKeyId", credentials.access_key), ("awsSessionToken", credentials.token)):
            value = given or ""
            # A line's end in it would begin a header of its own.
            if not (value.isascii() and value.isprintable()) or " " in value:
                raise AwsOptionError(option, "holds a space or another character that no key has")
        key = f"AWS4{credentials.secret_key}".encode()
        for part in (day, self._region, self._service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return _DayKey(credentials, day, f"{day}/{self._region}/{self._service}/aws4_request", key)
