"""AWS JSON 1.1 over HTTP/1.1, for calls that are hot."""

import asyncio
import base64
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from penstock.aws._classify import are_credentials_refused
from penstock.aws._session import AwsSession
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
    """Signed calls of one service over kept-alive connections; an async context manager.

    Does not retry, so that callers see every throttle; but for credentials that are refused, which are renewed once
    where they can be. Cancelling a call closes its connection; whether the service did it is
    then unknown, as after a time-out.
    """

    def __init__(
        self,
        session: AwsSession,
        *,
        service: str = "kinesis",
        target_prefix: str = "Kinesis_20131202",
        connections: int = 50,
        connect_timeout_seconds: float = 10.0,
        total_timeout_seconds: float = 60.0,
    ) -> None:
        self._session = session
        self._service = service
        self._target_prefix = target_prefix
        self._connections = connections
        self._url = session.endpoint_url(service) + "/"
        self._timeout = aiohttp.ClientTimeout(total=total_timeout_seconds, sock_connect=connect_timeout_seconds)
        self._http: aiohttp.ClientSession | None = None
        self._fetching_credentials = asyncio.Lock()

    @property
    def session(self) -> AwsSession:
        """The session that signs."""
        return self._session

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(
                limit=self._connections,
                ssl=self._session.ssl_context() or False,
                # The service closes idle connections after about a minute: do it first.
                keepalive_timeout=20,
            )
            self._http = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._http

    async def close(self) -> None:
        """Close the connections. The client opens new ones if it is used again."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _headers(self, operation: str, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": f"{self._target_prefix}.{operation}",
        }
        if self._session.refresh_is_due:
            # Fetching credentials may ask files, metadata services or STS: not on the loop, and once for all calls.
            async with self._fetching_credentials:
                if self._session.refresh_is_due:
                    await asyncio.to_thread(self._session.frozen_credentials)
        return self._session.sign("POST", self._url, headers, body, self._service)

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
        headers = await self._headers(operation, body)
        try:
            async with self._open().post(self._url, data=body, headers=headers) as response:
                answer = await response.read()
                if response.status == 200:
                    return answer
                lower = {name.lower(): value for name, value in response.headers.items()}
                raise service_error(operation, response.status, lower, answer)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            reason = str(error) or type(error).__name__
            raise AwsConnectionError(operation=operation, endpoint=self._url, reason=reason) from error

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
