"""What the writers for AWS's services share: the connection pool, look-ups, and what an error means."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import ResultHandler, all_failed
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink.errors import DestinationError, SinkOptionError
from penstock.aws import (
    AwsConnectionError,
    AwsCredentialsError,
    AwsError,
    AwsOptions,
    AwsServiceError,
    AwsSession,
    BackoffPolicy,
    ErrorKind,
    JsonClient,
    classify,
    error_code,
    retry,
)

# Hundreds of tasks that start together ask together, and some are throttled: a handful of seconds spreads them.
LOOKUP_BACKOFF = BackoffPolicy(
    base=timedelta(milliseconds=200), maximum=timedelta(seconds=4), exponent=2.0, max_attempts=6
)


async def look_up(client: JsonClient, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Call an operation that only reads; again, a bounded number of times, while the answer is that it may work later.

    Raises:
        AwsServiceError: the service refused, for good or each time.
        AwsConnectionError: no answer came, each time.
        AwsCredentialsError: there are no credentials that have not expired, and none can be fetched.
    """
    return await retry(lambda: client.call(operation, parameters), LOOKUP_BACKOFF)


LOOKUP_ERRORS = (AwsServiceError, AwsConnectionError, AwsCredentialsError)
"""What a look-up fails with, when its options are right."""


def lookup_failed(destination: str, error: AwsError, hint: str = "") -> DestinationError:
    """The error of a writer that cannot be opened as a look-up failed; `hint` says how to do without it."""
    suffix = f"; {hint}" if hint else ""
    if isinstance(error, AwsServiceError):
        return DestinationError(destination, error.code, f"{error.message} ({error.operation}{suffix})")
    return DestinationError(destination, type(error).__name__, f"{error}{suffix}")


I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes
R = TypeVar("R")

_logger = logging.getLogger(__name__)
# A request that fails now and then is nothing; so many in a row, and four times as many, and so on, are told.
_FIRST_WARNING = 4
_MORE = 4


def check_service_limits(config: AsyncSinkConfig, *, max_batch_size: int, max_batch_size_in_bytes: int) -> None:
    """Check a configuration against what a service takes in a request.

    Raises:
        SinkOptionError: a limit is above the service's.
    """
    for name, most in (("max_batch_size", max_batch_size), ("max_batch_size_in_bytes", max_batch_size_in_bytes)):
        value = getattr(config, name)
        if value > most:
            raise SinkOptionError(name, f"{value} is more than the service takes, {most}")


class AwsSinkWriter(AsyncSinkWriter[I, R]):
    """Sends entries by one JSON call of an AWS service. A subclass says which, and reads the answer."""

    SERVICE: ClassVar[str]
    """As boto3 names it."""
    TARGET_PREFIX: ClassVar[str]
    """Of the header X-Amz-Target."""
    POISON_CODES: ClassVar[frozenset[str]] = frozenset({"InvalidArgumentException", "ValidationException"})
    """Codes by which a whole request is refused because of one of its entries. With a terminal record handler the
    request is bisected to find it; without one they end the writer at once."""
    JSON_10: ClassVar[bool] = False
    """Whether the service speaks AWS JSON 1.0 instead of 1.1."""

    def __init__(self, aws: AwsOptions | AwsSession, config: AsyncSinkConfig | None = None, **arguments: Any) -> None:
        """As `AsyncSinkWriter`, with the service's session, or the options of one."""
        self._aws = aws
        self._client: JsonClient | None = None
        self._failed_in_a_row = 0
        self._next_warning = _FIRST_WARNING
        super().__init__(config, **arguments)

    async def open_destination(self) -> None:
        """Open the connection pool."""
        # It reads configuration files, and looks up the endpoint.
        self._client = await asyncio.to_thread(self._make_client)

    def _make_client(self) -> JsonClient:
        return JsonClient(
            self._aws if isinstance(self._aws, AwsSession) else AwsSession(self._aws),
            service=self.SERVICE,
            target_prefix=self.TARGET_PREFIX,
            json_version="1.0" if self.JSON_10 else "1.1",
            connections=self.config.max_in_flight_requests,
        )

    async def describe(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the service about the destination, once, with the client that writes to it.

        Raises:
            penstock.aws.AwsError: the service refused, or no answer came.
        """
        assert self._client is not None
        return await self._client.call(operation, parameters)

    async def close_destination(self) -> None:
        """Close the connection pool."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @abstractmethod
    async def send(self, client: JsonClient, entries: Sequence[R]) -> list[EntryFailure]:
        """Send the entries, and say which were not accepted, by place. Exceptions go through `classify`."""

    async def send_and_locate(
        self, client: JsonClient, entries: Sequence[R], result_handler: ResultHandler[R]
    ) -> tuple[Sequence[EntryFailure], Sequence[str | None]]:
        """`send`, and the lane (shard) of each entry where the answer names it; none by default."""
        return await self.send(client, entries), ()

    def classify(self, error: BaseException) -> ErrorKind:
        """What an error of the whole request asks for; the table of `penstock.aws` by default."""
        return classify(error)

    async def submit_request_entries(self, entries: Sequence[R], result_handler: ResultHandler[R]) -> None:
        """Send the entries; what was not accepted is sent again.

        Raises:
            DestinationError: the service refused the request for good.
        """
        assert self._client is not None
        failures: Sequence[EntryFailure]
        lanes: Sequence[str | None] = ()
        try:
            failures, lanes = await self.send_and_locate(self._client, entries, result_handler)
        except Exception as error:
            kind, code = self.classify(error), error_code(error) or type(error).__name__
            message = getattr(error, "message", None) or str(error)
            if code in self.POISON_CODES and self.gives_up_records:
                result_handler.reject_request(code=code, message=message)
                return
            if kind is ErrorKind.FATAL:
                raise DestinationError(
                    self.destination,
                    code,
                    message,
                    entries=len(entries),
                    first_record_number=result_handler.first_record_number,
                ) from error
            throttled = kind is ErrorKind.THROTTLED
            if not throttled:
                self._warn_of(code, message)
            failures = all_failed(len(entries), code=code, message=message, throttled=throttled)
        else:
            self._failed_in_a_row, self._next_warning = 0, _FIRST_WARNING
        result_handler.retry_failures(failures, lanes=lanes)

    def _warn_of(self, code: str, message: str) -> None:
        # Without a bound, a wrong endpoint would be tried for ever without a word.
        self._failed_in_a_row += 1
        if self._failed_in_a_row < self._next_warning:
            return
        self._next_warning *= _MORE
        _logger.warning(
            "%s: %d requests in a row failed and are sent again (max_attempts and time_to_live would bound that), "
            "the latest with %s: %s",
            self.destination,
            self._failed_in_a_row,
            code,
            message,
        )
