"""Infrequent calls of AWS, with aiobotocore."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ParamValidationError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from penstock.aws._classify import UNREADABLE_ANSWER, are_credentials_refused, error_code
from penstock.aws.errors import AwsConnectionError, AwsError, AwsServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from penstock.aws._session import AwsSession


def as_json(body: bytes) -> bytes:
    """Convert a body in JSON or CBOR to JSON; blobs become base64.

    The format is detected, because a service may answer a request in CBOR with JSON, for example in errors.

    Raises:
        ValueError: the body is neither JSON nor CBOR.
    """
    if body[:1] in (b"", b"{"):
        return body
    # Imported here, because only answers with failures need it.
    import cbor2

    try:
        return msgspec.json.encode(cbor2.loads(body))
    except (cbor2.CBORDecodeError, TypeError) as error:
        raise ValueError(f"a body that is neither JSON nor CBOR: {error}") from error


def is_of_service(body: bytes) -> bool:
    """Whether an answer may be JSON or CBOR: an object, a map or an empty body."""
    body = body.lstrip()
    return not body or body[:1] == b"{" or 0xA0 <= body[0] < 0xC0


class _ErrorBody(msgspec.Struct):
    type: str = msgspec.field(name="__type", default="")
    message: str = ""
    capital_message: str = msgspec.field(name="Message", default="")


_error_decoder = msgspec.json.Decoder(_ErrorBody)


def service_error(
    operation: str, status: int, headers: Mapping[str, str], body: bytes, *, endpoint: str = "the endpoint"
) -> AwsServiceError:
    """The error that an unsuccessful HTTP answer describes.

    If the answer does not come from an AWS service, the message names the endpoint and the content type, and the code
    is `UnreadableAnswer` for HTTP 200, or `TooManyRequestsException`, `InternalFailure` or `UnknownError` by status.
    """
    try:
        parsed = _error_decoder.decode(as_json(body))
    except ValueError:
        parsed = _ErrorBody()
    code = (parsed.type or headers.get("x-amzn-errortype", "")).rpartition("#")[2].partition(":")[0]
    message = parsed.message or parsed.capital_message
    if not (code or message):
        content_type = headers.get("content-type", "no content type")
        beginning = body[:80].decode(errors="replace")
        message = (
            f"{endpoint} answered with HTTP {status} and {content_type}, which is not an answer of the service: a "
            f"proxy, a captive portal or a wrong endpoint_url answers, with {beginning!r}"
        )
    if not code:
        by_status = {200: UNREADABLE_ANSWER, 429: "TooManyRequestsException"}
        code = by_status.get(status, "InternalFailure" if status >= 500 else "UnknownError")
    return AwsServiceError(
        code=code,
        message=message,
        status=status,
        operation=operation,
        request_id=headers.get("x-amzn-requestid", ""),
    )


def refuse_unreadable(endpoint: str, operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """A handler of `before-parse`, because botocore treats any text as an empty JSON answer.

    Raises:
        AwsServiceError: the answer has the status 200 and is neither JSON nor CBOR.
    """
    if operation_model.service_model.resolved_protocol not in ("json", "smithy-rpc-v2-cbor"):
        return
    if response_dict["status_code"] == 200 and not is_of_service(response_dict["body"]):
        headers = {name.lower(): value for name, value in response_dict["headers"].items()}
        raise service_error(operation_model.name, 200, headers, response_dict["body"], endpoint=endpoint)


class AwsClient:
    """Calls of one service, with boto3's names, parameters and answers; an async context manager.

    Created by `AwsSession.aio_client`. It opens with its first call and belongs to that event loop. It retries only
    after renewing refused credentials, so that callers see every throttle. Cancelling a call closes its connection; it
    is then unknown whether the service executed the call.

    Args:
        session: has the endpoint and the credentials.
        service_name: as boto3 has it.
        endpoint_url: of the service; None for boto3's own choice.
    """

    def __init__(self, session: AwsSession, service_name: str, endpoint_url: str | None) -> None:
        self._session = session
        self._service_name = service_name
        self._endpoint_url = endpoint_url
        self._clock = session.service_clock(service_name)
        self._opening = asyncio.Lock()
        self._opened = AsyncExitStack()
        self._client: Any = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self._client = None
        await self._opened.aclose()

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Make a call, such as `describe_stream_summary`, and return the answer as boto3 does.

        Raises:
            AwsServiceError: the service answered with an error (boto3's error is the `__cause__`), or a parameter is
                invalid (`ValidationException`).
            AwsConnectionError: no answer came, or the answer cannot be read.
            AwsCredentialsError: the credentials have expired, and no others can be fetched.
            AwsOptionError: there are no credentials, or the authorities to trust cannot be read.
        """
        client = self._client or await self._open()
        used = await self._session.fetch_credentials()
        try:
            return await self._call_once(client, operation, parameters)
        except AwsServiceError as error:
            # The service refused before it did anything, so a retry is safe.
            if not are_credentials_refused(error) or not await self._session.find_other_credentials(used):
                raise
        return await self._call_once(client, operation, parameters)

    async def _call_once(self, client: Any, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        asked_at = self._clock.monotonic()
        try:
            answer: dict[str, Any] = await getattr(client, operation)(**parameters)
        except ClientError as error:
            metadata = error.response.get("ResponseMetadata", {})
            self._answered(metadata, asked_at)
            raise AwsServiceError(
                code=error_code(error) or "UnknownError",
                message=str(error.response.get("Error", {}).get("Message", "")),
                status=int(metadata.get("HTTPStatusCode", 0)),
                operation=error.operation_name,
                request_id=str(metadata.get("RequestId", "")),
            ) from error
        except ParamValidationError as error:
            # The error that the service would return.
            raise AwsServiceError(
                code="ValidationException", message=str(error), status=400, operation=operation
            ) from error
        except (BotoConnectionError, HTTPClientError, ResponseParserError) as error:
            raise AwsConnectionError(
                operation=operation, endpoint=str(client.meta.endpoint_url), reason=str(error)
            ) from error
        except BotoCoreError as error:
            raise AwsError(f"{operation}: {error}") from error
        self._answered(answer.get("ResponseMetadata", {}), asked_at)
        return answer

    def _answered(self, metadata: Any, asked_at: float) -> None:
        self._clock.answered(metadata.get("HTTPHeaders", {}).get("date"), asked_at)

    async def _open(self) -> Any:
        async with self._opening:
            if self._client is None:
                # In a thread, because it imports aiobotocore and reads files.
                create = await asyncio.to_thread(
                    self._session.prepare_aio_client, self._service_name, self._endpoint_url
                )
                client = await self._opened.enter_async_context(create())
                client.meta.events.register("before-parse", partial(refuse_unreadable, client.meta.endpoint_url))
                self._client = client
            return self._client
