"""Decides what follows the end of a subscription: when to subscribe again, or that it is useless. No I/O."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from awscrt.exceptions import AwsCrtError  # type: ignore[import-untyped]  # no stubs published

from penstock.aws import AwsError, AwsServiceError, BackoffPolicy, ErrorKind, classify, error_code
from penstock.efo_consumer._publish.diagnosis import code_of, with_advice
from penstock.efo_consumer.errors import (
    EventStreamFrameError,
    PayloadDecodeError,
    RecordPublisherFatalError,
    RecordPublisherRetriesError,
    ShardEndError,
    SubscriptionConnectionError,
    SubscriptionSilentError,
    SubscriptionStuckError,
    SubscriptionTakenOverError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

RETRYABLE = (
    EventStreamFrameError,
    PayloadDecodeError,
    ShardEndError,
    SubscriptionConnectionError,
    SubscriptionSilentError,
    AwsCrtError,
    OSError,
)
"""What a new subscription may cure, beside what the service says by its codes."""

SUBSCRIPTION_ERRORS = (AwsError, *RETRYABLE)
"""What a subscription can end with; anything else is a defect and not to be retried."""

STARVED = "starved"
"""Outcome of a subscription that was cut because nobody took its events."""

# A closed shard should end with an event that names its children. Where it does not, its subscriptions are accepted and
# bring nothing, while a subscription to an open shard has an event every few seconds.
_STUCK_SUBSCRIPTIONS = 3
_WITHOUT_PROGRESS = ("connection_failed", "silent", "no_continuation")


@dataclass(frozen=True)
class Resubscribe:
    """Subscribe again.

    Attributes:
        delay_seconds: not before this time has passed.
        outcome: how the subscription ended, in one word, for spans and metrics.
    """

    delay_seconds: float
    outcome: str


@dataclass(kw_only=True)
class SubscribeRetries:
    """Counts the failures of one shard's subscriptions.

    An event sets the attempts back, and a subscription that lived to its end sets the take-overs back.

    Attributes:
        attempt: failures since the last event.
    """

    stream: str
    shard_id: str
    consumer_arn: str
    policy: BackoffPolicy
    patience_seconds: float
    takeover_delay_seconds: float
    reader: str
    random: Callable[[], float]
    attempt: int = field(default=0, init=False)
    _in_use_since: float | None = field(default=None, init=False)
    _throttled_since: float | None = field(default=None, init=False)
    _throttles: int = field(default=0, init=False)
    _takeovers: int = field(default=0, init=False)
    _fruitless: list[str] = field(default_factory=list, init=False)
    _renewed: bool = field(default=False, init=False)

    def event_arrived(self) -> None:
        """The subscription brought an event."""
        self.attempt = 0
        self._in_use_since = self._throttled_since = None
        self._throttles = 0
        self._fruitless.clear()
        self._renewed = False

    def ended(self, *, had_events: bool) -> Resubscribe:
        """The service ended the subscription in order: its five minutes are over.

        Args:
            had_events: whether it brought any.

        Raises:
            SubscriptionStuckError: too many in a row brought none.
        """
        self._takeovers = 0
        if not had_events:
            self._note_fruitless("expired", None)
        return Resubscribe(0.0, "expired")

    def failed(
        self,
        error: Exception,
        *,
        now: float,
        accepted: bool,
        had_events: bool,
        consumer_status: str | None = None,
        other_reader: str | None = None,
        renewed: bool = False,
        starved: bool = False,
    ) -> Resubscribe:
        """The subscription failed, before or after the service had accepted it.

        Args:
            error: why.
            now: monotonic seconds.
            accepted: whether the service had accepted it.
            had_events: whether it brought any.
            consumer_status: of the stream consumer, where it is known.
            other_reader: who holds the subscription now, where it is known.
            renewed: the credentials were refused, and others were found in their place.
            starved: nobody took its events for so long that the service may have cut it.

        Raises:
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts are used up.
            SubscriptionStuckError: too many in a row were accepted and brought no event.
            SubscriptionTakenOverError: another reader keeps taking the subscription.
        """
        if error_code(error) == "ResourceInUseException":
            if accepted:
                return self._taken_over(error, other_reader)
            return self._in_use(error, now, consumer_status, other_reader)
        if renewed and not self._renewed:
            # Once: new credentials that are refused too are for the user to mend.
            self._renewed = True
            return Resubscribe(0.0, "credentials_renewed")
        if not isinstance(error, RETRYABLE) and classify(error) is ErrorKind.FATAL:
            raise RecordPublisherFatalError(
                with_advice(error, of=f" (consumer {self.consumer_arn})"),
                stream=self.stream,
                shard_id=self.shard_id,
                code=code_of(error),
            ) from error
        outcome = _outcome(error)
        if starved and outcome in ("connection_failed", "corrupt"):
            # Back-pressure is no failure: what was cut off in the middle is read again, at once.
            return Resubscribe(0.0, STARVED)
        if outcome == "throttled" and self._waits_out_throttle(now):
            self._throttles += 1
            return Resubscribe(self.policy.delay_seconds(self._throttles - 1, self.random), "throttled")
        if accepted and not had_events and outcome in _WITHOUT_PROGRESS:
            self._note_fruitless(outcome, error)
        return self._next_attempt(error, outcome)

    def _note_fruitless(self, outcome: str, error: Exception | None) -> None:
        self._fruitless.append(outcome)
        if len(self._fruitless) >= _STUCK_SUBSCRIPTIONS:
            raise SubscriptionStuckError(
                stream=self.stream, shard_id=self.shard_id, outcomes=tuple(self._fruitless)
            ) from error

    def _taken_over(self, error: Exception, other_reader: str | None) -> Resubscribe:
        self._takeovers += 1
        if self._takeovers >= self.policy.max_attempts:
            raise self._takeover_error(self._takeovers, other_reader) from error
        _log.warning(
            "%s/%s: %s took the subscription of %s from %s: each job needs a stream consumer of its own",
            self.stream,
            self.shard_id,
            other_reader or "another reader",
            self.consumer_arn,
            self.reader,
        )
        # The other one has just subscribed: for 5 s every call of ours would be refused.
        delay = self.takeover_delay_seconds + self.policy.delay_seconds(self._takeovers, self.random)
        return Resubscribe(delay, "taken_over")

    def _in_use(
        self, error: Exception, now: float, consumer_status: str | None, other_reader: str | None
    ) -> Resubscribe:
        if self._in_use_since is None:
            self._in_use_since = now
        outcome = {"CREATING": "consumer_not_active", "ACTIVE": "held_by_another"}.get(consumer_status or "", "in_use")
        if now - self._in_use_since < self.patience_seconds:
            delay = self.policy.delay_seconds(self.attempt, self.random)
            return Resubscribe(delay, outcome)
        try:
            return self._next_attempt(error, outcome)
        except RecordPublisherRetriesError:
            if consumer_status != "ACTIVE":
                raise
            # An ACTIVE consumer that stays in use for so long is taken anew by another reader again and again.
            raise self._takeover_error(self.attempt, other_reader) from error

    def _takeover_error(self, times: int, other_reader: str | None) -> SubscriptionTakenOverError:
        return SubscriptionTakenOverError(
            stream=self.stream,
            shard_id=self.shard_id,
            consumer_arn=self.consumer_arn,
            times=times,
            reader=self.reader,
            other_reader=other_reader,
        )

    def _waits_out_throttle(self, now: float) -> bool:
        # All shards of a consumer are throttled together, by KMS for one: that passes, and is nobody's failure.
        if self._throttled_since is None:
            self._throttled_since = now
        return now - self._throttled_since < self.patience_seconds

    def _next_attempt(self, error: Exception, outcome: str) -> Resubscribe:
        delay = self.policy.delay_seconds(self.attempt, self.random)
        self.attempt += 1
        if self.attempt >= self.policy.max_attempts:
            raise RecordPublisherRetriesError(
                f"{self.attempt} attempts in a row failed, the last with: {error}",
                stream=self.stream,
                shard_id=self.shard_id,
                code=code_of(error),
                attempts=self.attempt,
            ) from error
        return Resubscribe(delay, outcome)


def _outcome(error: Exception) -> str:
    match error:
        case SubscriptionSilentError():
            return "silent"
        case EventStreamFrameError() | PayloadDecodeError():
            return "corrupt"
        case ShardEndError():
            return "no_continuation"
        case AwsServiceError():
            return "throttled" if classify(error) is ErrorKind.THROTTLED else "service_error"
        case _:
            return "connection_failed"
