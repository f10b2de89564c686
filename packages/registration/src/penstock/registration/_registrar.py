"""Looking up, registering and deregistering stream consumers with Kinesis."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from opentelemetry import trace

from penstock.aws import (
    AwsCalls,
    AwsError,
    AwsOptionError,
    AwsServiceError,
    AwsSession,
    BackoffPolicy,
    ErrorKind,
    JsonClient,
    classify,
    error_code,
    retry,
)
from penstock.registration._times import Clock, RegistrarConfig, elapsed_seconds
from penstock.registration._values import is_arn
from penstock.registration.errors import (
    ConsumerNotFoundError,
    RegistrationError,
    RegistrationOptionError,
    RegistryUnavailableError,
    StreamNotFoundError,
)

_RETRIES: Final = BackoffPolicy(max_attempts=11)
"""Retries of each call by FLIP-128's defaults; also pauses between looks at a consumer, and the lazy stagger."""
NOT_FOUND: Final = frozenset({"ResourceNotFoundException"})
_DENIED: Final = frozenset(
    {
        "AccessDeniedException",
        "AccessDenied",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "IncompleteSignature",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "OptInRequired",
        "ExpiredToken",
        "ExpiredTokenException",
    }
)
_INVALID: Final = frozenset({"InvalidArgumentException", "ValidationException", "ValidationError"})


def typed_error(error: BaseException, operation: str, subject: str) -> RegistrationError:
    """The error of this package for an error of a call. `subject`: the name or ARN that the call was about."""
    code = error_code(error)
    message = error.message if isinstance(error, AwsServiceError) else str(error)
    if code is None:
        if isinstance(error, AwsOptionError):
            return RegistrationOptionError(option=error.option, reason=error.reason)
        if classify(error) is ErrorKind.FATAL:
            return RegistrationError.of(
                "REGISTRATION_FAILED", operation=operation, error=type(error).__name__, reason=message
            )
        return RegistryUnavailableError(where="Kinesis", reason=f"{operation}: {message}")
    if code in NOT_FOUND:
        return ConsumerNotFoundError(stream_name="", consumer_name=subject)
    if code in _DENIED:
        return RegistrationError.of("REGISTRATION_DENIED", operation=operation, reason=f"{code}: {message}")
    if code in _INVALID:
        # The client may refuse it before it is sent, for example an empty name.
        return RegistrationOptionError(option=subject or "name", reason=message)
    if classify(error) is not ErrorKind.FATAL:
        return RegistryUnavailableError(where="Kinesis", reason=f"{operation}: {code}: {message}")
    return RegistrationError.of("REGISTRATION_FAILED", operation=operation, error=code, reason=message)


_CALLS_PER_SECOND: Final = MappingProxyType(
    {
        "register_stream_consumer": (5, False),
        "deregister_stream_consumer": (5, True),
        "list_stream_consumers": (5, True),
        "describe_stream_consumer": (20, True),
        "describe_stream_summary": (20, False),
    }
)
"""Calls per second, and whether the limit applies per stream (else per account), by the API reference."""
_MARGIN: Final = 1.1
"""Calls may arrive closer together than they were sent."""
_BURST_SHARE: Final = 0.2
"""The share of a second's calls that may be sent at once: one of five, four of twenty."""


class CallPace:
    """Keeps the calls of a process below Kinesis's limits, evenly spaced.

    Other processes call, too: calls that are throttled nevertheless are retried with back-off.
    """

    def __init__(self) -> None:
        # Per operation and stream: when the next evenly spaced call would be due.
        self._due: dict[tuple[str, str], float] = {}
        self._asked_at = float("-inf")

    def reserve(self, operation: str, stream: str, now: float) -> float:
        """Reserve the next call. Returns the seconds to wait before it; 0 if it can be sent now."""
        if operation not in _CALLS_PER_SECOND:
            return 0.0
        limit, of_stream = _CALLS_PER_SECOND[operation]
        self._forget(now)
        distance = _MARGIN / limit
        key = (operation, stream if of_stream else "")
        due = max(now, self._due.get(key, now))
        self._due[key] = due + distance
        at_once = max(1, int(limit * _BURST_SHARE))
        return max(0.0, due - (at_once - 1) * distance - now)

    def _forget(self, now: float) -> None:
        """Forget calls that are due by now, and all calls if the clock was set back."""
        if now < self._asked_at:
            self._due.clear()
        self._asked_at = now
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]


