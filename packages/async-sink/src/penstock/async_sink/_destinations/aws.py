"""What the writers for AWS's services share: the connection pool, look-ups, and what an error means."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import msgspec

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import ElementConverter, EntryFailure
from penstock.async_sink._core.settlement import ResultHandler, all_failed
from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._core.writer import AsyncSinkBase, AsyncSinkWriter
from penstock.async_sink._rate.defaults import StrategyFactory
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
    classify_code,
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
# Single failures are normal. A warning is logged after so many in a row, then after four times as many, and so on.
_FIRST_WARNING = 4
_MORE = 4


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """What a service takes in a request, and the limits of a writer that is given none."""

    max_batch_size: int
    """Entries in a request."""
    max_batch_size_in_bytes: int
    """Bytes in a request."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Fields of `AsyncSinkConfig` that differ from the limits above, or from that class."""

    def config(self, options: Mapping[str, Any]) -> AsyncSinkConfig:
        """The limits of a writer; what the options leave out is the service's.

        Raises:
            SinkOptionError: an option is wrong.
        """
        limits = {"max_batch_size": self.max_batch_size, "max_batch_size_in_bytes": self.max_batch_size_in_bytes}
        return AsyncSinkConfig(**{**limits, **self.defaults, **options})

    def check(self, config: AsyncSinkConfig) -> None:
        """Check that requests are not larger than the service takes.

        Raises:
            SinkOptionError: a limit is above the service's.
        """
        for name in ("max_batch_size", "max_batch_size_in_bytes"):
            value, most = getattr(config, name), getattr(self, name)
            if value > most:
                raise SinkOptionError(name, f"{value} is more than the service takes, {most}")


def code_and_message(error: BaseException) -> tuple[str, str]:
    """Code and message of an error: the service's own if it has some."""
    return error_code(error) or type(error).__name__, getattr(error, "message", None) or str(error)


class RecordResult(msgspec.Struct):
    """What an answer says of one record, in the order of the request."""

    error_code: str | None = msgspec.field(name="ErrorCode", default=None)
    error_message: str | None = msgspec.field(name="ErrorMessage", default=None)


def failures_by_place(
    operation: str, results: Sequence[RecordResult], entry_count: int, *, throttle_codes: Collection[str] = ()
) -> list[EntryFailure]:
    """The entries that were not accepted. `throttle_codes` mean that the destination is full, besides the usual ones.

    Raises:
        ValueError: the answer is about another number of records.
    """
    if len(results) != entry_count:
        raise ValueError(f"{operation} of {entry_count} records was answered for {len(results)}")
    return [
        EntryFailure(
            index,
            code,
            result.error_message or "",
            code in throttle_codes or classify_code(code) is ErrorKind.THROTTLED,
        )
        for index, result in enumerate(results)
        if (code := result.error_code)
    ]


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
    KINDS_OF_CODES: ClassVar[Mapping[str, ErrorKind]] = {}
    """What this service's own codes ask for; others are looked up in the table of `penstock.aws`."""
    LOOKUP_HINT: ClassVar[str] = ""
    """How to do without `learn_destination`."""

    def __init__(self, aws: AwsOptions | AwsSession, config: AsyncSinkConfig | None = None, **arguments: Any) -> None:
        """As `AsyncSinkWriter`, with the service's session, or the options of one."""
        self._aws = aws
        self._client: JsonClient | None = None
        self._failed_in_a_row = 0
        self._next_warning = _FIRST_WARNING
        super().__init__(config, **arguments)

    async def open_destination(self) -> None:
        """Open the connection pool, and learn what must be known of the destination.

        Raises:
            DestinationError: the service does not describe the destination.
        """
        # It reads configuration files, and looks up the endpoint.
        self._client = await asyncio.to_thread(self._make_client)
        try:
            await self.learn_destination(self._client)
        except LOOKUP_ERRORS as error:
            await self.close_destination()
            raise lookup_failed(self.destination, error, self.LOOKUP_HINT) from error
        except BaseException:
            await self.close_destination()
            raise

    async def learn_destination(self, client: JsonClient) -> None:
        """Ask the service what the writer has to know before it writes; by default nothing."""

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
    async def send(
        self, client: JsonClient, entries: Sequence[R], result_handler: ResultHandler[R]
    ) -> tuple[Sequence[EntryFailure], Sequence[str | None]]:
        """Send the entries. Returns those that were not accepted, by place, and the lane (shard) of each entry where
        the answer names it and `result_handler.wants_lanes`, else nothing. Exceptions go through `kind_of`."""

    def kind_of(self, error: BaseException) -> ErrorKind:
        """What an error of the whole request asks for."""
        return self.KINDS_OF_CODES.get(error_code(error) or "") or classify(error)

    async def submit_request_entries(self, entries: Sequence[R], result_handler: ResultHandler[R]) -> None:
        """Send the entries; what was not accepted is sent again.

        Raises:
            DestinationError: the service refused the request for good.
        """
        assert self._client is not None
        failures: Sequence[EntryFailure]
        lanes: Sequence[str | None] = ()
        try:
            failures, lanes = await self.send(self._client, entries, result_handler)
        except Exception as error:
            kind, (code, message) = self.kind_of(error), code_and_message(error)
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


class AwsSink(AsyncSinkBase[I, R]):
    """What the sinks for AWS's services share.

    Each writer has an empty buffer or what others left behind, and a connection pool, a rate limit and a handler of
    records that cannot be written of its own.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        make_writer: Callable[..., AwsSinkWriter[I, R]],
        *,
        config: AsyncSinkConfig,
        strategy: StrategyFactory,
        converter: ElementConverter[I, R] | Callable[[I], R] | None,
        terminal: Callable[[], TerminalRecordHandler] | None,
        **arguments: Any,
    ) -> None:
        """`arguments` are those that only this service's writers have."""
        self._aws = aws
        self._make_writer = make_writer
        self._config = config
        self._strategy = strategy
        self._converter = converter
        self._terminal = terminal
        self._arguments = arguments

    def create_writer(self) -> AwsSinkWriter[I, R]:
        """A writer with an empty buffer."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[R]]) -> AwsSinkWriter[I, R]:
        """A writer that begins with what others left behind.

        Raises:
            RecordTooLargeError: an entry is larger than the limit.
        """
        return self._make_writer(
            self._aws,
            self._config,
            converter=self._converter,
            strategy=self._strategy(self._config),
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
            **self._arguments,
        )
