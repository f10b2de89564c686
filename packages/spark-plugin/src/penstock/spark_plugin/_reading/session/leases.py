"""The leases of a query on its stream consumers, and the registry that gives them."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from penstock.aws import AwsOptions
from penstock.registration import (
    AcquireRequest,
    BlockingConsumerRegistry,
    ConflictPolicy,
    HeldLeases,
    Lease,
    LeaseMarks,
    RegistrationStrategy,
    open_registry,
)
from penstock.registration.errors import ConsumerDeregisteredError
from penstock.registration.errors import LeaseLostError as LostLease
from penstock.spark_plugin._connections import caller_location, service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin.errors import LeaseLostError

HELD_TIMEOUT = timedelta(minutes=5)
"""How long a query waits for a predecessor's lease: longer than a lease lives, so that only a live holder fails it."""

_LATE_SECONDS = 5.0
"""A consumer is ours within seconds, unless another query holds it."""


def query_marks(options: KinesisOptions) -> LeaseMarks:
    """Marks for the leases of the options' registry."""
    store = Path(options.registry_store) if options.registry_store else None
    return LeaseMarks(endpoint=options.registry_endpoint, store=store, endpoint_url=options.endpoint_url)


def waiting(request: AcquireRequest) -> Callable[[Lease | None], None]:
    """Log why nothing seems to happen while a consumer is acquired: another job holds it, or Kinesis is creating it.

    Returns:
        What `HolderWatch.looking` calls.
    """
    began, told_of = time.monotonic(), ""

    def tell(lease: Lease | None) -> None:
        nonlocal told_of
        if lease is not None and told_of != lease.job_id:
            told_of = lease.job_id
            _tell_held(request, lease)
        elif lease is None and not told_of and time.monotonic() - began >= _LATE_SECONDS:
            told_of = request.job_id
            _log.warning(
                "still waiting for consumer %r of %s: Kinesis is creating it",
                request.consumer_name,
                request.stream_name,
            )

    return tell


def _tell_held(request: AcquireRequest, lease: Lease) -> None:
    _log.warning(
        "still waiting for consumer %r of %s: it is held by job %r, and waited for up to %s. If that job has stopped, "
        "its lease ends within 30 s of it, or 90 s with a registry service, unless that has other times; a query with "
        "a jobId, the same at each start, need not wait for its own former run. If it runs, "
        "stop it, or give this query an efoConsumerName of its own. If "
        "spark.streams.active shows no such query, look for a process python_streaming_source_runner that an earlier "
        "session left on the driver's machine (a job 'query-HOST-PROCESS-…' names it), and end it",
        request.consumer_name,
        request.stream_name,
        lease.job_id,
        f"{HELD_TIMEOUT.total_seconds():g} s",
    )


_log = logging.getLogger(__name__)


class QueryLeases:
    """Leases on a query's stream consumers: see `HeldLeases`."""

    def __init__(self, options: KinesisOptions, aws: AwsOptions, job_id: str, query: str = "") -> None:
        registry = open_query_registry(options, aws)
        self._held = HeldLeases(registry, query_marks(options))
        self._options, self._job_id, self._query = options, job_id, query
        self._used: tuple[str, ...] = ()
        """The streams that are read."""
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
        held = self._held.streams
        # All, or the streams of a pattern, which have no ARNs.
        missing = tuple(one for one in streams if one not in held)
        for request in lease_requests(replace(self._options, stream_name=missing), self._job_id, self._query):
            self._held.acquire(request, waiting(request))

    def use(self) -> None:
        """Give all that were acquired as `leases` from now on."""
        self._used = self._held.streams

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Those that are held now, one for each stream that is read."""
        return self._held.leases(self._used)

    def check(self) -> None:
        """Raise LeaseLostError if a lease was lost."""
        with _named():
            self._held.check()

    def settled(self) -> tuple[Lease, ...]:
        """See `HeldLeases.settled`.

        Raises:
            LeaseLostError: one was not got back.
        """
        with _named():
            return self._held.settled(self._used)

    def registered_again(self) -> tuple[Lease, ...]:
        """See `HeldLeases.registered_again`.

        Raises:
            LeaseLostError: others deregister a consumer again and again.
        """
        with _named():
            return self._held.registered_again(self._used)

    def release(self, is_robbed: Callable[[str], bool] = lambda _: False) -> None:
        """Give every lease back; the registry deregisters what it registered.

        But for consumers of which `is_robbed` says, by their ARN, that a query of another registry reads by them.
        """
        try:
            self._held.close(lambda lease: is_robbed(lease.consumer_arn))
        except Exception:
            # The query has ended all the same. Leases end by themselves, and the registry then cleans up.
            _log.warning("stream consumers of %s were not released", ", ".join(self._used), exc_info=True)


@contextmanager
def _named() -> Iterator[None]:
    """Raise the registry's errors as errors of a query."""
    try:
        yield
    except LostLease as error:
        raise LeaseLostError(error.stream_name, error.consumer_name, error.reason) from error
    except ConsumerDeregisteredError as error:
        raise LeaseLostError(error.stream_name, error.consumer_name, str(error)) from error


def open_query_registry(options: KinesisOptions, aws: AwsOptions) -> BlockingConsumerRegistry:
    """The registry of the options: a service, or a file."""
    return open_registry(
        endpoint=options.registry_endpoint,
        security=service_security(options),
        aws=aws,
        store_path=Path(options.registry_store) if options.registry_store else None,
        patience=timedelta(seconds=options.retry_patience),
    )


def lease_requests(options: KinesisOptions, job_id: str, query: str = "") -> list[AcquireRequest]:
    """For a lease on the consumer of each stream."""
    claim = f"{query or uuid.uuid4().hex}/{uuid.uuid4().hex}"
    # A registry in this process has it already.
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
            caller=caller,
        )
        for stream in options.stream_name
    ]