_CREATING_AT_ONCE: Final = 5
"""Consumers in CREATING at once (API reference)."""


class AwsClients(Protocol):
    """Makes clients: `penstock.aws.AwsSession`, or a fake."""

    def aio_client(self, service_name: str) -> AwsCalls:
        """A client of the service."""
        ...


class KinesisCalls:
    """Sends calls with the client that reads records: importing aiobotocore takes half a second at query start."""

    def __init__(self, session: AwsSession) -> None:
        self._client = JsonClient(session)

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """See `AwsCalls.call`."""
        return await self._client.call("".join(map(str.capitalize, operation.split("_"))), parameters)

    async def close(self) -> None:
        """See `AwsCalls.close`."""
        await self._client.close()


@dataclass(frozen=True, kw_only=True)
class FoundConsumer:
    """A consumer as Kinesis describes it."""

    name: str
    arn: str
    status: str
    """CREATING, ACTIVE or DELETING."""


@dataclass(frozen=True, kw_only=True)
class FoundStream:
    """A stream as Kinesis describes it."""

    arn: str
    open_shards: int
    is_on_demand: bool


@dataclass(frozen=True, kw_only=True)
class RegisteredConsumer:
    """An ACTIVE consumer."""

    arn: str
    made: bool
    """Whether this call made the registration; False when it was there already."""


async def _go_on() -> bool:
    """Register without asking first."""
    return True


async def _nothing() -> None:
    """Ignore that Kinesis refused."""


