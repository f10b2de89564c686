"""Decides what follows a failure of reading: when to try again, or that it is useless. No I/O but for `bear`."""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from awscrt.exceptions import AwsCrtError

from penstock.aws import UNREADABLE_ANSWER, AwsError, AwsServiceError, BackoffPolicy, ErrorKind, classify, error_code
from penstock.efo_consumer._publish.condition import STALLED_SECONDS, NoteSign, ShardSign, unnoted, utc
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
    from collections.abc import Awaitable, Callable

    from penstock.efo_consumer._publish.config import RecordPublisherConfig


_log = logging.getLogger(__name__)
_T = TypeVar("_T")

RETRYABLE = (
    EventStreamFrameError,
    PayloadDecodeError,
    ShardEndError,
    SubscriptionConnectionError,
    SubscriptionSilentError,
    AwsCrtError,
    OSError,
)
"""What another attempt may cure, beside what the service says by its codes."""

READ_ERRORS = (AwsError, *RETRYABLE)
"""What a call or a subscription can end with; anything else is a defect and not to be retried."""

STARVED = "starved"
"""Outcome of a subscription that was cut because its events were not taken."""

TAKEN_OVER = "taken_over"
"""Outcome of a subscription that another reader of the stream consumer took."""

EXPIRED = "expired"
"""Outcome of a subscription that lived to its end."""

# A closed shard should end with an event that names its children. Where it does not, its subscriptions are accepted and
# bring nothing, while a subscription to an open shard has an event every few seconds.
_STUCK_SUBSCRIPTIONS = 3
_WITHOUT_PROGRESS = ("connection_failed", "silent", "no_continuation")
# Two jobs that share a consumer take each other's subscription again and again. A successor whose predecessor has
# yet to learn from the registry that it lost its lease, within 10 s, meets one or two.
_TAKEOVERS = 3


def kind_of(error: Exception) -> ErrorKind:
    """What an error of reading asks of the reader."""
    if isinstance(error, RETRYABLE) or error_code(error) == UNREADABLE_ANSWER:
        return ErrorKind.RETRYABLE
    return classify(error)


@dataclass(kw_only=True, slots=True)
class ReadRetries:
    """The failures in a row of one shard's reading, and for how long they are retried. No I/O.

    Attributes:
        stream: the stream.
        shard_id: the shard; empty for a call about the whole stream.
        patience_seconds: from the first failure on; 0 for no limit.
        service_seconds: the service's time, in seconds since the epoch.
        is_watched: whether others warn of a shard that does not come on; otherwise this does, once.
        failures: since the last success.
    """

    stream: str
    shard_id: str
    patience_seconds: float
    service_seconds: Callable[[], float]
    is_watched: bool = True
    failures: int = field(default=0, init=False)
    _is_told: bool = field(default=False, init=False)
    _since: tuple[float, float] | None = field(default=None, init=False)

    def succeeded(self) -> None:
        """Note an answer, or an event."""
        if self._since is not None:
            _log.debug("%s/%s: read again after %d failures", self.stream, self.shard_id, self.failures)
        self.failures, self._since, self._is_told = 0, None, False

    def failed(
        self, error: Exception, *, now: float, operation: str, counted: int = 0, most: int | None = None, key: str = ""
    ) -> None:
        """Note a failure that another attempt may cure.

        Args:
            error: the failure.
            now: monotonic seconds.
            operation: the call that failed.
            counted: how many failures in a row count against `most`, with this one; 0 if this one does not count.
            most: attempts that are made in all, where they are limited by number.
            key: the option that limits them.

        Raises:
            RecordPublisherRetriesError: there is to be no further attempt.
        """
        if self._since is None:
            self._since = (now, self.service_seconds())
            _log.info("%s/%s: %s failed and is retried: %s", self.stream, self.shard_id, operation, error)
        self.failures += 1
        seconds, since = now - self._since[0], utc(self._since[1] * 1000)
        if counted and most is not None:
            if counted >= most:
                limit = f"{counted} attempts in a row failed, since {since}, as many as {key} allows"
                raise self._error(error, operation, limit, counted) from error
        elif self.patience_seconds and seconds >= self.patience_seconds:
            limit = f"every attempt has failed for {seconds:.0f} s, since {since} (retryPatience)"
            raise self._error(error, operation, limit, self.failures) from error
        if seconds >= STALLED_SECONDS and not (self.is_watched or self._is_told):
            self._is_told = True
            name = f"{self.stream}/{self.shard_id}" if self.shard_id else self.stream
            _log.warning("%s: %s has failed since %s and is tried again: %s", name, operation, since, error)

    def _error(self, error: Exception, operation: str, limit: str, attempts: int) -> RecordPublisherRetriesError:
        cure = "check network, endpoint, credentials and the health of the service"
        if kind_of(error) is ErrorKind.THROTTLED:
            cure = "let fewer readers poll the shard, read with enhanced fan-out, or raise the quota"
        return RecordPublisherRetriesError(
            f"{operation}: {limit}; the last error: {error}. To cure it, {cure}; then start the query again",
            stream=self.stream,
            shard_id=self.shard_id,
            code=code_of(error),
            attempts=attempts,
        )


