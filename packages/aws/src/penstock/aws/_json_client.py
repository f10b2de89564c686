"""AWS JSON 1.1 over HTTP/1.1, for calls that are hot."""

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock.aws._classify import are_credentials_refused
from penstock.aws._http_pool import HttpPool
from penstock.aws._session import AwsSession
from penstock.aws._signer import JsonSigner
from penstock.aws.errors import AwsConnectionError, AwsServiceError


class _ErrorBody(msgspec.Struct):
    type: str = msgspec.field(name="__type", default="")
    message: str = ""
    capital_message: str = msgspec.field(name="Message", default="")


_encoder = msgspec.json.Encoder(enc_hook=lambda value: base64.b64encode(value).decode())
_error_decoder = msgspec.json.Decoder(_ErrorBody)


def service_error(operation: str, status: int, headers: Mapping[str, str], body: bytes) -> AwsServiceError:
    """The error that an HTTP answer other than 200 describes."""
    try:
        parsed = _error_decoder.decode(body)
    except msgspec.MsgspecError:
        parsed = _ErrorBody()
    code = (parsed.type or headers.get("x-amzn-errortype", "")).rpartition("#")[2].partition(":")[0]
    message = parsed.message or parsed.capital_message or body[:200].decode(errors="replace")
    return AwsServiceError(
        code=code or ("InternalFailure" if status >= 500 else "UnknownError"),
        message=message,
        status=status,
        operation=operation,
        request_id=headers.get("x-amzn-requestid", ""),
    )


class JsonClient:
    """Signed calls of one service over kept-alive connections; an async context manager. Goes by no proxy.

    Does not retry, so that callers see every throttle; but for credentials that are refused, which are renewed once
    where they can be, and for a kept connection that proves to be closed. Cancelling a call closes its connection;
    whether the service did it is then unknown, as after a time-out.

    Args:
        session: says where the service is, and has the credentials.
        service: as in a signature's scope.
        target_prefix: of the header X-Amz-Target.
        json_version: of AWS JSON: `1.0` or `1.1`.
        connections: at most; more calls than these wait.
        connect_timeout_seconds: for a connection with its handshake.
        total_timeout_seconds: for a call, with the time that it waits for a connection.
        wall_clock: seconds since the epoch, for signatures.
    """

    def __init__(
        self,
        session: AwsSession,
        *,
        service: str = "kinesis",
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
        self._signer = JsonSigner(
            url=self._url,
            region=session.region,
            service=service,
            content_type=f"application/x-amz-json-{json_version}",
            target_prefix=target_prefix,
            wall_clock=wall_clock,
        )
        self._connect_timeout_seconds = connect_timeout_seconds
        self._total_timeout_seconds = total_timeout_seconds
        self._pool: HttpPool | None = None
        self._fetching_credentials = asyncio.Lock()

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
        """Close the connections; calls on their way end with an error. A client that is used again opens new ones."""
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
            )
        return self._pool

    async def _head(self, operation: str, body: bytes) -> bytes:
        if self._session.refresh_is_due:
            # Fetching credentials may ask files, metadata services or STS: not on the loop, and once for all calls.
            async with self._fetching_credentials:
                if self._session.refresh_is_due:
                    await asyncio.to_thread(self._session.frozen_credentials)
        return self._signer.head(self._session.frozen_credentials(), operation, body)

    async def call_raw(self, operation: str, body: bytes) -> bytes:
        """Send a JSON body, give the JSON body of the answer.

        Raises:
            AwsServiceError: the service answered with an error.
            AwsConnectionError: no answer came.
        """
        try:
            return await self._call_once(operation, body)
        except AwsServiceError as error:
            # Refused before anything was done: to send it again cannot do it twice.
            if not are_credentials_refused(error) or not await asyncio.to_thread(self._session.renew_credentials):
                raise
        return await self._call_once(operation, body)

    async def _call_once(self, operation: str, body: bytes) -> bytes:
        head = await self._head(operation, body)
        try:
            async with asyncio.timeout(self._total_timeout_seconds) as limit:
                answer = await self._open().call(head, body)
        except OSError as error:
            reason = str(error) or type(error).__name__
            if limit.expired():
                reason = f"none within {self._total_timeout_seconds:g} s"
            raise AwsConnectionError(operation=operation, endpoint=self._url, reason=reason) from error
        if answer.status == 200:
            return answer.body
        raise service_error(operation, answer.status, answer.headers, answer.body)

    async def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Send parameters, give the answer as plain JSON values.

        Bytes are sent as base64, as the protocol wants blobs; blobs of the answer stay base64, times epoch seconds.

        Raises:
            AwsServiceError: the service answered with an error.
            AwsConnectionError: no answer came.
        """
        body = await self.call_raw(operation, _encoder.encode(parameters))
        answer: dict[str, Any] = msgspec.json.decode(body) if body else {}
        return answer
