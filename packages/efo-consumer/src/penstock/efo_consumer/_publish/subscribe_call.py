"""One SubscribeToShard call from its request to its end."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from opentelemetry import trace

from penstock.aws import are_credentials_refused, error_code
from penstock.efo_consumer._model.positions import ShardPosition
from penstock.efo_consumer._model.shards import ShardEvent, StreamIdentity
from penstock.efo_consumer._publish.diagnosis import NOT_FOUND, resource_missing
from penstock.efo_consumer._publish.publisher import ARRIVAL_MARGIN_SECONDS
from penstock.efo_consumer._publish.retries import READ_ERRORS, RETRYABLE, Resubscribe, SubscribeRetries
from penstock.efo_consumer.errors import RecordPublisherError, ShardEndError, SubscriptionSilentError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penstock.efo_consumer._publish.fan_out import FanOutRecordPublisher
    from penstock.efo_consumer._wire.subscription import (
        SubscribeRequest,
        Subscription,
        SubscriptionEvent,
    )


# How long an event is on its way at most.
_AT_ONCE_SECONDS = 1.0


class SubscribeCall:
    """One SubscribeToShard call from its request to its end.

    Args:
        publisher: whose call it is.
        stream: the stream.
        request: the consumer, the shard and the position.
        retries: counts the failures of the shard's subscriptions.

    Attributes:
        position: after the last event.
        at_shard_end: whether the last event was the shard's.
        subscription: what the service has accepted; None before, and once it is closed.
        next: what follows; None before the end, and at the shard's end.
    """

    __slots__ = (
        "_caught_up_millis",
        "_empty_until",
        "_events",
        "_made_millis",
        "_outcome",
        "_publisher",
        "_records",
        "_request",
        "_retries",
        "_span",
        "_starved",
        "_stream",
        "_suspect",
        "at_shard_end",
        "next",
        "position",
        "subscription",
    )

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
        self.subscription: Subscription | None = None
        self._caught_up_millis = 0
        # The last event was made then or later, by the service's clock.
        self._made_millis = 0
        # When nothing waited to be taken last.
        self._empty_until = -math.inf
        self._suspect = False
        self._starved = False
        self._outcome = "closed"
        self._events = 0
        self._records = 0
        self._span = publisher.tracer.start_span(
            "efo_consumer.subscribe",
            attributes={
                "stream": stream.name,
                "shard": request.shard_id,
                "transport": publisher.transport.name,
                "attempt": retries.attempt,
                "position": request.position.type.value,
            },
        )
        self.position = request.position
        self.at_shard_end = False
        self.next: Resubscribe | None = None

    async def events(self) -> AsyncGenerator[ShardEvent, None]:
        """The events up to the end of the subscription; `next` or `at_shard_end` then says how it ended."""
        clock = self._publisher.clock
        silence_seconds = self._publisher.config.subscription_silence.total_seconds()
        try:
            subscription = await self._subscribe()
            while (received := await self._receive(subscription)) is not None:
                event = self._event(received)
                self._retries.event_arrived()
                self._events += 1
                self._records += event.records.num_rows
                self._publisher.metrics.event_read(event, stream=self._stream.name, shard_id=self._request.shard_id)
                given_at = clock()
                yield event
                self._starved |= clock() - given_at >= silence_seconds
                if self.at_shard_end:
                    self._outcome = "shard_end"
                    return
            error = None
        except READ_ERRORS as failure:
            error = failure
            self._suspect = isinstance(failure, RETRYABLE)
            self._span.record_exception(failure)
        try:
            self.next = self._retries.ended(had_events=self._events > 0) if error is None else await self._after(error)
        except RecordPublisherError as final:
            self._outcome = "failed"
            self._span.set_status(trace.StatusCode.ERROR, str(final if error is None else error))
            raise
        self._outcome = self.next.outcome

    async def _after(self, error: Exception) -> Resubscribe:
        request, diagnosis, code = self._request, self._publisher.diagnosis, error_code(error)
        if code == NOT_FOUND:
            raise await resource_missing(
                diagnosis,
                error,
                stream=self._stream,
                shard_id=request.shard_id,
                consumer_arn=request.consumer_arn,
            ) from error
        accepted = self.subscription is not None
        status = None
        if code == "ResourceInUseException" and not accepted and diagnosis is not None:
            status = await diagnosis.consumer_status(request.consumer_arn)
        refused = are_credentials_refused(error)
        return self._retries.failed(
            error,
            now=self._publisher.clock(),
            accepted=accepted,
            had_events=self._events > 0,
            consumer_status=status,
            other_reader=self._publisher.other_reader(request),
            renewed=refused and await asyncio.to_thread(self._publisher.renew_credentials),
            starved=self._starved,
        )

    async def _subscribe(self) -> Subscription:
        service_clock = self._publisher.service_clock
        asked_at, accepted_at = service_clock.monotonic(), service_clock.earliest()
        subscription = self.subscription = await self._publisher.transport.subscribe(self._request)
        if subscription.answered_at is not None:
            accepted_at = subscription.answered_at
            service_clock.answered_at(accepted_at, asked_at)
        self._made_millis = int(accepted_at * 1000)
        self._caught_up_millis = self._made_millis - int(ARRIVAL_MARGIN_SECONDS * 1000)
        self._publisher.accepted(self._stream, self._request)
        self._empty_until = self._publisher.clock()
        return subscription

    async def _receive(self, subscription: Subscription) -> SubscriptionEvent | None:
        silence_seconds = self._publisher.config.subscription_silence.total_seconds()
        empty_since = None if subscription.is_pending else self._publisher.clock()
        while True:
            before = subscription.bytes_received
            try:
                async with asyncio.timeout(silence_seconds):
                    received = await subscription.receive()
                if empty_since is not None:
                    self._note_empty(empty_since, self._publisher.clock())
                return received
            except TimeoutError:
                # A long event on a slow line is not silence.
                if subscription.bytes_received == before:
                    raise SubscriptionSilentError(silence_seconds=silence_seconds) from None

    def _note_empty(self, since: float, until: float) -> None:
        """Note that nothing waited to be taken between two times, when an event came.

        An event may have waited in the service for as long as what came before it was left lying here. Then it comes at
        once when there is room; so it is young if it did not come at once, or if there was room a moment before.
        """
        age_seconds = None
        if until - since >= _AT_ONCE_SECONDS:
            age_seconds = _AT_ONCE_SECONDS
        elif since - self._empty_until <= _AT_ONCE_SECONDS:
            age_seconds = until - since + 2 * _AT_ONCE_SECONDS
        if age_seconds is not None:
            made_at = self._publisher.service_clock.earliest() - age_seconds
            self._made_millis = max(self._made_millis, int(made_at * 1000))
        self._empty_until = until

    def _event(self, received: SubscriptionEvent) -> ShardEvent:
        payload = received.payload
        if payload.continuation is None and not payload.child_shards:
            raise ShardEndError(stream=self._stream.name, shard_id=self._request.shard_id)
        behind = payload.millis_behind_latest
        if payload.continuation is None:
            self.at_shard_end = True
            self.position = ShardPosition.shard_end()
        else:
            self.position = ShardPosition.after(payload.continuation)
        return ShardEvent(
            records=payload.records,
            continuation=payload.continuation,
            millis_behind_latest=behind,
            child_shards=payload.child_shards if self.at_shard_end else (),
            nbytes=payload.nbytes,
            # An event may wait on its way: all that is known is that it was made after the subscription was accepted.
            caught_up_millis=self._caught_up_millis if behind == 0 else None,
            read_millis=self._made_millis - behind if behind is not None and not payload.records.num_rows else None,
        )

    async def close(self) -> None:
        """End the subscription and its span. Harmless when called again."""
        subscription, self.subscription = self.subscription, None
        try:
            if subscription is not None:
                await subscription.close(suspect=self._suspect)
        finally:
            if self._span.is_recording():
                self._span.set_attributes({"outcome": self._outcome, "records": self._records})
            self._span.end()
            self._publisher.metrics.subscription_ended(
                stream=self._stream.name,
                shard_id=self._request.shard_id,
                transport=self._publisher.transport.name,
                outcome=self._outcome,
            )
