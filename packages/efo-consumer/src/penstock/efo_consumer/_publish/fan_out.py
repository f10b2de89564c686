"""Enhanced fan-out: SubscribeToShard, renewed for as long as the shard lives."""

from __future__ import annotations

import asyncio
import itertools
import os
import random as random_module
import socket
import threading
import time
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from opentelemetry import trace

from penstock.aws import ServiceClock
from penstock.efo_consumer._model.positions import PositionType, ShardPosition
from penstock.efo_consumer._publish.condition import NoteSign, unnoted
from penstock.efo_consumer._publish.metrics import INSTRUMENTATION, PublisherMetrics, publisher_metrics
from penstock.efo_consumer._publish.publisher import Room, unbounded
from penstock.efo_consumer._publish.retries import EXPIRED, STARVED, TAKEN_OVER, SubscribeRetries
from penstock.efo_consumer._publish.subscribe_call import SubscribeCall
from penstock.efo_consumer._wire.subscription import SubscribeRequest, SubscribeTransport
from penstock.efo_consumer.errors import (
    EfoConsumerConfigError,
    RecordPublisherFatalError,
    SubscriptionTakenOverError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from penstock.efo_consumer._model.shards import ShardEvent, StreamIdentity
    from penstock.efo_consumer._publish.config import RecordPublisherConfig
    from penstock.efo_consumer._publish.diagnosis import KinesisDiagnosis

_numbers = itertools.count(1)
_LEFT_ALONE_SECONDS = 60.0
"""A reader with the same consumer takes a subscription back within seconds."""


def reader_name() -> str:
    """A name for a reader that was given none: host, process, and a number within it."""
    return f"{socket.gethostname()}/{os.getpid()}/{next(_numbers)}"


class Readers:
    """Readers by stream consumer and shard, and the shards whose subscription was taken. Thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._readers: dict[tuple[str, str], list[str]] = {}
        # And since when the shard was subscribed again, None while it is not.
        self._robbed: dict[tuple[str, str], float | None] = {}

    @staticmethod
    @cache
    def of_process() -> Readers:
        """The readers of this process."""
        return Readers()

    @contextmanager
    def reading(self, consumer_arn: str, shard_id: str, reader: str) -> Iterator[None]:
        """The reader subscribes to the shard, again and again."""
        key = (consumer_arn, shard_id)
        with self._lock:
            self._readers.setdefault(key, []).append(reader)
        try:
            yield
        finally:
            with self._lock:
                self._readers[key].remove(reader)
                if not self._readers[key]:
                    del self._readers[key]

    def other(self, consumer_arn: str, shard_id: str, reader: str) -> str | None:
        """The latest other reader of this process that subscribes to the shard."""
        with self._lock:
            others = [one for one in self._readers.get((consumer_arn, shard_id), ()) if one != reader]
        return others[-1] if others else None

    def note_start(self, consumer_arn: str, shard_id: str) -> None:
        """Note that a subscription was accepted."""
        with self._lock:
            if (consumer_arn, shard_id) in self._robbed:
                self._robbed[consumer_arn, shard_id] = self._clock()

    def note_end(self, consumer_arn: str, shard_id: str, outcome: str) -> None:
        """Note how a subscription ended."""
        key = consumer_arn, shard_id
        with self._lock:
            if outcome == TAKEN_OVER:
                self._robbed[key] = None
            elif outcome == EXPIRED or self._is_left_alone(key):
                self._robbed.pop(key, None)
            elif key in self._robbed:
                self._robbed[key] = None

    def is_robbed(self, consumer_arn: str, shard_id: str) -> bool:
        """Whether another reader took a subscription of the shard, and may still read by the consumer.

        One that does takes it again and again. A former run of the same job, which was frozen, does so until its next
        heartbeat only.
        """
        key = consumer_arn, shard_id
        with self._lock:
            return key in self._robbed and not self._is_left_alone(key)

    def _is_left_alone(self, key: tuple[str, str]) -> bool:
        since = self._robbed.get(key)
        return since is not None and self._clock() - since >= _LEFT_ALONE_SECONDS


class FanOutRecordPublisher:
    """Publishes shards by SubscribeToShard; satisfies `RecordPublisher`.

    A subscription that ends, fails, falls silent or is taken over is renewed from the last continuation, so that its
    callers see one endless subscription. All shards share the transport's connections.

    Args:
        transport: carries the calls; closed with the publisher.
        consumer_arns: the stream consumer's ARN per stream name.
        config: times, back-off and limits.
        diagnosis: distinguishes refusals with the same code; closed with the publisher.
        renew_credentials: looks for other credentials when these are refused, and returns whether it found any. Blocks.
        service_clock: the service's time, which the answers to subscriptions set; by default one that begins as this
            host's clock.
    """

    def __init__(
        self,
        transport: SubscribeTransport,
        *,
        consumer_arns: Mapping[str, str],
        config: RecordPublisherConfig,
        diagnosis: KinesisDiagnosis | None = None,
        renew_credentials: Callable[[], bool] = lambda: False,
        service_clock: ServiceClock | None = None,
        metrics: PublisherMetrics | None = None,
        tracer: trace.Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.transport = transport
        self.config = config
        self.diagnosis = diagnosis
        self.renew_credentials = renew_credentials
        self.service_clock = service_clock or ServiceClock()
        self.metrics = metrics or publisher_metrics()
        self.tracer = tracer or trace.get_tracer(INSTRUMENTATION)
        self.clock = clock
        self._consumer_arns = dict(consumer_arns)
        self._sleep = sleep
        self._random = random
        self._closed = False
        self._reader = config.reader_name or reader_name()
        self._readers = Readers.of_process()
        # Kept across generators: the 5-second rule also applies to a shard that is published again.
        self._accepted_at: dict[tuple[str, str], float] = {}
        self._calls: dict[tuple[str, str], SubscribeCall] = {}

    async def publish(
        self,
        stream: StreamIdentity,
        shard_id: str,
        position: ShardPosition,
        *,
        note: NoteSign = unnoted,
        room: Room = unbounded,
    ) -> AsyncGenerator[ShardEvent, None]:
        """See `RecordPublisher.publish`; Kinesis alone chooses the size of events.

        Raises:
            EfoConsumerConfigError: no consumer ARN is known for the stream.
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts, or the patience, are used up.
            SubscriptionTakenOverError: another reader keeps taking the subscription.
            SubscriptionStuckError: subscriptions are accepted and bring nothing, as can happen at a closed shard.
        """
        if position.type is PositionType.SHARD_END:
            return
        request = SubscribeRequest(self._consumer_arn(stream), shard_id, position)
        retries = SubscribeRetries(
            stream=stream.name,
            shard_id=shard_id,
            consumer_arn=request.consumer_arn,
            config=self.config,
            reader=self._reader,
            random=self._random,
            service_seconds=self.service_clock.latest,
        )
        delay_seconds, is_starved = 0.0, False
        key = (request.consumer_arn, shard_id)
        with self._readers.reading(*key, self._reader):
            while True:
                await self._wait(request, delay_seconds)
                self._refuse_if_closed(stream, shard_id)
                call = SubscribeCall(self, stream, request, retries)
                self._calls[stream.name, shard_id] = call
                try:
                    async with aclosing(call.events()) as events:
                        async for event in events:
                            yield replace(event, is_after_starvation=True) if is_starved else event
                            is_starved = False
                except SubscriptionTakenOverError:
                    self._readers.note_end(*key, TAKEN_OVER)
                    raise
                finally:
                    self._calls.pop((stream.name, shard_id), None)
                    await call.close()
                if call.at_shard_end:
                    return
                assert call.next is not None  # a call ends at the shard's end, or says what comes next
                note(call.next.sign, call.next.cause)
                self._readers.note_end(*key, call.next.outcome)
                delay_seconds = call.next.delay_seconds
                is_starved |= call.next.outcome == STARVED
                request = SubscribeRequest(request.consumer_arn, shard_id, call.position)

    async def close(self) -> None:
        """End every subscription; their generators fail when asked for more."""
        self._closed = True
        await self.transport.close()
        if self.diagnosis is not None:
            await self.diagnosis.close()

    @property
    def interval_seconds(self) -> float:
        """See `RecordPublisher.interval_seconds`."""
        return 0.0

    def waits_since(self, stream: StreamIdentity, shard_id: str) -> float | None:
        """See `RecordPublisher.waits_since`."""
        call = self._calls.get((stream.name, shard_id))
        return None if call is None or call.subscription is None else call.subscription.waits_since

    def is_taken_over(self, stream: StreamIdentity, shard_id: str) -> bool:
        """See `RecordPublisher.is_taken_over`."""
        return self._readers.is_robbed(self._consumer_arns.get(stream.name, ""), shard_id)

    def other_reader(self, request: SubscribeRequest) -> str | None:
        """Give another reader that subscribes to the shard, where one is known."""
        return self._readers.other(request.consumer_arn, request.shard_id, self._reader)

    def accepted(self, stream: StreamIdentity, request: SubscribeRequest) -> None:
        """Note that the service has accepted a subscription; what this raises ends the call."""
        # Closed while it was under way: nothing else would end it.
        self._refuse_if_closed(stream, request.shard_id)
        self._readers.note_start(request.consumer_arn, request.shard_id)
        self._accepted_at[request.consumer_arn, request.shard_id] = self.clock()

    def _refuse_if_closed(self, stream: StreamIdentity, shard_id: str) -> None:
        if self._closed:
            raise RecordPublisherFatalError(
                "the publisher was closed", stream=stream.name, shard_id=shard_id, code="Closed"
            )

    def _consumer_arn(self, stream: StreamIdentity) -> str:
        arn = self._consumer_arns.get(stream.name)
        if arn is None:
            raise EfoConsumerConfigError(
                option=f"efoConsumerArn.{stream.name}", reason="no stream consumer is registered for the stream"
            )
        return arn

    async def _wait(self, request: SubscribeRequest, delay: float) -> None:
        accepted_at = self._accepted_at.get((request.consumer_arn, request.shard_id))
        if accepted_at is not None:
            # Within 5 s of a success the service refuses the same consumer and shard (API reference).
            allowed_at = accepted_at + self.config.resubscribe_interval.total_seconds()
            delay = max(delay, allowed_at - self.clock())
        if delay > 0:
            await self._sleep(delay)
