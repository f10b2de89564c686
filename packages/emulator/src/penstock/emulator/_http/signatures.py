"""Signature Version 4, checked by signing the request again with botocore."""

from __future__ import annotations

import hmac
import re
import time
from calendar import timegm
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from penstock.emulator.errors import KinesisError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<credential>[^,\s]+)\s*,\s*SignedHeaders=(?P<headers>[^,\s]+)\s*,"
    r"\s*Signature=(?P<signature>[0-9a-f]{64})\s*"
)
_REGION = re.compile(r"[a-z0-9-]{1,63}")
_DATE_FORMAT = "%Y%m%dT%H%M%SZ"
_TOLERANCE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class _Scope:
    access_key: str
    date: str
    region: str
    service: str


def signed_region(headers: Mapping[str, str]) -> str:
    """The region that a request is signed for; empty if it has no signature of AWS."""
    match = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    parts = match["credential"].split("/") if match else []
    region = parts[2] if len(parts) == 5 else ""
    # It becomes part of ARNs.
    return region if _REGION.fullmatch(region) else ""


class SignatureVerifier:
    """Lets requests pass that were signed with a known key, as the service's front end does.

    The date of a signature is compared with real time, wherever the emulator's clock stands: it is the client's.
    """

    def __init__(self, keys: Mapping[str, str], *, region: str, wall_clock: Callable[[], float] = time.time) -> None:
        self._keys = dict(keys)
        self._region = region
        self._wall_clock = wall_clock

    def verify(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Check a request.

        Raises:
            KinesisError: MissingAuthenticationTokenException without a signature, IncompleteSignatureException for
                one that cannot be read, UnrecognizedClientException for an unknown key, and
                InvalidSignatureException for a wrong or an outdated one.
        """
        authorization = headers.get("authorization")
        if authorization is None:
            raise KinesisError("MissingAuthenticationTokenException", "Missing Authentication Token")
        match = _AUTHORIZATION.fullmatch(authorization)
        parts = match["credential"].split("/") if match else []
        timestamp = headers.get("x-amz-date", "")
        if match is None or len(parts) != 5 or parts[4] != "aws4_request" or not _seconds(timestamp):
            raise KinesisError(
                "IncompleteSignatureException",
                "Authorization header requires 'Credential', 'SignedHeaders' and 'Signature' parameters, and the "
                "request a 'X-Amz-Date' header.",
            )
        scope = _Scope(*parts[:4])
        secret = self._keys.get(scope.access_key)
        if secret is None:
            raise KinesisError("UnrecognizedClientException", "The security token included in the request is invalid.")
        self._check_scope(scope, timestamp)
        signed = match["headers"].split(";")
        expected = _sign(scope, secret, timestamp, signed, method, path, headers, body)
        declared = headers.get("x-amz-content-sha256")
        honest = declared in (None, sha256(body).hexdigest())
        # A signature that leaves out the host or the operation could be sent anywhere, for anything.
        covers = "host" in signed or ":authority" in signed
        if "x-amz-target" in headers:
            covers = covers and "x-amz-target" in signed
        if not (honest and covers and hmac.compare_digest(expected, match["signature"])):
            raise _invalid(
                "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
                "Access Key and signing method. Consult the service documentation for details."
            )

    def _check_scope(self, scope: _Scope, timestamp: str) -> None:
        if scope.region != self._region:
            raise _invalid(f"Credential should be scoped to a valid region, not '{scope.region}'.")
        if scope.service != "kinesis":
            raise _invalid(f"Credential should be scoped to correct service: 'kinesis', not '{scope.service}'.")
        if not timestamp.startswith(scope.date):
            raise _invalid(
                f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: {timestamp}"
            )
        now = self._wall_clock()
        signed = _seconds(timestamp)
        earliest, latest = now - _TOLERANCE_SECONDS, now + _TOLERANCE_SECONDS
        if signed < earliest:
            raise _invalid(
                f"Signature expired: {timestamp} is now earlier than {_text(earliest)} ({_text(now)} - 5 min.)"
            )
        if signed > latest:
            raise _invalid(
                f"Signature not yet current: {timestamp} is still later than {_text(latest)} ({_text(now)} + 5 min.)"
            )


class _Resigner(botocore.auth.SigV4Auth):
    # botocore chooses the headers that it signs; here the client has chosen.
    def headers_to_sign(self, request: Any) -> Any:
        chosen = HTTPHeaders()
        for name, value in request.headers.items():
            chosen[name.lower()] = value
        return chosen


def _sign(
    scope: _Scope,
    secret: str,
    timestamp: str,
    signed: list[str],
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
) -> str:
    # HTTP/2 has the host in a pseudo header.
    known = {"host": headers.get(":authority", ""), **headers}
    request = AWSRequest(
        method=method,
        url=f"http://{known['host']}{path}",
        headers={name: known.get(name, "") for name in signed},
        data=body,
    )
    request.context["timestamp"] = timestamp
    signer = _Resigner(Credentials(scope.access_key, secret), scope.service, scope.region)
    canonical = signer.canonical_request(request)
    return str(signer.signature(signer.string_to_sign(request, canonical), request))


def _invalid(message: str) -> KinesisError:
    return KinesisError("InvalidSignatureException", message)


def _seconds(timestamp: str) -> int:
    try:
        return timegm(time.strptime(timestamp, _DATE_FORMAT))
    except ValueError:
        return 0


def _text(seconds: float) -> str:
    return time.strftime(_DATE_FORMAT, time.gmtime(seconds))