BEAR_BACKOFF = BackoffPolicy(max_attempts=None)


async def bear(
    call: Callable[[], Awaitable[_T]],
    *,
    stream: str,
    shard_id: str,
    operation: str,
    patience_seconds: float,
    note: NoteSign,
    service_seconds: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    random: Callable[[], float] = random_module.random,
) -> _T:
    """Repeat a call whose failures may pass, for as long as the patience lasts.

    Args:
        call: makes one attempt.
        stream: which it is about.
        shard_id: which it is about.
        operation: what it does, for the error.
        patience_seconds: from the first failure on; 0 for no limit.
        note: called for each failure.
        service_seconds: the service's time.

    Raises:
        RecordPublisherRetriesError: the patience is over.
        AwsError: the call failed in a way that another attempt does not cure. So do its other errors.
    """
    retries = ReadRetries(
        stream=stream,
        shard_id=shard_id,
        patience_seconds=patience_seconds,
        service_seconds=service_seconds,
        is_watched=note is not unnoted,
    )
    while True:
        try:
            return await call()
        except READ_ERRORS as error:
            kind = kind_of(error)
            if kind is ErrorKind.FATAL:
                raise
            retries.failed(error, now=clock(), operation=operation)
            note(ShardSign.THROTTLED if kind is ErrorKind.THROTTLED else ShardSign.REFUSED, str(error))
        await sleep(BEAR_BACKOFF.delay_seconds(retries.failures - 1, random))


@dataclass(frozen=True)
class Resubscribe:
    """Subscribe again.

    Attributes:
        delay_seconds: not before this time has passed.
        outcome: how the subscription ended, in one word, for spans and metrics.
        sign: what that means for the shard.
        cause: the same as text.
    """

    delay_seconds: float
    outcome: str
    sign: ShardSign = ShardSign.SUBSCRIPTION_ENDED
    cause: str = ""


