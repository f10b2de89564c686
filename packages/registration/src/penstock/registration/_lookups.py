"""Asking Kinesis about streams and their consumers."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

from penstock.aws import AwsError, retry
from penstock.registration._clock import Clock, elapsed_seconds
from penstock.registration._config import RegistrarConfig, is_arn
from penstock.registration._kinesis_errors import typed_error
from penstock.registration._pace import CallPace
from penstock.registration.errors import ConsumerNotFoundError, StreamNotFoundError


class AwsCalls(Protocol):
    """A client of one service: `penstock.aws.AwsClient`, or a fake."""

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Make a call. Raises errors of `penstock.aws`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class AwsClients(Protocol):
    """What gives clients: `penstock.aws.AwsSession`, or a fake."""

    def aio_client(self, service_name: str) -> AwsCalls:
        """A client of the service."""
        ...


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


class KinesisLookups:
    """Looks at streams and consumers, below Kinesis's limits.

    Retryable errors are retried as the config says; the last one is raised as an error of this package.
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
        self._kinesis = session.aio_client("kinesis")
        self._config = config or RegistrarConfig()
        self._sleep = sleep
        self._random = random
        self._clock = clock
        self._pace = CallPace()
        self._stream_arns: dict[str, str] = {}
        self._looking_up: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def find_stream_arn(self, stream_name: str) -> str:
        """The stream's ARN, asked once per name, however many ask at once. An ARN is its own.

        Raises:
            StreamNotFoundError: there is no such stream.
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
            StreamNotFoundError: there is no such stream.
        """
        which = "StreamARN" if is_arn(stream_name) else "StreamName"
        try:
            answer = await self._call("list", "describe_stream_summary", **{which: stream_name})
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
        """The consumer in whatever state it is; None when there is none of that name."""
        stream_arn = stream_arn or await self.find_stream_arn(stream_name)
        try:
            answer = await self._call(
                "list", "describe_stream_consumer", StreamARN=stream_arn, ConsumerName=consumer_name
            )
        except ConsumerNotFoundError:
            return None
        return _found(answer["ConsumerDescription"])

    async def list_consumers(self, stream_arn: str) -> list[FoundConsumer]:
        """All consumers of the stream, in the order of the answer."""
        consumers: list[FoundConsumer] = []
        page: dict[str, str] = {}
        while True:
            answer = await self._call("list", "list_stream_consumers", StreamARN=stream_arn, **page)
            consumers += map(_found, answer["Consumers"])
            if not answer.get("NextToken"):
                return consumers
            page = {"NextToken": answer["NextToken"]}

    async def close(self) -> None:
        """Close the connections."""
        await self._kinesis.close()

    async def _attempt(self, operation: str, **parameters: Any) -> Any:
        """Make one call when it is its turn. Raises errors of `penstock.aws`."""
        subject = str(parameters.get("StreamARN") or parameters.get("ConsumerARN") or "")
        seconds = self._pace.reserve(operation, subject.partition("/consumer/")[0], self._clock())
        if seconds > 0:
            await self._sleep(seconds)
        return await self._kinesis.call(operation, **parameters)

    async def _call(self, policy: str, operation: str, **parameters: Any) -> Any:
        try:
            return await retry(
                lambda: self._attempt(operation, **parameters),
                self._config.policy(policy),
                sleep=self._sleep,
                random=self._random,
            )
        except AwsError as error:
            raise typed_error(error, operation, str(next(iter(reversed(parameters.values()))))) from error


def _found(description: Mapping[str, Any]) -> FoundConsumer:
    return FoundConsumer(
        name=description["ConsumerName"], arn=description["ConsumerARN"], status=description["ConsumerStatus"]
    )