class StreamConsumerRegistrar:
    """Looks up, registers and deregisters stream consumers, as FLIP-128 has it, below Kinesis's limits.

    Retryable errors are retried up to 10 times with FLIP-128's back-off; the last one is raised as an error of this
    package.
    """

    def __init__(
        self,
        kinesis: AwsCalls,
        config: RegistrarConfig | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        clock: Clock = elapsed_seconds,
    ) -> None:
        self._kinesis = kinesis
        self._config = config or RegistrarConfig()
        self._sleep = sleep
        self._random = random
        self._clock = clock
        self._pace = CallPace()
        self._stream_arns: dict[str, str] = {}
        self._looking_up: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tracer = trace.get_tracer("penstock.registration")
        self._creating = asyncio.Semaphore(_CREATING_AT_ONCE)

    def longest_seconds(self, config: RegistrarConfig | None) -> float:
        """How long a registration may take at most, the end of an older one included. `config`: the request's own."""
        return ((config or self._config).register_timeout + self._config.deregister_timeout).total_seconds()

    async def find_stream_arn(self, stream_name: str) -> str:
        """The stream's ARN, asked once per name, however many ask at once. An ARN is its own.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        if is_arn(stream_name):
            return stream_name
        async with self._looking_up.setdefault(stream_name, asyncio.Lock()):
            if stream_name not in self._stream_arns:
                self._stream_arns[stream_name] = (await self.describe_stream(stream_name)).arn
            return self._stream_arns[stream_name]

    async def describe_stream(self, stream_name: str) -> FoundStream:
        """The stream as it is now. By its name or, across accounts, by its ARN.

        Raises:
            StreamNotFoundError: the stream does not exist.
        """
        which = "StreamARN" if is_arn(stream_name) else "StreamName"
        try:
            answer = await self._call("describe_stream_summary", **{which: stream_name})
        except ConsumerNotFoundError as error:
            raise StreamNotFoundError(stream_name=stream_name) from error
        summary = answer["StreamDescriptionSummary"]
        return FoundStream(
            arn=summary["StreamARN"],
            open_shards=summary.get("OpenShardCount", 0),
            is_on_demand=summary.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND",
        )

    async def find(
        self, stream_name: str, consumer_name: str, *, stream_arn: str | None = None
    ) -> FoundConsumer | None:
        """The consumer in any state; None if no consumer has that name."""
        stream_arn = stream_arn or await self.find_stream_arn(stream_name)
        try:
            answer = await self._call("describe_stream_consumer", StreamARN=stream_arn, ConsumerName=consumer_name)
        except ConsumerNotFoundError:
            return None
        return _found(answer["ConsumerDescription"])

    async def list_consumers(self, stream_arn: str) -> list[FoundConsumer]:
        """All consumers of the stream, in the order of the answer."""
        consumers: list[FoundConsumer] = []
        page: dict[str, str] = {}
        while True:
            answer = await self._call("list_stream_consumers", StreamARN=stream_arn, **page)
            consumers += map(_found, answer["Consumers"])
            if not answer.get("NextToken"):
                return consumers
            page = {"NextToken": answer["NextToken"]}

    async def register(
        self,
        stream_name: str,
        consumer_name: str,
        *,
        stream_arn: str | None = None,
        config: RegistrarConfig | None = None,
        stagger: bool = True,
        before_register: Callable[[], Awaitable[bool]] = _go_on,
        on_refused: Callable[[], Awaitable[None]] = _nothing,
    ) -> RegisteredConsumer:
        """Return the consumer of that name, ACTIVE; registered now if there was none.

        With `stagger` it first waits a random part of the back-off's base, so that tasks that start together do not all
        call at once. `before_register` is awaited right before RegisterStreamConsumer. If it returns False, because
        another registry is about to register, the consumer is looked up again instead. `on_refused` is awaited when
        Kinesis has certainly not registered the consumer.

        Raises:
            StreamNotFoundError, RegistrationOptionError,
            RegistryUnavailableError: of the calls, after their retries.
            RegistrationError: REGISTRATION_DENIED, CONSUMER_LIMIT, REGISTRATION_FAILED of the calls;
                REGISTRATION_TIMEOUT: not ACTIVE within the `register_timeout` of `config`, or else the registrar's own.
        """
        attributes = {"aws.kinesis.stream_name": stream_name, "penstock.consumer_name": consumer_name}
        with self._tracer.start_as_current_span("registration.register", attributes=attributes) as span:
            if stagger:
                await self._sleep(_RETRIES.delay_seconds(0, self._random))
            stream_arn = stream_arn or await self.find_stream_arn(stream_name)
            found = await self.find(stream_name, consumer_name, stream_arn=stream_arn)
            if found is not None and found.status == "ACTIVE":
                consumer = RegisteredConsumer(arn=found.arn, made=False)
            else:
                # Kinesis limits how many consumers are in CREATING.
                async with self._creating:
                    timeout = (config or self._config).register_timeout
                    give_up = self._deadline(timeout, f"{consumer_name!r} of {stream_name!r}", "ACTIVE")
                    consumer = await self._bring_active(
                        stream_name, consumer_name, stream_arn, found, give_up, before_register, on_refused
                    )
            span.set_attribute("penstock.registration_made", consumer.made)
            return consumer

    async def deregister(self, consumer_arn: str) -> None:
        """End the registration and wait until it is gone. A missing consumer is not an error.

        The ARN contains the creation time, so that a newer consumer of the same name is never deregistered.

        Raises:
            RegistryUnavailableError: after the retries.
            RegistrationError: REGISTRATION_DENIED, REGISTRATION_FAILED; REGISTRATION_TIMEOUT: not gone within
                `deregister_timeout`.
        """
        give_up = self._deadline(self._config.deregister_timeout, consumer_arn, "gone")
        attempt = 0
        asked = False
        try:
            while True:
                if not asked:
                    asked = await self._deregister_once(consumer_arn)
                await self._call("describe_stream_consumer", ConsumerARN=consumer_arn)
                give_up()
                await self._sleep(_RETRIES.delay_seconds(attempt, self._random))
                attempt += 1
        except ConsumerNotFoundError:
            return

    async def close(self) -> None:
        """Close the connections."""
        await self._kinesis.close()

    async def _bring_active(
        self,
        stream_name: str,
        consumer_name: str,
        stream_arn: str,
        found: FoundConsumer | None,
        give_up: Callable[[], None],
        before_register: Callable[[], Awaitable[bool]],
        on_refused: Callable[[], Awaitable[None]],
    ) -> RegisteredConsumer:
        made = False
        attempt = 0
        while found is None or found.status != "ACTIVE":
            if found is None:
                if await before_register():
                    # A new consumer may not be visible yet, and then blocks a second registration: it is still ours.
                    made = await self._register_once(stream_name, consumer_name, stream_arn, on_refused) or made
            elif found.status == "DELETING":
                # A consumer that is being deleted was not made here: the next one has another ARN.
                made = False
            give_up()
            await self._sleep(_RETRIES.delay_seconds(attempt, self._random))
            attempt += 1
            found = await self.find(stream_name, consumer_name, stream_arn=stream_arn)
        return RegisteredConsumer(arn=found.arn, made=made)

    async def _register_once(
        self, stream_name: str, consumer_name: str, stream_arn: str, on_refused: Callable[[], Awaitable[None]]
    ) -> bool:
        """Call RegisterStreamConsumer. Returns False when another caller was faster."""
        unanswered = False

        async def call() -> bool:
            nonlocal unanswered
            try:
                await self._attempt("register_stream_consumer", StreamARN=stream_arn, ConsumerName=consumer_name)
            except Exception as error:
                if error_code(error) == "ResourceInUseException":
                    # An earlier attempt whose answer was lost may have registered it.
                    return unanswered
                unanswered = unanswered or classify(error) is ErrorKind.RETRYABLE
                raise
            return True

        try:
            return await retry(call, _RETRIES, sleep=self._sleep, random=self._random)
        except AwsError as error:
            if not unanswered:
                await on_refused()
            if error_code(error) == "LimitExceededException":
                existing = [consumer.name for consumer in await self.list_consumers(stream_arn)]
                raise RegistrationError.of(
                    "CONSUMER_LIMIT",
                    stream_name=stream_name,
                    consumer_name=consumer_name,
                    existing=existing,
                    ours_and_idle=[],
                ) from error
            if error_code(error) in NOT_FOUND:
                raise StreamNotFoundError(stream_name=stream_name) from error
            raise typed_error(error, "RegisterStreamConsumer", consumer_name) from error

    async def _deregister_once(self, consumer_arn: str) -> bool:
        """Call DeregisterStreamConsumer. Returns False when the consumer's state does not allow it yet."""
        try:
            await self._call("deregister_stream_consumer", ConsumerARN=consumer_arn)
        except Exception as error:
            if error.__cause__ is not None and error_code(error.__cause__) == "ResourceInUseException":
                return False
            raise
        return True

    def _deadline(self, timeout: timedelta, consumer: str, state: str) -> Callable[[], None]:
        deadline = self._clock() + timeout.total_seconds()

        def give_up() -> None:
            if self._clock() >= deadline:
                raise RegistrationError.of(
                    "REGISTRATION_TIMEOUT", consumer=consumer, state=state, timeout_seconds=timeout.total_seconds()
                )

        return give_up

    async def _attempt(self, operation: str, **parameters: Any) -> Any:
        """Make one call when it is its turn. Raises errors of `penstock.aws`."""
        subject = str(parameters.get("StreamARN") or parameters.get("ConsumerARN") or "")
        seconds = self._pace.reserve(operation, subject.partition("/consumer/")[0], self._clock())
        if seconds > 0:
            await self._sleep(seconds)
        return await self._kinesis.call(operation, **parameters)

    async def _call(self, operation: str, **parameters: Any) -> Any:
        try:
            return await retry(
                lambda: self._attempt(operation, **parameters),
                _RETRIES,
                sleep=self._sleep,
                random=self._random,
            )
        except AwsError as error:
            raise typed_error(error, operation, str(next(iter(reversed(parameters.values()))))) from error


def _found(description: Mapping[str, Any]) -> FoundConsumer:
    return FoundConsumer(
        name=description["ConsumerName"], arn=description["ConsumerARN"], status=description["ConsumerStatus"]
    )
