"""The leases of a query on its stream consumers, and the registry that gives them."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from penstock.aws import AwsOptions
from penstock.registration import (
    AcquireRequest,
    BlockingConsumerRegistry,
    ConflictPolicy,
    Lease,
    RegistrationStrategy,
    open_registry,
)
from penstock.registration.errors import ConsumerDeregisteredError, RegistrationError
from penstock.registration.errors import LeaseLostError as LostLease
from penstock.spark_plugin._connections import caller_location, service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.session.configs import registrar_config
from penstock.spark_plugin._reading.session.waiting import HELD_TIMEOUT, query_marks, waiting
from penstock.spark_plugin.errors import LeaseLostError

_log = logging.getLogger(__name__)
_LATE_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 0.5
_TELL_AGAIN_SECONDS = 30.0


class QueryLeases:
    """Leases on a query's stream consumers, kept by heartbeats until they are released.

    One that ran out, in a pause of this process for instance, is taken back if nobody else has the consumer; that is
    registered again where it was deregistered, and has another ARN then.
    """

    def __init__(self, options: KinesisOptions, aws: AwsOptions, job_id: str, query: str = "") -> None:
        self._registry = open_query_registry(options, aws)
        self._marks = query_marks(options)
        self._news = threading.Condition()
        self._lost: LostLease | None = None
        self._options, self._job_id, self._query = options, job_id, query
        self._leases: list[Lease] = []
        self._used = 0
        """How many of them, which come first, are of streams that are read."""
        try:
            self.acquire(options.stream_name)
        except BaseException:
            self.release()
            raise
        self.use()

    def acquire(self, streams: Sequence[str]) -> None:
        """Lease the consumers of streams that are not read before `use`. Another thread may have to wait for them.

        Raises:
            RegistrationError: a consumer cannot be leased; those before it are held, and are not asked for again.
        """
        held = {one.stream_name for one in self._leases}
        missing = tuple(one for one in streams if one not in held)  # all, or those of a pattern, which have no ARNs
        for request in lease_requests(replace(self._options, stream_name=missing), self._job_id, self._query):
            with waiting(self._registry, request, self._marks):
                lease = self._registry.acquire(request)
            self._marks.hold(lease)
            with self._news:
                number = len(self._leases)
                self._leases.append(lease)
            self._registry.keep(lease, self._on_lost, partial(self._on_regained, number))

    def use(self) -> None:
        """Give all that were acquired as `leases` from now on."""
        with self._news:
            self._used = len(self._leases)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Those that are held now, one for each stream that is read."""
        with self._news:
            return tuple(self._leases[: self._used])

    def check(self) -> None:
        """Raise LeaseLostError if one of the leases is no longer held."""
        with self._news:
            lost = self._lost
        if lost is not None:
            raise LeaseLostError(lost.stream_name, lost.consumer_name, lost.reason) from lost

    def settled(self) -> tuple[Lease, ...]:
        """The leases, once the registry agrees that they are held: those that ran out are being taken back.

        Raises:
            LeaseLostError: one was not got back.
        """
        tell_at = time.monotonic() + _LATE_SECONDS
        while True:
            self.check()
            leases = self.leases
            missing = next((one for one in leases if not self._registry.is_held(one)), None)
            if missing is None:
                return leases
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + _TELL_AGAIN_SECONDS
                _log.warning(
                    "the lease on consumer %r of %s ran out; waiting until it is taken back, or another job has it",
                    missing.consumer_name,
                    missing.stream_name,
                )
            with self._news:
                if self._lost is None and tuple(self._leases[: self._used]) == leases:
                    self._news.wait(_ASK_AGAIN_SECONDS)

    def registered_again(self) -> tuple[Lease, ...]:
        """The leases, after their consumers were looked for: one that others deregistered is registered again.

        Raises:
            LeaseLostError: others deregister it again and again.
        """
        for number, lease in enumerate(self.leases):
            try:
                found = self._registry.register_again(lease)
            except ConsumerDeregisteredError as error:
                raise LeaseLostError(lease.stream_name, lease.consumer_name, str(error)) from error
            except RegistrationError as error:
                # The reader's error stands then, and says what is missing.
                _log.warning(
                    "consumer %s of %s is not registered again: %s", lease.consumer_name, lease.stream_name, error
                )
            else:
                self._on_regained(number, found)
        return self.leases

    def release(self, is_robbed: Callable[[str], bool] = lambda _: False) -> None:
        """Give every lease back; the registry deregisters what it registered.

        But for consumers of which `is_robbed` says, by their ARN, that a query of another registry reads by them.
        """
        with self._news:
            held = tuple(self._leases)
        for lease in held:
            try:
                disown = is_robbed(lease.consumer_arn)
                if disown:
                    _log.warning(
                        "consumer %s of %s: another reader, which knows another registry, took its subscriptions; it "
                        "is left registered for that one. Give each query an efoConsumerName of its own, or both the "
                        "same registry",
                        lease.consumer_name,
                        lease.stream_name,
                    )
                # Or the one that was taken back in its place.
                self._registry.release(lease, disown=disown)
            except Exception:
                # The lease ends by itself, and the registry then cleans up.
                _log.warning(
                    "consumer %s of %s was not released", lease.consumer_name, lease.stream_name, exc_info=True
                )
        self._marks.close()
        self._registry.close()

    def _on_lost(self, error: LostLease) -> None:
        with self._news:
            self._lost = self._lost or error
            self._news.notify_all()

    def _on_regained(self, number: int, lease: Lease) -> None:
        with self._news:
            # Each is told on a thread of its own, which may be late.
            if lease.fencing_token > self._leases[number].fencing_token:
                self._leases[number] = lease
                self._marks.hold(lease)
            self._news.notify_all()


def open_query_registry(options: KinesisOptions, aws: AwsOptions) -> BlockingConsumerRegistry:
    """The registry of the options: a service, or a file."""
    return open_registry(
        endpoint=options.registry_endpoint,
        security=service_security(options),
        aws=aws,
        store_path=Path(options.registry_store) if options.registry_store else None,
        config=registrar_config(options),
        patience=timedelta(seconds=options.retry_patience),
    )


def lease_requests(options: KinesisOptions, job_id: str, query: str = "") -> list[AcquireRequest]:
    """For a lease on the consumer of each stream."""
    claim = f"{query or uuid.uuid4().hex}/{uuid.uuid4().hex}"
    # A registry in this process has both already.
    config = registrar_config(options) if options.registry_endpoint else None
    caller = caller_location(options) if options.registry_endpoint else None
    return [
        AcquireRequest(
            stream_name=stream,
            stream_arn=options.arn_of(stream),
            consumer_name=options.efo_consumer_name or "",
            job_id=job_id,
            claim=claim,
            strategy=RegistrationStrategy(options.efo_registration),
            consumer_arn=options.efo_consumer_arn.get(stream),
            # A predecessor that was killed leaves its lease to expire; one that lives must not be thrown out.
            conflict_policy=ConflictPolicy.WAIT,
            timeout=HELD_TIMEOUT,
            config=config,
            caller=caller,
        )
        for stream in options.stream_name
    ]
