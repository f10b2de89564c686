"""AWS JSON over HTTP/1.1, for frequent calls."""

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from botocore.credentials import ReadOnlyCredentials

from penstock.aws._aws_client import is_of_service, service_error
from penstock.aws._classify import are_credentials_refused
from penstock.aws._http_connection import HttpConnectionError, Parts
from penstock.aws._http_pool import HttpPool
from penstock.aws._session import AwsSession
from penstock.aws._signer import JsonSigner
from penstock.aws.errors import AwsConnectionError, AwsCredentialsError, AwsServiceError

_encoder = msgspec.json.Encoder(enc_hook=lambda value: base64.b64encode(value).decode())


class JsonClient:
    """Signed calls of one service over kept-alive connections; an async context manager.

    Does not retry, so that callers see every throttle. There are two exceptions, for calls that may be repeated: they
    are sent again when a kept connection breaks before an answer, and with other credentials where these are refused.
    `submit` sends a request once. Cancelling a call closes its connection; whether the service carried it out is then
    unknown, as after a time-out.

    Args:
        session: has the endpoint and the credentials.
        service: as boto3 names it.
        signing_name: of the service in a signature's scope; its name if not given.
        target_prefix: of the header X-Amz-Target.
        json_version: of AWS JSON: `1.0` or `1.1`.
        connections: maximum number; further calls wait.
        connect_timeout_seconds: for a connection with its handshake.
        total_timeout_seconds: for a call, including the wait for a connection; `submit` has no time-out.
        wall_clock: seconds since the epoch, for signatures.
    """

    def __init__(
        self,
        session: AwsSession,
        *,
        service: str = "kinesis",
        signing_name: str | None = None,
        target_prefix: str = "Kinesis_20131202",
        json_version: str = "1.1",
        connections: int = 50,
        connect_timeout_seconds: float = 10.0,
        total_timeout_seconds: float = 60.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._connections = connections
        self._url = session.endpoint_url(service) + "/"
        self._proxy = session.proxy(service)
        is_https = self._url.startswith("https:")
        self._signer = JsonSigner(
            url=self._url,
            region=session.region,
            service=signing_name or service,
            content_type=f"application/x-amz-json-{json_version}",
            target_prefix=target_prefix,
            wall_clock=wall_clock,
            forward_proxy=None if is_https else self._proxy,
        )
        self._connect_timeout_seconds = connect_timeout_seconds
        self._total_timeout_seconds = total_timeout_seconds
        self._service_clock = session.service_clock(service)
        self._pool: HttpPool | None = None
        self._fetching = asyncio.Lock()

    @property
    def session(self) -> AwsSession:
        """The session whose credentials sign."""
        return self._session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running calls end with an error. The next call opens new connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def _open(self) -> HttpPool:
        if self._pool is None:
            self._pool = HttpPool(
                self._url,
                self._session.ssl_context,
                connections=self._connections,
                connect_timeout_seconds=self._connect_timeout_seconds,
                proxy=self._proxy,
            )
        return self._pool

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._url

    async def _credentials(self) -> ReadOnlyCredentials:
        if self._session.must_fetch_credentials:
            # One thread fetches for all calls that wait.
            async with self._fetching:
                return await self._session.fetch_credentials()
        return self._session.frozen_credentials()

    async def call_raw(self, operation: str, body: bytes | Parts, *, content_type: str | None = None) -> bytes:
        """Send a JSON body and return the JSON body of the answer. A large body in parts is not joined.

        With another `content_type` the body is of that type, and so is the answer; Kinesis knows CBOR as
        `application/x-amz-cbor-1.1`.

        Raises:
            AwsServiceError: the service answered with an error.
            AwsConnectionError: no answer came.
            AwsCredentialsError: the credentials have expired, and no others can be fetched.
            AwsOptionError: there are no credentials, or the authorities to trust cannot be read.
        """
        parts = (body,) if isinstance(body, bytes) else body
        credentials = await self._credentials()
        try:
            return await self._send(credentials, operation, parts, content_type)
        except AwsServiceError as error:
            # The service refused before it did anything, so a retry is safe.
            if not are_credentials_refused(error) or not await self._session.find_other_credentials(credentials):
                raise
        return await self._send(await self._credentials(), operation, parts, content_type)

    async def submit(self, operation: str, body: bytes | Parts, *, content_type: str | None = None) -> bytes:
        """Send a request that writes: as `call_raw`, but never more than once, and without a time-out.

        The caller decides how long it waits, and cancels the call; it counts its attempts, and sends again itself.

        Raises:
            AwsServiceError: the service answered with an error.
            AwsConnectionError: no answer came. The service may have received the request.
            AwsCredentialsError: the credentials have expired, and no others can be fetched; or the service refused
                them, and the next call has others.
            AwsOptionError: there are no credentials, or the authorities to trust cannot be read.
        """
        parts = (body,) if isinstance(body, bytes) else body
        credentials = await self._credentials()
        try:
            return await self._send(credentials, operation, parts, content_type, may_repeat=False)
        except AwsServiceError as error:
            if are_credentials_refused(error) and await self._session.find_other_credentials(credentials):
                reason = f"{error.message}; others were found for the next request"
                raise AwsCredentialsError(code=error.code, reason=reason, is_retryable=True) from error
            raise

    async def _send(
        self,
        credentials: ReadOnlyCredentials,
        operation: str,
        body: Parts,
        content_type: str | None,
        *,
        may_repeat: bool = True,
    ) -> bytes:
        head = self._signer.head(credentials, operation, body, content_type=content_type)
        asked_at = self._service_clock.monotonic()
        try:
            async with asyncio.timeout(self._total_timeout_seconds if may_repeat else None) as limit:
                answer = await self._open().call(head, body, may_repeat=may_repeat)
        except OSError as error:
            reason = str(error) or type(error).__name__
            if limit.expired():
                reason = f"none within {self._total_timeout_seconds:g} s"
            raise AwsConnectionError(
                operation=operation,
                endpoint=self._url,
                reason=reason,
                is_reached=limit.expired() or isinstance(error, HttpConnectionError),
            ) from error
        self._service_clock.answered(answer.headers.get("date"), asked_at)
        if answer.status == 200 and is_of_service(answer.body):
            return answer.body
        if answer.status == 407 and self._proxy is not None:
            raise self._proxy.refusal(407, "Proxy Authentication Required", self._url)
        raise service_error(operation, answer.status, answer.headers, answer.body, endpoint=self._url)

    async def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Send parameters and return the answer as plain JSON values.

        Bytes are sent as base64. In the answer, blobs are base64 and times are epoch seconds.

        Raises:
            AwsServiceError: the service answered with an error.
            AwsConnectionError: no answer came.
        """
        body = await self.call_raw(operation, _encoder.encode(parameters))
        try:
            answer: dict[str, Any] = msgspec.json.decode(body) if body else {}
        except msgspec.DecodeError as error:
            raise service_error(operation, 200, {}, body, endpoint=self._url) from error
        return answer
