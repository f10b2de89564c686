"""Registering and deregistering stream consumers with Kinesis."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError
from opentelemetry import trace

from penstock.aws import AwsError, ErrorKind, classify, error_code, retry
from penstock.registration._clock import Clock, elapsed_seconds
from penstock.registration._config import RegistrarConfig
from penstock.registration._kinesis_errors import NOT_FOUND, typed_error
from penstock.registration._threads import DaemonThreads
from penstock.registration.errors import (
    ConsumerLimitError,
    ConsumerNotFoundError,
    RegistrationTimeoutError,
    StreamNotFoundError,
)

_THREADS = 8


class AwsClients(Protocol):
    """What gives clients: `penstock.aws.AwsSession`, or a fake."""

    def client(self, service_name: str) -> Any:
        """A boto3 client, usable from several threads."""
        ...


@dataclass(frozen=True, kw_only=True)
class FoundConsumer:
    """A consumer as Kinesis describes it."""

    arn: str
    status: str
    """CREATING, ACTIVE or DELETING."""


@dataclass(frozen=True, kw_only=True)
class RegisteredConsumer:
    """An ACTIVE consumer."""

    arn: str
    made: bool
    """Whether this call made the registration; False when it was there already."""


async def _nothing() -> None:
    """Nobody wants to know."""


class StreamConsumerRegistrar:
    """Registers a consumer with a stream, as FLIP-128 has it, and ends it again.

    Calls to Kinesis are rare here, and made by boto3 in daemon threads. Retryable errors are retried as the config
    says; the last one is raised as an error of this package.
    """

    def __init__(
        self,
        session: AwsClients,
        config: RegistrarConfig | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        clock: Clock = elapsed_seconds,
    ) -> None:
        self._session = session
        self._config = config or RegistrarConfig()
        self._sleep = sleep
        self._random = random
        self._clock = clock
        self._threads = DaemonThreads(_THREADS, name="penstock registrar")
        self._tracer = trace.get_tracer("penstock.registration")
        self._stream_arns: dict[str, str] = {}

    @property
    def longest_seconds(self) -> float:
        """How long a registration may take at most, the end of an older one included."""
        return (self._config.register_timeout + self._config.deregister_timeout).total_seconds()

    async def find_stream_arn(self, stream_name: str) -> str:
        """The stream's ARN, asked once per name.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        if stream_name not in self._stream_arns:
            try:
                answer = await self._call("list", "describe_stream_summary", StreamName=stream_name)
            except ConsumerNotFoundError as error:
                raise StreamNotFoundError(stream_name=stream_name) from error
            self._stream_arns[stream_name] = answer["StreamDescriptionSummary"]["StreamARN"]
        return self._stream_arns[stream_name]

    async def find(
        self, stream_name: str, consumer_name: str, *, stream_arn: str | None = None
    ) -> FoundConsumer | None:
        """The consumer in whatever state it is; None when there is none of that name."""
        stream_arn = stream_arn or await self.find_stream_arn(stream_name)
        try:
            answer = await self._call(
                "list", "describe_stream_consumer", StreamARN=stream_arn, ConsumerName=consumer_name
            )
        except ConsumerNotFoundError:
            return None
        found = answer["ConsumerDescription"]
        return FoundConsumer(arn=found["ConsumerARN"], status=found["ConsumerStatus"])

    async def register(
        self,
        stream_name: str,
        consumer_name: str,
        *,
        stream_arn: str | None = None,
        stagger: bool = True,
        before_register: Callable[[], Awaitable[None]] = _nothing,
    ) -> RegisteredConsumer:
        """Return the consumer of that name, ACTIVE; registered now if there was none.

        First waits a random part of the register back-off's base (`stagger`), so that tasks that start together do
        not all ask at once. `before_register` is awaited right before Kinesis is asked to register.

        Raises:
            StreamNotFoundError, RegistrationDeniedError, ConsumerLimitError, InvalidRequestError,
            RegistrationFailedError, RegistryUnavailableError: of the calls, after their retries.
            RegistrationTimeoutError: not ACTIVE within `register_timeout`.
        """
        attributes = {"aws.kinesis.stream_name": stream_name, "penstock.consumer_name": consumer_name}
        with self._tracer.start_as_current_span("registration.register", attributes=attributes) as span:
            if stagger:
                await self._sleep(self._config.policy("register").delay_seconds(0, self._random))
            stream_arn = stream_arn or await self.find_stream_arn(stream_name)
            made = False
            give_up = self._deadline(self._config.register_timeout, f"{consumer_name!r} of {stream_name!r}", "ACTIVE")
            attempt = 0
            while True:
                found = await self.find(stream_name, consumer_name, stream_arn=stream_arn)
                if found is None:
                    await before_register()
                    made = await self._register_once(stream_name, consumer_name, stream_arn)
                elif found.status == "ACTIVE":
                    span.set_attribute("penstock.registration_made", made)
                    return RegisteredConsumer(arn=found.arn, made=made)
                elif found.status == "DELETING":
                    # What is going away is nobody's: the one that comes after it has another ARN.
                    made = False
                give_up()
                await self._sleep(self._config.policy("list").delay_seconds(attempt, self._random))
                attempt += 1

    async def _register_once(self, stream_name: str, consumer_name: str, stream_arn: str) -> bool:
        """Ask Kinesis to register. Returns False when somebody else was faster."""
        unanswered = False

        async def call() -> bool:
            nonlocal unanswered
            try:
                await self._threads.run(
                    lambda: self._client().register_stream_consumer(StreamARN=stream_arn, ConsumerName=consumer_name)
                )
            except Exception as error:
                if error_code(error) == "ResourceInUseException":
                    # An attempt that got no answer may well have been the one that registered it.
                    return unanswered
                unanswered = unanswered or classify(error) is ErrorKind.RETRYABLE
                raise
            return True

        try:
            return await retry(call, self._config.policy("register"), sleep=self._sleep, random=self._random)
        except (AwsError, BotoCoreError, ClientError, OSError) as error:
            if error_code(error) == "LimitExceededException":
                existing = await self.list_names(stream_arn)
                raise ConsumerLimitError(
                    stream_name=stream_name, consumer_name=consumer_name, existing=existing
                ) from error
            if error_code(error) in NOT_FOUND:
                raise StreamNotFoundError(stream_name=stream_name) from error
            raise typed_error(error, "RegisterStreamConsumer", consumer_name) from error

    async def list_names(self, stream_arn: str) -> list[str]:
        """Names of all consumers of the stream, in the order of the answer."""
        names: list[str] = []
        page: dict[str, str] = {}
        while True:
            answer = await self._call("list", "list_stream_consumers", StreamARN=stream_arn, **page)
            names += [consumer["ConsumerName"] for consumer in answer["Consumers"]]
            if not answer.get("NextToken"):
                return names
            page = {"NextToken": answer["NextToken"]}

    async def deregister(self, consumer_arn: str) -> None:
        """End the registration and wait until it is gone. One that is gone already is no error.

        By ARN: it holds the creation time, so that a newer consumer of the same name is never hit.

        Raises:
            RegistrationDeniedError, RegistrationFailedError, RegistryUnavailableError: after the retries.
            RegistrationTimeoutError: not gone within `deregister_timeout`.
        """
        give_up = self._deadline(self._config.deregister_timeout, consumer_arn, "gone")
        attempt = 0
        asked = False
        try:
            while True:
                if not asked:
                    asked = await self._deregister_once(consumer_arn)
                await self._call("list", "describe_stream_consumer", ConsumerARN=consumer_arn)
                give_up()
                await self._sleep(self._config.policy("list").delay_seconds(attempt, self._random))
                attempt += 1
        except ConsumerNotFoundError:
            return

    async def _deregister_once(self, consumer_arn: str) -> bool:
        """Ask Kinesis to deregister. Returns False when the consumer is in a state that does not allow it yet."""
        try:
            await self._call("deregister", "deregister_stream_consumer", ConsumerARN=consumer_arn)
        except Exception as error:
            if error.__cause__ is not None and error_code(error.__cause__) == "ResourceInUseException":
                return False
            raise
        return True

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    def _client(self) -> Any:
        return self._session.client("kinesis")

    async def _call(self, policy: str, operation: str, **parameters: Any) -> Any:
        def call_now() -> Any:
            return getattr(self._client(), operation)(**parameters)

        try:
            return await retry(
                lambda: self._threads.run(call_now),
                self._config.policy(policy),
                sleep=self._sleep,
                random=self._random,
            )
        except (AwsError, BotoCoreError, ClientError, OSError) as error:
            subject = str(next(iter(reversed(parameters.values()))))
            raise typed_error(error, operation, subject) from error

    def _deadline(self, timeout: timedelta, consumer: str, state: str) -> Callable[[], None]:
        deadline = self._clock() + timeout.total_seconds()

        def give_up() -> None:
            if self._clock() >= deadline:
                raise RegistrationTimeoutError(consumer=consumer, state=state, timeout_seconds=timeout.total_seconds())

        return give_up
