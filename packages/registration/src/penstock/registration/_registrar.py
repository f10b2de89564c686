"""Registering and deregistering stream consumers with Kinesis."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Final, Self

from opentelemetry import trace

from penstock.aws import AwsError, ErrorKind, classify, error_code, retry
from penstock.registration._clock import Clock, elapsed_seconds
from penstock.registration._config import RegistrarConfig
from penstock.registration._kinesis_errors import NOT_FOUND, typed_error
from penstock.registration._lookups import AwsClients, FoundConsumer, KinesisLookups
from penstock.registration.errors import (
    ConsumerLimitError,
    ConsumerNotFoundError,
    RegistrationTimeoutError,
    StreamNotFoundError,
)

_CREATING_AT_ONCE: Final = 5
"""Consumers in CREATING at once (API reference)."""


@dataclass(frozen=True, kw_only=True)
class RegisteredConsumer:
    """An ACTIVE consumer."""

    arn: str
    made: bool
    """Whether this call made the registration; False when it was there already."""


async def _go_on() -> bool:
    """Nobody wants to know."""
    return True


async def _nothing() -> None:
    """Nobody wants to know."""


class StreamConsumerRegistrar(KinesisLookups):
    """Registers a consumer with a stream, as FLIP-128 has it, and ends it again."""

    def __init__(
        self,
        session: AwsClients,
        config: RegistrarConfig | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
        clock: Clock = elapsed_seconds,
    ) -> None:
        super().__init__(session, config, sleep=sleep, random=random, clock=clock)
        self._tracer = trace.get_tracer("penstock.registration")
        self._creating = asyncio.Semaphore(_CREATING_AT_ONCE)

    @property
    def longest_seconds(self) -> float:
        """How long a registration may take at most, the end of an older one included."""
        return (self._config.register_timeout + self._config.deregister_timeout).total_seconds()

    def configured(self, config: RegistrarConfig | None) -> Self:
        """The same registrar, with the retries and times of a request; those of deregistering stay its own."""
        if config is None:
            return self
        asked = {one.name: getattr(config, one.name) for one in fields(config) if not one.name.startswith("dereg")}
        same = copy(self)
        same._config = replace(self._config, **asked)
        return same

    async def register(
        self,
        stream_name: str,
        consumer_name: str,
        *,
        stream_arn: str | None = None,
        stagger: bool = True,
        before_register: Callable[[], Awaitable[bool]] = _go_on,
        on_refused: Callable[[], Awaitable[None]] = _nothing,
    ) -> RegisteredConsumer:
        """Return the consumer of that name, ACTIVE; registered now if there was none.

        First waits a random part of the register back-off's base (`stagger`), so that tasks that start together do
        not all ask at once. `before_register` is awaited right before Kinesis is asked to register; when it says no,
        because somebody else is about to, Kinesis is looked at again instead. `on_refused` is awaited when Kinesis has
        certainly not registered anything.

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
            found = await self.find(stream_name, consumer_name, stream_arn=stream_arn)
            if found is not None and found.status == "ACTIVE":
                consumer = RegisteredConsumer(arn=found.arn, made=False)
            else:
                # Kinesis takes no more than a few at a time in CREATING.
                async with self._creating:
                    consumer = await self._bring_active(
                        stream_name, consumer_name, stream_arn, found, before_register, on_refused
                    )
            span.set_attribute("penstock.registration_made", consumer.made)
            return consumer

    async def _bring_active(
        self,
        stream_name: str,
        consumer_name: str,
        stream_arn: str,
        found: FoundConsumer | None,
        before_register: Callable[[], Awaitable[bool]],
        on_refused: Callable[[], Awaitable[None]],
    ) -> RegisteredConsumer:
        give_up = self._deadline(self._config.register_timeout, f"{consumer_name!r} of {stream_name!r}", "ACTIVE")
        made = False
        attempt = 0
        while found is None or found.status != "ACTIVE":
            if found is None:
                if await before_register():
                    # What was just made may not be shown yet, and is in the way of a second registration: still ours.
                    made = await self._register_once(stream_name, consumer_name, stream_arn, on_refused) or made
            elif found.status == "DELETING":
                # What is going away is nobody's: the one that comes after it has another ARN.
                made = False
            give_up()
            await self._sleep(self._config.policy("list").delay_seconds(attempt, self._random))
            attempt += 1
            found = await self.find(stream_name, consumer_name, stream_arn=stream_arn)
        return RegisteredConsumer(arn=found.arn, made=made)

    async def _register_once(
        self, stream_name: str, consumer_name: str, stream_arn: str, on_refused: Callable[[], Awaitable[None]]
    ) -> bool:
        """Ask Kinesis to register. Returns False when somebody else was faster."""
        unanswered = False

        async def call() -> bool:
            nonlocal unanswered
            try:
                await self._attempt("register_stream_consumer", StreamARN=stream_arn, ConsumerName=consumer_name)
            except Exception as error:
                if error_code(error) == "ResourceInUseException":
                    # An attempt that got no answer may well have been the one that registered it.
                    return unanswered
                unanswered = unanswered or classify(error) is ErrorKind.RETRYABLE
                raise
            return True

        try:
            return await retry(call, self._config.policy("register"), sleep=self._sleep, random=self._random)
        except AwsError as error:
            if not unanswered:
                await on_refused()
            if error_code(error) == "LimitExceededException":
                existing = [consumer.name for consumer in await self.list_consumers(stream_arn)]
                raise ConsumerLimitError(
                    stream_name=stream_name, consumer_name=consumer_name, existing=existing
                ) from error
            if error_code(error) in NOT_FOUND:
                raise StreamNotFoundError(stream_name=stream_name) from error
            raise typed_error(error, "RegisterStreamConsumer", consumer_name) from error

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

    def _deadline(self, timeout: timedelta, consumer: str, state: str) -> Callable[[], None]:
        deadline = self._clock() + timeout.total_seconds()

        def give_up() -> None:
            if self._clock() >= deadline:
                raise RegistrationTimeoutError(consumer=consumer, state=state, timeout_seconds=timeout.total_seconds())

        return give_up