@dataclass(kw_only=True, slots=True)
class SubscribeRetries:
    """The failures of one shard's subscriptions.

    An event ends a row of failures, and a subscription that lived to its end sets the take-overs back. Where
    `subscribe_to_shard` has `max_attempts`, what counts is what Flink counts: each failure but time-outs, until a
    subscription lived to its end.

    Attributes:
        attempt: failures since the last event; with a count, those that Flink counts.
    """

    stream: str
    shard_id: str
    consumer_arn: str
    config: RecordPublisherConfig
    reader: str
    random: Callable[[], float]
    service_seconds: Callable[[], float] = time.time
    policy: BackoffPolicy = field(init=False)
    attempt: int = field(default=0, init=False)
    _retries: ReadRetries = field(init=False)
    _in_use_since: float | None = field(default=None, init=False)
    _takeovers: int = field(default=0, init=False)
    _fruitless: list[str] = field(default_factory=list, init=False)
    _renewed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.policy = self.config.subscribe_to_shard
        self._retries = ReadRetries(
            stream=self.stream,
            shard_id=self.shard_id,
            patience_seconds=self.config.retry_patience.total_seconds(),
            service_seconds=self.service_seconds,
        )

    def event_arrived(self) -> None:
        """The subscription brought an event."""
        if self.policy.max_attempts is None:
            self.attempt = 0
        self._retries.succeeded()
        self._in_use_since = None
        self._fruitless.clear()
        self._renewed = False

    def ended(self, *, had_events: bool) -> Resubscribe:
        """The service ended the subscription in order: its five minutes are over.

        Args:
            had_events: whether it brought any.

        Raises:
            SubscriptionStuckError: too many in a row brought none.
        """
        self._takeovers = self.attempt = 0
        if not had_events:
            self._note_fruitless(EXPIRED, None)
        return Resubscribe(0.0, EXPIRED, cause="its five minutes are over")

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
            had_events: whether it brought any event.
            consumer_status: where a refusal as in use comes before acceptance: the consumer's status, where known.
            other_reader: who else subscribes to the shard, where that is known.
            renewed: whether other credentials were found in place of those that were refused.
            starved: whether its events were left untaken for so long that the service may have cut it.

        Raises:
            RecordPublisherFatalError: trying again is useless.
            RecordPublisherRetriesError: the attempts, or the patience, are used up.
            SubscriptionStuckError: too many subscriptions in a row brought no event.
            SubscriptionTakenOverError: another reader keeps taking the subscription.
        """
        if error_code(error) == "ResourceInUseException":
            if accepted:
                return self._taken_over(error, other_reader)
            return self._in_use(error, now, consumer_status, other_reader)
        if renewed and not self._renewed:
            # Once: if new credentials are refused too, the user has to correct them.
            self._renewed = True
            return Resubscribe(0.0, "credentials_renewed", ShardSign.REFUSED, str(error))
        kind = kind_of(error)
        if kind is ErrorKind.FATAL:
            raise RecordPublisherFatalError(
                with_advice(error, of=f" (consumer {self.consumer_arn})"),
                stream=self.stream,
                shard_id=self.shard_id,
                code=code_of(error),
            ) from error
        outcome = _outcome(error, kind)
        if starved and outcome in ("connection_failed", "corrupt"):
            # Back-pressure is not a failure: what was cut off in the middle is read again, at once.
            return Resubscribe(0.0, STARVED, cause="it was cut, because its events were not taken")
        if accepted and not had_events and outcome in _WITHOUT_PROGRESS:
            self._note_fruitless(outcome, error)
        sign = ShardSign.SUBSCRIPTION_ENDED if accepted else ShardSign.REFUSED
        return self._next_attempt(error, now, outcome, ShardSign.THROTTLED if kind is ErrorKind.THROTTLED else sign)

    def _note_fruitless(self, outcome: str, error: Exception | None) -> None:
        self._fruitless.append(outcome)
        if len(self._fruitless) >= _STUCK_SUBSCRIPTIONS:
            raise SubscriptionStuckError(
                stream=self.stream, shard_id=self.shard_id, outcomes=tuple(self._fruitless)
            ) from error

    def _taken_over(self, error: Exception, other_reader: str | None) -> Resubscribe:
        self._takeovers += 1
        if self._takeovers >= (self.policy.max_attempts or _TAKEOVERS):
            raise self._takeover_error(self._takeovers, other_reader) from error
        taker = other_reader or "another reader"
        _log.warning(
            "%s/%s: %s took the subscription of %s from %s: each job needs a stream consumer of its own",
            self.stream,
            self.shard_id,
            taker,
            self.consumer_arn,
            self.reader,
        )
        # The other reader has just subscribed: for 5 s every call would be refused.
        delay = self.config.resubscribe_interval.total_seconds() + self.policy.delay_seconds(
            self._takeovers, self.random
        )
        return Resubscribe(delay, TAKEN_OVER, ShardSign.REFUSED, f"{taker} took the subscription")

    def _in_use(
        self, error: Exception, now: float, consumer_status: str | None, other_reader: str | None
    ) -> Resubscribe:
        if self._in_use_since is None:
            self._in_use_since = now
        outcome = {"CREATING": "consumer_not_active", "ACTIVE": "held_by_another"}.get(consumer_status or "", "in_use")
        patience_seconds = self.config.resource_in_use_patience.total_seconds()
        if consumer_status == "ACTIVE" and now - self._in_use_since >= patience_seconds:
            # An ACTIVE consumer that stays in use for so long is taken by another reader again and again.
            raise self._takeover_error(self._retries.failures + 1, other_reader) from error
        try:
            return self._next_attempt(error, now, outcome, ShardSign.REFUSED)
        except RecordPublisherRetriesError as failed:
            if consumer_status != "ACTIVE":
                raise
            raise self._takeover_error(failed.attempts, other_reader) from error

    def _takeover_error(self, times: int, other_reader: str | None) -> SubscriptionTakenOverError:
        return SubscriptionTakenOverError(
            stream=self.stream,
            shard_id=self.shard_id,
            consumer_arn=self.consumer_arn,
            times=times,
            reader=self.reader,
            other_reader=other_reader,
        )

    def _next_attempt(self, error: Exception, now: float, outcome: str, sign: ShardSign) -> Resubscribe:
        delay = self.policy.delay_seconds(max(self.attempt, self._retries.failures), self.random)
        is_counted = not (self.policy.max_attempts is not None and _is_timeout(error))
        self.attempt += is_counted
        self._retries.failed(
            error,
            now=now,
            operation="SubscribeToShard",
            counted=self.attempt if is_counted else 0,
            most=self.policy.max_attempts,
            key="subscribe_to_shard.max_attempts",
        )
        return Resubscribe(delay, outcome, sign, str(error))


def _is_timeout(error: BaseException | None) -> bool:
    """Whether nothing came in time, which Flink retries without end."""
    while error is not None:
        if isinstance(error, TimeoutError | SubscriptionSilentError):
            return True
        error = error.__cause__
    return False


def _outcome(error: Exception, kind: ErrorKind) -> str:
    match error:
        case SubscriptionSilentError():
            return "silent"
        case EventStreamFrameError() | PayloadDecodeError():
            return "corrupt"
        case ShardEndError():
            return "no_continuation"
        case AwsServiceError():
            return "throttled" if kind is ErrorKind.THROTTLED else "service_error"
        case _:
            return "connection_failed"
