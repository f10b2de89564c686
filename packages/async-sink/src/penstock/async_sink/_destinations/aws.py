"""Common parts of the sinks for AWS services: connection pool, look-ups and the meaning of errors."""

import asyncio
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

import msgspec

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import BufferedRequestState, ElementConverter, EntryFailure
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._core.writer import AsyncSinkBase, AsyncSinkWriter
from penstock.async_sink._destinations.writer import DestinationWriter, EntryKind
from penstock.async_sink._rate.defaults import StrategyFactory, slow_start_strategy
from penstock.async_sink.errors import DestinationError, SinkOptionError
from penstock.aws import (
    CREDENTIALS_REFUSED_CODES,
    EXPIRED_CODES,
    UNREADABLE_ANSWER,
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

# Hundreds of tasks that start together ask together; some seconds of back-off spread them.
LOOKUP_BACKOFF = BackoffPolicy(
    base=timedelta(milliseconds=200), maximum=timedelta(seconds=4), exponent=2.0, max_attempts=6
)


async def look_up(client: JsonClient, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Call an operation that only reads, with a limited number of retries.

    Raises:
        AwsServiceError: the service refused permanently, or at each attempt.
        AwsConnectionError: no answer came, each time.
        AwsCredentialsError: the credentials have expired, and no others can be fetched.
    """
    return await retry(lambda: client.call(operation, parameters), LOOKUP_BACKOFF)


LOOKUP_ERRORS = (AwsServiceError, AwsConnectionError, AwsCredentialsError)
"""Errors of a look-up with valid options."""


def lookup_failed(destination: str, error: AwsError, hint: str = "") -> DestinationError:
    """The error of a writer that cannot be opened because a look-up failed; `hint` says how to avoid the look-up."""
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
# What services answer while they create a stream.
_ABSENT_CODES = frozenset({"ResourceNotFoundException", "ResourceInUseException"})
_CREATING = "CREATING"
_LOOK_SECONDS = 1.0
_LOG_SECONDS = 60.0
# A request may be refused for some seconds after the service has said that the stream is there.
_SETTLING_SECONDS = 10.0
# How long refused credentials are retried: tokens are often replaced some seconds late.
_REFUSED_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of a service, and the defaults of its writers."""

    max_batch_size: int
    """Entries in a request."""
    max_batch_size_in_bytes: int
    """Bytes in a request."""
    max_record_size_in_bytes: int
    """Bytes in an entry."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Fields of `AsyncSinkConfig` that differ from the limits above, or from that class."""
    strategy: StrategyFactory = slow_start_strategy
    """How a writer finds its rate."""

    def config(self, options: Mapping[str, Any]) -> AsyncSinkConfig:
        """The limits of a writer; options that are not given have the service's values.

        Raises:
            SinkOptionError: an option is wrong, or above the service's limit.
        """
        limits = {"max_batch_size": self.max_batch_size, "max_batch_size_in_bytes": self.max_batch_size_in_bytes}
        config = AsyncSinkConfig(**{**limits, **self.defaults, **options})
        self.check(config)
        return config

    def check(self, config: AsyncSinkConfig) -> None:
        """Check that requests and entries are not larger than the service accepts.

        Raises:
            SinkOptionError: a limit is above the service's.
        """
        for name in ("max_batch_size", "max_batch_size_in_bytes", "max_record_size_in_bytes"):
            value, most = getattr(config, name), getattr(self, name)
            if value > most:
                raise SinkOptionError.out_of_bounds(name, value, "at most", most)


def code_and_message(error: BaseException) -> tuple[str, str]:
    """Code and message of an error, from the service if possible."""
    if isinstance(error, msgspec.MsgspecError):
        return UNREADABLE_ANSWER, f"the answer is not one of the service: {error}; look at the endpoint"
    return error_code(error) or type(error).__name__, getattr(error, "message", None) or str(error)


class RecordResult(msgspec.Struct):
    """The result of one record in an answer, in the order of the request."""

    error_code: str | None = msgspec.field(name="ErrorCode", default=None)
    error_message: str | None = msgspec.field(name="ErrorMessage", default=None)


_ZERO = re.compile(rb"\s*:\s*0\s*[,}]")


def is_success(answer: bytes, count_name: bytes, receipt_name: bytes, entry_count: int) -> bool:
    """Whether a JSON answer counts no failure and has a receipt for each entry; names include their quotation marks.

    The answer is not parsed. False for any other answer.
    """
    place = answer.find(count_name)
    return (
        place >= 0
        and _ZERO.match(answer, place + len(count_name)) is not None
        and answer.count(receipt_name) == entry_count
    )


def failures_by_place(
    operation: str,
    results: Sequence[RecordResult],
    entry_count: int,
    *,
    failed_count: int | None,
    throttle_codes: Collection[str] = (),
) -> list[EntryFailure]:
    """The entries that were not accepted. `throttle_codes` mean that the destination is full, besides the usual ones.

    Raises:
        ValueError: the answer has another number of records, or counts more failures than it names.
    """
    if len(results) != entry_count:
        raise ValueError(f"{operation} of {entry_count} records was answered for {len(results)}")
    failures = [
        EntryFailure(
            index,
            code,
            result.error_message or "",
            code in throttle_codes or classify_code(code) is ErrorKind.THROTTLED,
        )
        for index, result in enumerate(results)
        if (code := result.error_code)
    ]
    if failed_count is not None and failed_count > len(failures):
        raise ValueError(f"the answer of {operation} counts {failed_count} failures and names {len(failures)}")
    return failures


@dataclass(frozen=True, kw_only=True)
class ServiceApi:
    """How a service is called, and the meaning of its error codes."""

    service: str
    """As boto3 names it."""
    target_prefix: str
    """Prefix of the header X-Amz-Target."""
    json_version: str = "1.1"
    """Of AWS JSON."""
    kinds_of_codes: Mapping[str, ErrorKind] = field(default_factory=dict)
    """Kinds of this service's own codes; `penstock.aws` classifies others."""
    lookup_hint: str = ""
    """How to avoid `AwsDestination.learn`."""

    def kind_of(self, error: BaseException) -> ErrorKind:
        """The kind of an error of a whole request."""
        return self.kinds_of_codes.get(error_code(error) or "") or classify(error)


# Codes by which a whole request is refused because of one of its entries. The request is bisected to find it where
# a handler or listeners learn of abandoned entries; otherwise they fail the writer at once.
_POISON_CODES = frozenset(
    {
        "InvalidArgumentException",
        "ValidationException",
        # A table with local indexes returns it for an item whose collection is full.
        "ItemCollectionSizeLimitExceededException",
        # A FIFO queue returns it for a message without a group, or without an id or content to deduplicate by.
        "MissingParameter",
        "InvalidParameterValue",
    }
)


class AwsDestination(ABC, Generic[R]):
    """A stream, a queue or a table: its connection pool, the call that sends entries, and the meaning of errors.

    Each writer has its own.
    """

    api: ClassVar[ServiceApi]

    def __init__(self, aws: AwsOptions | AwsSession, name: str, kind: EntryKind[R]) -> None:
        self._aws = aws
        self.name = name
        """For messages and metrics."""
        self.kind = kind
        """Its kind of entries."""
        self._client: JsonClient | None = None
        self._bisects = False
        self._failed_in_a_row = 0
        self._next_warning = _FIRST_WARNING
        self._looking = asyncio.Lock()
        self._status: str | None = None
        self._looked_at = self._log_at = -math.inf
        self._settles_at: float | None = None
        self._was_accepted = False
        self._refused_since: float | None = None
        self._next_refusal_log = 0.0

    async def status(self, client: JsonClient) -> str | None:
        """The status of the destination, such as `CREATING`; None (the default) if it cannot be asked for.

        Raises:
            penstock.aws.AwsError: no answer came, or the service failed.
        """
        return None

    async def learn(self, client: JsonClient) -> None:
        """Ask the service for facts that writing needs; by default none."""

    @abstractmethod
    async def send(self, client: JsonClient, entries: Sequence[R], result_handler: ResultHandler[R]) -> None:
        """Send the entries with one call, and report failed entries and, if known, lanes (shards) to the handler.
        `kind_of` classifies errors that are raised."""

    async def open(self, writer: AsyncSinkWriter[Any, R]) -> None:
        """Open the connection pool, and learn facts about the destination.

        Waits up to `request_timeout` for a destination that is being created.

        Raises:
            DestinationError: the service does not describe the destination.
        """
        self._bisects = writer.gives_up_records
        # It reads configuration files, and looks up the endpoint.
        self._client = await asyncio.to_thread(self._make_client, writer.config.max_in_flight_requests)
        give_up_at = asyncio.get_running_loop().time() + writer.config.request_timeout.total_seconds()
        try:
            while True:
                try:
                    return await self.learn(self._client)
                except (AwsServiceError, AwsCredentialsError) as error:
                    if error.code in CREDENTIALS_REFUSED_CODES:
                        if self.kind_of(error) is ErrorKind.FATAL:
                            raise
                        await asyncio.sleep(_LOOK_SECONDS)
                        continue
                    is_over = asyncio.get_running_loop().time() >= give_up_at
                    if error.code not in _ABSENT_CODES or is_over or not await self._is_coming():
                        raise
        except LOOKUP_ERRORS as error:
            await self.close()
            raise lookup_failed(self.name, error, self.api.lookup_hint) from error
        except BaseException:
            await self.close()
            raise

    def _make_client(self, connections: int) -> JsonClient:
        api = self.api
        return JsonClient(
            self._aws if isinstance(self._aws, AwsSession) else AwsSession(self._aws),
            service=api.service,
            target_prefix=api.target_prefix,
            json_version=api.json_version,
            connections=connections,
        )

    async def close(self) -> None:
        """Close the connection pool."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def describe(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the service about the destination once, with the client that writes to it.

        Raises:
            penstock.aws.AwsError: the service refused, or no answer came.
        """
        assert self._client is not None
        return await self._client.call(operation, parameters)

    async def submit(self, entries: Sequence[R], result_handler: ResultHandler[R]) -> None:
        """Send the entries. Entries that were not accepted are sent again.

        Raises:
            DestinationError: the service refused the request permanently.
        """
        assert self._client is not None
        try:
            await self.send(self._client, entries, result_handler)
        except Exception as error:
            failure = await self._failure(error, len(entries), result_handler)
            result_handler.retry_failures([replace(failure, index=place) for place in range(len(entries))])
        else:
            self._failed_in_a_row, self._next_warning = 0, _FIRST_WARNING
            self._settles_at = self._refused_since = None
            self._was_accepted = True

    def kind_of(self, error: Exception) -> ErrorKind:
        """The kind of an error of a whole request.

        Refused credentials may soon be replaced, so the refusal is retryable for a minute, unless the credentials are
        fixed.
        """
        code = getattr(error, "code", "")
        if code not in CREDENTIALS_REFUSED_CODES or not isinstance(error, AwsServiceError | AwsCredentialsError):
            return self.api.kind_of(error)
        if isinstance(error, AwsCredentialsError):
            may_pass = error.is_retryable
        else:
            assert self._client is not None
            is_known = code in EXPIRED_CODES or self._was_accepted
            may_pass = is_known and not self._client.session.has_fixed_credentials
        now = asyncio.get_running_loop().time()
        if self._refused_since is None:
            self._refused_since = self._next_refusal_log = now
        if not may_pass or now - self._refused_since >= _REFUSED_SECONDS:
            return ErrorKind.FATAL
        if now >= self._next_refusal_log:
            # After 0, 1, 3, 7 seconds and so on.
            self._next_refusal_log = now + (now - self._refused_since) + 1.0
            _logger.warning(
                "%s: the credentials are refused; requests are sent again with others, for up to %g s: %s",
                self.name,
                _REFUSED_SECONDS,
                error,
            )
        return ErrorKind.RETRYABLE

    async def _failure(self, error: Exception, entries: int, result_handler: ResultHandler[R]) -> EntryFailure:
        """The failure of each entry of a failed request.

        Raises:
            DestinationError: the service refused the request permanently.
        """
        kind, (code, message) = self.kind_of(error), code_and_message(error)
        if code in _ABSENT_CODES and await self._is_coming():
            return EntryFailure(0, code, f"{self.name} is {self._status}: {message}", throttled=False, counts=False)
        if code in _POISON_CODES and (self._bisects or result_handler.has_listeners):
            return EntryFailure(0, code, message, throttled=False, spoilt=True)
        if kind is ErrorKind.FATAL:
            first = result_handler.first_record_number
            raise DestinationError(self.name, code, message, entries=entries, first_record_number=first) from error
        throttled = kind is ErrorKind.THROTTLED
        if not throttled and self._refused_since is None:
            self._warn_of(code, message)
        # An attempt with refused credentials does not count: nothing was submitted.
        counts = not isinstance(error, AwsCredentialsError) and code not in CREDENTIALS_REFUSED_CODES
        return EntryFailure(0, code, message, throttled, counts=counts)

    async def send_in_parts(
        self,
        parts: Iterable[Sequence[int]],
        call: Callable[[Sequence[int]], Awaitable[Iterable[EntryFailure]]],
        failures: dict[int, EntryFailure],
        entries: int,
        result_handler: ResultHandler[R],
    ) -> None:
        """Send a batch in consecutive requests, so that an error affects only the entries of its own request.

        A part contains the places of its entries in the batch; the next part is taken when the previous one is settled.
        `call` sends a part and returns its failures. `failures` has every failure so far, by place; the caller adds the
        places that it does not send. Errors are raised until a part was answered.
        """
        answered = set[int]()
        for part in parts:
            try:
                refused = await call(part)
            except Exception as error:
                if not answered:
                    raise
                try:
                    failure = await self._failure(error, entries, result_handler)
                except DestinationError as fatal:
                    left = [place for place in range(entries) if place in failures or place not in answered]
                    result_handler.complete_exceptionally(fatal, places=left)
                    return
                refused = [replace(failure, index=place) for place in part]
            failures.update((failure.index, failure) for failure in refused)
            answered.update(part)
        result_handler.retry_failures([failures[place] for place in sorted(failures)])

    async def _is_coming(self) -> bool:
        """Whether the destination is being created, or was created moments ago. Waits for a second if so."""
        assert self._client is not None
        loop = asyncio.get_running_loop()
        # Requests that were refused at the same time share one look-up.
        async with self._looking:
            if loop.time() - self._looked_at >= _LOOK_SECONDS:
                # An outage does not end the wait.
                with suppress(AwsError):
                    self._status = await self.status(self._client)
                self._looked_at = loop.time()
        if self._status is None:
            return False
        now = loop.time()
        if self._status == _CREATING and now >= self._log_at:
            self._log_at = now + _LOG_SECONDS
            _logger.warning("%s is %s: its records wait until it is ACTIVE", self.name, self._status)
        if self._status == _CREATING or self._settles_at is None:
            self._settles_at = now + _SETTLING_SECONDS
        if self._status == "DELETING" or now >= self._settles_at:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
        return True

    def _warn_of(self, code: str, message: str) -> None:
        # Without a limit of attempts, a wrong endpoint would be retried silently.
        self._failed_in_a_row += 1
        if self._failed_in_a_row < self._next_warning:
            return
        self._next_warning *= _MORE
        _logger.warning(
            "%s: %d requests in a row failed and are sent again (max_attempts and time_to_live would bound that), "
            "the latest with %s: %s",
            self.name,
            self._failed_in_a_row,
            code,
            message,
        )


class SinkOptions(TypedDict, Generic[I, R], total=False):
    """Options of all sinks for AWS services."""

    converter: ElementConverter[I, R] | Callable[[I], R] | None
    """Converts elements to entries. Default: elements are entries."""
    config: AsyncSinkConfig | None
    """The limits of the writers. Default: the limits of the service."""
    strategy: StrategyFactory | None
    """Makes the rate limiting strategy of each writer."""
    terminal: Callable[[], TerminalRecordHandler] | None
    """Makes the handler of each writer for records that cannot be written. Default: such records end the writer."""


class AwsSink(AsyncSinkBase[I, R]):
    """Base of the sinks for AWS services. Each writer has its own connection pool and rate limit."""

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        make: Callable[[AwsOptions | AwsSession], AwsDestination[R]],
        limits: ServiceLimits,
        *,
        converter: ElementConverter[I, R] | Callable[[I], R] | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: StrategyFactory | None = None,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """`make` creates the destination of each writer from the session or its options; it is pickled with the sink.

        Raises:
            AwsOptionError: `aws` is neither `AwsOptions` nor an `AwsSession`.
            SinkOptionError: an option has the wrong type, or a limit is above the service's.
        """
        self._aws = aws if isinstance(aws, AwsSession) else AwsOptions.of(aws)
        self._make = make
        if config is not None:
            of_type("config", config, AsyncSinkConfig)
        for name, factory in (("strategy", strategy), ("terminal", terminal)):
            if factory is not None and not callable(factory):
                reason = f"must be a function that makes one for each writer, not {type(factory).__name__}"
                raise SinkOptionError(name, reason)
        self._config = config or limits.config({})
        limits.check(self._config)
        self._strategy = strategy or limits.strategy
        self._converter = converter
        self._terminal = terminal

    def create_writer(self) -> DestinationWriter[I, R]:
        """A writer with an empty buffer."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[R]]) -> DestinationWriter[I, R]:
        """A writer that starts with the entries of saved states.

        Raises:
            RecordError: an entry is larger than the limit.
        """
        return DestinationWriter(
            self._make(self._aws),
            self._config,
            converter=self._converter,
            strategy=self._strategy(self._config),
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
        )


def named(option: str, name: str) -> str:
    """The name.

    Raises:
        SinkOptionError: the name is empty, or not a string.
    """
    of_type(option, name, str)
    if not name:
        raise SinkOptionError(option, "must not be empty")
    return name


def of_type(option: str, value: object, kind: type) -> None:
    """Check the type of an option early.

    Raises:
        SinkOptionError: it has another type.
    """
    if not isinstance(value, kind):
        raise SinkOptionError(option, f"must be {kind.__name__}, not {type(value).__name__}")
