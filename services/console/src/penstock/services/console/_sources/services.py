"""What the console asks: the services, and Kinesis for the shards of streams."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import grpc

from penstock.aws import AwsError, AwsOptions, AwsServiceError, AwsSession, BackoffPolicy, JsonClient
from penstock.efo_consumer import EfoConsumerError, SessionInfo, Shard, StreamIdentity, list_shards
from penstock.operator_attributes import JobStatus, StagePlan
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc as pb_grpc
from penstock.registration import Consumer, ConsumerState
from penstock.rpc import all_pages
from penstock.services.console._settings import Endpoint
from penstock.services.console._sources.bounded import (
    CALL_SECONDS,
    BoundedReader,
    BoundedRegistry,
    BoundedScheduler,
    cut,
    is_enough,
    open_bounded,
)
from penstock.services.console._values import Kind, SinkDestination

T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C")
_STATE_SECONDS = 60.0
"""Between two questions for states and costs: each takes two calls of Kinesis a stream."""
_NEW_SECONDS = 5.0
"""The same, while there are consumers whose state was not known the last time."""
_ONCE = BackoffPolicy(
    base=timedelta(milliseconds=100), maximum=timedelta(milliseconds=100), exponent=1.0, max_attempts=1
)


class Source(Protocol[T_co]):
    """Something that can be asked again and again."""

    @property
    def kind(self) -> Kind:
        """What it is."""
        ...

    @property
    def address(self) -> str:
        """Where it is, for people."""
        ...

    async def fetch(self) -> T_co:
        """What it says now. Raises what its client raises."""
        ...

    @property
    def left_out(self) -> int:
        """Entries of the last answer that were not looked at, as there were too many."""
        ...

    async def close(self) -> None:
        """Close its connection; the next `fetch` opens a new one, and reads the files again."""
        ...


class _Remote(ABC, Generic[C]):
    """A client that is made at the first call, and again after a failure."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.kind = endpoint.kind
        self.address = endpoint.address
        self._endpoint = endpoint
        self._client: C | None = None
        self.left_out = 0

    def client(self) -> C:
        if self._client is None:
            self._client = self._open()
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._end(client)

    async def _end(self, client: Any) -> None:
        await client.close()

    @abstractmethod
    def _open(self) -> C:
        """Make a client; the files that its security names are read now."""


