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

from penstock.aws import are_credentials_refused, error_code
from penstock.efo_consumer._model.events import ShardEvent
from penstock.efo_consumer._model.positions import PositionType, ShardPosition
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._publish.diagnosis import NOT_FOUND, resource_missing
from penstock.efo_consumer._publish.metrics import INSTRUMENTATION, PublisherMetrics, publisher_metrics
from penstock.efo_consumer._publish.retries import (
    RETRYABLE,
    STARVED,
    SUBSCRIPTION_ERRORS,
    Resubscribe,
    SubscribeRetries,
)
from penstock.efo_consumer._wire.subscription import SubscribeRequest
from penstock.efo_consumer.errors import (
    EfoConsumerConfigError,
    RecordPublisherError,
    RecordPublisherFatalError,
    ShardEndError,
    SubscriptionSilentError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from penstock.efo_consumer._publish.config import RecordPublisherConfig
    from penstock.efo_consumer._publish.diagnosis import Diagnosis
    from penstock.efo_consumer._wire.subscription import SubscribeTransport, Subscription, SubscriptionEvent

_numbers = itertools.count(1)


def reader_name() -> str:
    """A name for a reader that was given none: host, process, and a number within it."""
    return f"{socket.gethostname()}/{os.getpid()}/{next(_numbers)}"


class Readers:
    """Readers by stream consumer and shard. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[tuple[str, str], list[str]] = {}

    @staticmethod
    @cache
    def of_process() -> Readers:
        """Those of this process."""
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


class FanOutRecordPublisher:
    """Publishes shards by SubscribeToShard; satisfies `RecordPublisher`.

    A subscription that ends, fails, falls silent or is taken over is renewed from the last continuation, so that the
    events are those of one endless subscription. All shards share the transport's connections.

    Args:
        transport: carries the calls; closed with the publisher.
        consumer_arns: the stream consumer's ARN per stream name.
        config: times, back-off and limits.
        diagnosis: tells refusals of the same code apart; closed with the publisher.
        renew_credentials: looks for other credentials when these are refused, and tells whether there are any; blocks.
    """

    def __init__(
        self,
        transport: SubscribeTransport,
        *,
        consumer_arns: Mapping[str, str],
        config: RecordPublisherConfig,
        diagnosis: Diagnosis | None = None,
        renew_credentials: Callable[[], bool] = lambda: False,
        metrics: PublisherMetrics | None = None,
        tracer: trace.Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._transport = transport
        self._consumer_arns = dict(consumer_arns)
        self._config = config
        self._metrics = metrics or publisher_metrics()
        self._tracer = tracer or trace.get_tracer(INSTRUMENTATION)
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._closed = False
        self._diagnosis = diagnosis
        self._renew_credentials = renew_credentials
        self._reader = config.reader_name or reader_name()
        self._readers = Readers.of_process()
        # Kept across generators: a shard that is published anew meets the 5-second rule all the same.
        self._accepted_at: dict[tuple[str, str], float] = {}
        self._calls: dict[tuple[str, str], _Call] = {}

    async def publish(
        self, stream: StreamIdentity, shard_id: str, position: ShardPosition
    ) -> AsyncGenerator[ShardEvent, None]:
        """See `RecordPublisher.publish`.

        Raises:
            EfoConsumerConfigError: no consumer ARN is known for the stream.
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts are used up.
            SubscriptionTakenOverError: another reader keeps taking the subscription.
        """
        if position.type is PositionType.SHARD_END:
            return
        request = SubscribeRequest(self._consumer_arn(stream), shard_id, position)
        retries = SubscribeRetries(
            stream=stream.name,
            shard_id=shard_id,
            consumer_arn=request.consumer_arn,
            policy=self._config.subscribe_to_shard,
            patience_seconds=self._config.resource_in_use_patience.total_seconds(),
            takeover_delay_seconds=self._config.resubscribe_interval.total_seconds(),
            reader=self._reader,
            random=self._random,
        )
        delay_seconds, is_starved = 0.0, False
        with self._readers.reading(request.consumer_arn, shard_id, self._reader):
            while True:
                await self._wait(request, delay_seconds)
                self._refuse_if_closed(stream, shard_id)
                call = self._calls[stream.name, shard_id] = _Call(self, stream, request, retries)
                try:
                    async with aclosing(call.events()) as events:
                        async for event in events:
                            yield replace(event, is_after_starvation=True) if is_starved else event
                            is_starved = False
                finally:
                    self._calls.pop((stream.name, shard_id), None)
                    await call.close()
                if call.at_shard_end:
                    return
                assert call.next is not None  # a call ends at the shard's end, or says what comes next
                delay_seconds = call.next.delay_seconds
                is_starved |= call.next.outcome == STARVED
                request = SubscribeRequest(request.consumer_arn, shard_id, call.position)

    async def close(self) -> None:
        """End every subscription; their generators fail when asked for more."""
        self._closed = True
        await self._transport.close()
        if self._diagnosis is not None:
            await self._diagnosis.close()

    def waits_since(self, stream: StreamIdentity, shard_id: str) -> float | None:
        """When the first record arrived that is known to wait, in seconds since the epoch; None without one."""
        call = self._calls.get((stream.name, shard_id))
        return None if call is None else call.waits_since

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
            allowed_at = accepted_at + self._config.resubscribe_interval.total_seconds()
            delay = max(delay, allowed_at - self._clock())
        if delay > 0:
            await self._sleep(delay)


class _Call:
    """One SubscribeToShard call from its request to its end."""

    def __init__(
        self,
        publisher: FanOutRecordPublisher,
        stream: StreamIdentity,
        request: SubscribeRequest,
        retries: SubscribeRetries,
    ) -> None:
        self._publisher = publisher
        self._stream = stream
        self._request = request
        self._retries = retries
        self._subscription: Subscription | None = None
        self._suspect = False
        self._starved = False
        self._outcome = "closed"
        self._records = 0
        self._silence_seconds = publisher._config.subscription_silence.total_seconds()
        self._span = publisher._tracer.start_span(
            "efo_consumer.subscribe",
            attributes={
                "stream": stream.name,
                "shard": request.shard_id,
                "transport": publisher._transport.name,
                "attempt": retries.attempt,
                "position": request.position.type.value,
            },
        )
        self.position = request.position
        self.at_shard_end = False
        self.next: Resubscribe | None = None

    async def events(self) -> AsyncGenerator[ShardEvent, None]:
        """The events up to the end of the subscription; `next` or `at_shard_end` then says how it ended."""
        try:
            subscription = await self._subscribe()
            while (received := await self._receive(subscription)) is not None:
                event = self._event(received)
                self._retries.event_arrived()
                self._records += event.records.num_rows
                self._publisher._metrics.event_read(event, stream=self._stream.name, shard_id=self._request.shard_id)
                given_at = self._publisher._clock()
                yield event
                self._starved |= self._publisher._clock() - given_at >= self._silence_seconds
                if self.at_shard_end:
                    self._outcome = "shard_end"
                    return
            self.next = self._retries.ended()
        except SUBSCRIPTION_ERRORS as error:
            self._suspect = isinstance(error, RETRYABLE)
            self._span.record_exception(error)
            try:
                self.next = await self._after(error)
            except RecordPublisherError:
                self._outcome = "failed"
                self._span.set_status(trace.StatusCode.ERROR, str(error))
                raise
        self._outcome = self.next.outcome

    async def _after(self, error: Exception) -> Resubscribe:
        publisher, request, code = self._publisher, self._request, error_code(error)
        if code == NOT_FOUND:
            raise await resource_missing(
                publisher._diagnosis,
                error,
                stream=self._stream,
                shard_id=request.shard_id,
                consumer_arn=request.consumer_arn,
            ) from error
        accepted = self._subscription is not None
        status = None
        if code == "ResourceInUseException" and not accepted and publisher._diagnosis is not None:
            status = await publisher._diagnosis.consumer_status(request.consumer_arn)
        refused = are_credentials_refused(error)
        return self._retries.failed(
            error,
            now=publisher._clock(),
            accepted=accepted,
            consumer_status=status,
            other_reader=publisher._readers.other(request.consumer_arn, request.shard_id, publisher._reader),
            renewed=refused and await asyncio.to_thread(publisher._renew_credentials),
            starved=self._starved,
        )

    @property
    def waits_since(self) -> float | None:
        """See `FanOutRecordPublisher.waits_since`."""
        return None if self._subscription is None else self._subscription.waits_since

    async def _subscribe(self) -> Subscription:
        subscription = await self._publisher._transport.subscribe(self._request)
        self._subscription = subscription
        # Closed while it was under way: nobody else would end it.
        self._publisher._refuse_if_closed(self._stream, self._request.shard_id)
        key = (self._request.consumer_arn, self._request.shard_id)
        self._publisher._accepted_at[key] = self._publisher._clock()
        return subscription

    async def _receive(self, subscription: Subscription) -> SubscriptionEvent | None:
        while True:
            before = subscription.bytes_received
            try:
                async with asyncio.timeout(self._silence_seconds):
                    return await subscription.receive()
            except TimeoutError:
                # A long event on a slow line is not silence.
                if subscription.bytes_received == before:
                    raise SubscriptionSilentError(silence_seconds=self._silence_seconds) from None

    def _event(self, received: SubscriptionEvent) -> ShardEvent:
        payload = received.payload
        if payload.continuation is None and not payload.child_shards:
            raise ShardEndError(stream=self._stream.name, shard_id=self._request.shard_id)
        if payload.continuation is None:
            self.at_shard_end = True
            self.position = ShardPosition.shard_end()
        else:
            self.position = ShardPosition.after(payload.continuation)
        return ShardEvent(
            records=payload.records,
            continuation=payload.continuation,
            millis_behind_latest=payload.millis_behind_latest,
            child_shards=payload.child_shards if self.at_shard_end else (),
            nbytes=payload.nbytes,
        )

    async def close(self) -> None:
        """End the subscription and its span. Harmless when called again."""
        subscription, self._subscription = self._subscription, None
        try:
            if subscription is not None:
                await subscription.close(suspect=self._suspect)
        finally:
            if self._span.is_recording():
                self._span.set_attributes({"outcome": self._outcome, "records": self._records})
            self._span.end()
            self._publisher._metrics.subscription_ended(
                stream=self._stream.name,
                shard_id=self._request.shard_id,
                transport=self._publisher._transport.name,
                outcome=self._outcome,
            )