class RegistrySource(_Remote[BoundedRegistry]):
    """The consumer registry."""

    def __init__(self, endpoint: Endpoint, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(endpoint)
        self._clock = clock
        self._asked_at: float | None = None
        self._is_new = False
        self._known: dict[tuple[str, ...], tuple[ConsumerState | None, float | None]] = {}

    async def fetch(self) -> tuple[Consumer, ...]:
        """All consumers, with state and cost as they were within the last minute."""
        now = self._clock()
        pause = _NEW_SECONDS if self._is_new else _STATE_SECONDS
        with_state = self._asked_at is None or now - self._asked_at >= pause
        try:
            consumers = await self._list(with_state=with_state)
        except TimeoutError:
            if not with_state:
                raise
            # Kinesis has to be asked for many streams, or is slow: what the registry itself knows comes at once.
            self._asked_at, with_state = now, False
            consumers = await self._list(with_state=False)
        if with_state:
            self._asked_at = now
            self._known = {_key(one): (one.state, one.cost_per_hour_usd) for one in consumers}
            # One that is being made, or not there yet, is soon in another state.
            self._is_new = any(one.state in (ConsumerState.CREATING, ConsumerState.DELETING) for one in consumers)
            return tuple(consumers)
        self._is_new = self._is_new or any(_key(one) not in self._known for one in consumers)
        return tuple(self._with_state(one) for one in consumers)

    async def _list(self, *, with_state: bool) -> list[Consumer]:
        client = self.client()
        found = await client.list_consumers(with_state=with_state)
        self.left_out = client.left_out
        return found

    def _with_state(self, consumer: Consumer) -> Consumer:
        state, cost = self._known.get(_key(consumer), (None, None))
        return replace(consumer, state=state, cost_per_hour_usd=cost)

    def _open(self) -> BoundedRegistry:
        return BoundedRegistry(self.address, self._endpoint.security(), reconnect=_ONCE)


class ReaderSource(_Remote[BoundedReader]):
    """A shard reader."""

    async def fetch(self) -> tuple[SessionInfo, ...]:
        """Its sessions with their shards."""
        client = self.client()
        found = await client.sessions(with_shards=True)
        self.left_out = client.left_out
        return tuple(found)

    def _open(self) -> BoundedReader:
        return BoundedReader(self.address, self._endpoint.security())


class SinkSource(_Remote[grpc.aio.Channel]):
    """A sink gateway."""

    async def fetch(self) -> tuple[SinkDestination, ...]:
        """Its destinations, ordered by kind and name."""
        stub = pb_grpc.SinkGatewayServiceStub(self.client())
        async with asyncio.timeout(CALL_SECONDS):
            request = pb.StatsRequest()
            answer = await all_pages(lambda: stub.Stats(request), request, is_enough)
        self.left_out = cut(answer)
        return tuple(_destination(one) for one in answer.destinations)

    def _open(self) -> grpc.aio.Channel:
        return open_bounded(self.address, self._endpoint.security())


class StagesSource(_Remote[BoundedScheduler]):
    """The stage scheduler."""

    async def fetch(self) -> tuple[JobStatus, ...]:
        """All jobs, ordered by id."""
        client = self.client()
        found = await client.list_jobs()
        self.left_out = client.left_out
        return found

    async def plan(self, job_id: str) -> StagePlan:
        """What a job was compiled to, with all edges."""
        # By a client of its own: `close`, which comes when questions are not answered, leaves it alone.
        async with self._open() as client:
            return await client.get_plan(job_id)

    def _open(self) -> BoundedScheduler:
        return BoundedScheduler(self.address, self._endpoint.security())


def _key(consumer: Consumer) -> tuple[str, ...]:
    # By the ARN too, which is another after each registration; alone it may be empty, before the first.
    return consumer.stream_name, consumer.consumer_name, consumer.consumer_arn


def _destination(stats: pb.DestinationStats) -> SinkDestination:
    return SinkDestination(
        kind=stats.kind,
        destination=stats.destination,
        clients=stats.clients,
        in_flight_requests=stats.in_flight_requests,
        in_flight_entries=stats.in_flight_messages,
        limit_entries=stats.limit_messages,
        waiting_entries=stats.buffered_entries + stats.queued_entries,
        records_out=stats.records_out,
        bytes_out=stats.bytes_out,
        throttled=stats.throttled,
        retried=stats.retried,
        given_up=stats.rejected + stats.expired,
        dead_lettered=stats.dead_lettered,
        last_failure=stats.last_failure,
        held_seconds=stats.held_seconds,
        held_attempts=stats.held_attempts,
        held_reason=stats.held_reason,
        held_error_code=stats.held_error_code,
    )


AnySource = Source[Any]

_MOST_PLANS = 100


class Plans:
    """Asks for each job's plan once; again when the job has other stages, or the same of other operators."""

    def __init__(self, source: StagesSource | None) -> None:
        self._source = source
        self._known: OrderedDict[Hashable, StagePlan] = OrderedDict()

    def has(self, job: JobStatus) -> bool:
        """Whether the plan is known already."""
        return _plan_key(job) in self._known

    async def of(self, job: JobStatus) -> StagePlan:
        """The plan of a job.

        Raises:
            OperatorAttributesError: the scheduler cannot be asked, or its graph cannot be compiled.
        """
        key = _plan_key(job)
        plan = self._known.get(key)
        if plan is None:
            assert self._source is not None  # it gave the job
            plan = self._known[key] = await self._source.plan(job.job_id)
        self._known.move_to_end(key)
        while len(self._known) > _MOST_PLANS:
            self._known.popitem(last=False)
        return plan


def _plan_key(job: JobStatus) -> Hashable:
    return job.job_id, tuple(
        (one.stage_id, one.name, one.vertices, one.blocking_inputs, one.bounded, one.reason, one.slots)
        for one in job.stages
    )


_AT_ONCE = 4
_MOST_STREAMS = 200
_NAMES_SECONDS = 60.0
"""Between two calls of ListStreams, also while there are no streams."""


class KinesisSource:
    """Lists the shards of the streams that are known by then.

    Args:
        options: how to reach AWS.
        streams: by name, the name or the ARN that they go by.
        lists_all: whether all streams of the account and region are listed too, by ListStreams.
        clock: monotonic seconds.
    """

    kind = Kind.KINESIS

    def __init__(
        self,
        options: AwsOptions,
        streams: Callable[[], Mapping[str, str]],
        *,
        lists_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._streams = streams
        self._lists_all = lists_all
        self._clock = clock
        self._others: tuple[float, list[str]] | None = None
        self.others_unlisted = ""
        """Why streams that no service names could not be listed the last time."""
        self._client: JsonClient | None = None
        self.left_out = 0
        self.failures: dict[str, str] = {}
        """By stream: why its shards could not be listed the last time."""

    @cached_property
    def address(self) -> str:
        """The endpoint that is called, wherever it is set: an option, the environment, a profile or the region."""
        try:
            return AwsSession(self._options).endpoint_url("kinesis")
        except AwsError:
            # `fetch` reports what is wrong.
            return self._options.endpoint_url or self._options.region or "AWS"

    async def fetch(self) -> Mapping[str, tuple[Shard, ...]]:
        """Shards by stream, of those streams that could be listed.

        Raises:
            AwsError, EfoConsumerError: no stream could be listed.
        """
        if self._client is None:
            # Looks into files, and may ask the machine for credentials.
            session = await asyncio.to_thread(AwsSession, self._options)
            self._client = JsonClient(session)
            await self._client.__aenter__()
        slots = asyncio.Semaphore(_AT_ONCE)
        streams = dict(await asyncio.to_thread(self._streams))
        # What services name comes first: of the others there may be thousands.
        names = sorted(streams)
        names += sorted({*await self._all_names(self._client)} - streams.keys()) if self._lists_all else []
        self.left_out = max(0, len(names) - _MOST_STREAMS)
        names = names[:_MOST_STREAMS]
        answers = await asyncio.gather(*(self._list(self._client, streams.get(name, name), slots) for name in names))
        found = {name: shards for name, shards in zip(names, answers, strict=True) if isinstance(shards, tuple)}
        failures = [error for error in answers if isinstance(error, Exception)]
        self.failures = {
            name: str(error) for name, error in zip(names, answers, strict=True) if isinstance(error, Exception)
        }
        if failures and not found:
            raise failures[0]
        return found

    async def close(self) -> None:
        """End the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _all_names(self, client: JsonClient) -> list[str]:
        """The streams of the account and region, as they were within the last minute; none where that is refused."""
        now = self._clock()
        if self._others is None or now - self._others[0] >= _NAMES_SECONDS:
            self._others, self.others_unlisted = (now, []), ""
            try:
                self._others = now, await _list_streams(client)
            except AwsServiceError as error:
                # It needs another permission than all else here. Without an answer nothing else is listed either.
                self.others_unlisted = str(error)
        return self._others[1]

    @staticmethod
    async def _list(client: JsonClient, name: str, slots: asyncio.Semaphore) -> tuple[Shard, ...] | Exception:
        async with slots:
            try:
                return tuple(await list_shards(client, StreamIdentity.of(name)))
            except (AwsError, EfoConsumerError) as error:
                return error


async def _list_streams(client: JsonClient) -> list[str]:
    names: list[str] = []
    more: dict[str, str] = {}
    while True:
        page = await client.call("ListStreams", {"Limit": 1_000, **more})
        names += page["StreamNames"]
        if not page["HasMoreStreams"]:
            return names
        more = {"ExclusiveStartStreamName": names[-1]}
