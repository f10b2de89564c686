"""The reading session of a query: stream consumers leased, a shard reader opened, both kept while the query lives."""

import contextlib
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock.aws import AwsOptions
from penstock.efo_consumer import (
    BlockingSession,
    PositionsSnapshot,
    ReaderHost,
    ReaderUnavailableError,
    RecordPublisherType,
    ShardFailedError,
    StreamConsumer,
    StreamPositions,
    connect_reader,
)
from penstock.efo_consumer.errors import SubscriptionTakenOverError
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
from penstock.rpc import ClientSecurity, ServerStartError
from penstock.spark_plugin._connections import aws_options, caller_location, service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.session.addresses import reader_address
from penstock.spark_plugin._reading.session.configs import reader_config, registrar_config, session_settings
from penstock.spark_plugin._reading.session.waiting import HELD_TIMEOUT, LeaseMarks, waiting
from penstock.spark_plugin.errors import LeaseLostError, ReaderAddressError

_log = logging.getLogger(__name__)
_LATE_SECONDS = 5.0
_NOT_FOUND = "ResourceNotFoundException"
_ASK_AGAIN_SECONDS = 0.5
_TELL_AGAIN_SECONDS = 30.0


class ReadingSession(Protocol):
    """What the stream reader needs of its session. `penstock.spark_plugin.testing` has a fake."""

    @property
    def session_id(self) -> str:
        """Of the reader's session."""
        ...

    @property
    def address(self) -> str:
        """`host:port` where tasks find the reader."""
        ...

    @property
    def socket_path(self) -> Path | None:
        """Unix socket of the same reader, where there is one for tasks of this machine."""
        ...

    @property
    def security(self) -> ClientSecurity:
        """How tasks prove themselves there."""
        ...

    @property
    def reader(self) -> BlockingSession:
        """The reader; its session is open."""
        ...

    def check(self) -> None:
        """Raise LeaseLostError if a stream consumer was lost."""
        ...

    def positions(
        self, start: StreamPositions, *, max_records: int = 0, max_bytes: int = 0, wait_seconds: float = 0.0
    ) -> PositionsSnapshot:
        """How far the reader has come; see `BlockingSession.positions`. Raises LeaseLostError as `check` does."""
        ...

    def close(self) -> None:
        """End the reader, then give the leases back."""
        ...


class ConsumerLeases:
    """Leases on a query's stream consumers, kept by heartbeats until they are released.

    One that ran out, in a pause of this process for instance, is taken back if nobody else has the consumer; that is
    registered again where it was deregistered, and has another ARN then.
    """

    def __init__(self, options: KinesisOptions, aws: AwsOptions, job_id: str, query: str = "") -> None:
        self._registry = open_query_registry(options, aws)
        self._marks = LeaseMarks(options)
        self._news = threading.Condition()
        self._lost: LostLease | None = None
        self._leases: list[Lease] = []
        try:
            for number, request in enumerate(lease_requests(options, job_id, query)):
                with waiting(self._registry, request, self._marks):
                    lease = self._registry.acquire(request)
                self._marks.hold(lease)
                self._leases.append(lease)
                self._registry.keep(lease, self._on_lost, partial(self._on_regained, number))
        except BaseException:
            self.release()
            raise

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Those that are held now, one for each stream."""
        with self._news:
            return tuple(self._leases)

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
                if self._lost is None and tuple(self._leases) == leases:
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
        for lease in self.leases:
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


class KinesisSession:
    """A session on a reader of the query's own, or on the shard-reader services that the options name."""

    def __init__(
        self, options: KinesisOptions, positions: StreamPositions, after_epoch: int = 0, query: str = ""
    ) -> None:
        aws = aws_options(options)
        job_id = options.job_id or f"query-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        # A job may read several streams, each by a source of its own: they must not take each other's session.
        self.session_id = "/".join((job_id, ",".join(options.stream_name), options.efo_consumer_name or ""))
        self._options = options
        self._leases: ConsumerLeases | None = None
        self._used: tuple[Lease, ...] = ()
        self._host: ReaderHost | None = None
        with contextlib.ExitStack() as undo:
            if options.record_publisher == "efo":
                self._leases = ConsumerLeases(options, aws, job_id, query)
                undo.callback(self._leases.release)
                self._used = self._leases.leases
            if options.reader_endpoint:
                self.security = service_security(options)
                self.reader: BlockingSession = connect_reader(
                    options.reader_endpoint, self.security, patience_seconds=options.retry_patience or math.inf
                )
                undo.callback(self.reader.close)
            else:
                self._host = _start_host(options, aws)
                undo.callback(self._host.close)
                self.security = self._host.security
                self.reader = self._host.reader
            self.reader.open(
                self.session_id,
                positions,
                RecordPublisherType(options.record_publisher),
                _consumers(options, self._used),
                fail_on_data_loss=options.fail_on_data_loss,
                retry_patience_seconds=options.retry_patience,
                # A reader in this process has them already.
                settings=session_settings(options) if options.reader_endpoint else None,
                caller=caller_location(options) if options.reader_endpoint else None,
                after_epoch=after_epoch,
            )
            # Of several services all addresses: tasks ask the one that follows a shard.
            self.address = self._host.address if self._host else self.reader.endpoint or ""
            self.socket_path = self._host.socket_path if self._host else None
            undo.pop_all()

    def check(self) -> None:
        """Raise LeaseLostError if a stream consumer was lost."""
        if self._leases is not None:
            self._leases.check()

    def positions(
        self, start: StreamPositions, *, max_records: int = 0, max_bytes: int = 0, wait_seconds: float = 0.0
    ) -> PositionsSnapshot:
        """See `BlockingSession.positions`. Leases that were taken back are told to the reader, which goes on by them.

        Raises:
            LeaseLostError: a stream consumer was lost.
        """
        ask = partial(
            self.reader.positions, start, max_records=max_records, max_bytes=max_bytes, wait_seconds=wait_seconds
        )
        if self._leases is None:
            return ask()
        held = self._leases.leases
        while True:
            if held != self._used:
                self._reopen(start, held)
            try:
                return ask()
            except (ShardFailedError, SubscriptionTakenOverError) as error:
                # Perhaps for want of the consumer, which was deregistered or given away in a pause, or by others.
                held = self._leases.settled()
                if held == self._used:
                    held = self._leases.registered_again() if error.code == _NOT_FOUND else held
                    if _arns(held) == _arns(self._used):
                        raise

    def _reopen(self, start: StreamPositions, held: tuple[Lease, ...]) -> None:
        """Let the reader subscribe by the consumers of these leases; by those that it has it goes on undisturbed."""
        _log.warning(
            "reading on by stream consumers that were taken back, or registered again: %s", ", ".join(_arns(held))
        )
        until = time.monotonic() + self.reader.patience_seconds
        while True:
            try:
                self.reader.reopen(start, _consumers(self._options, held))
            except ReaderUnavailableError:
                # Other calls wait for services by themselves.
                self.check()
                if time.monotonic() >= until:
                    raise
                time.sleep(_ASK_AGAIN_SECONDS)
            else:
                self._used = held
                return

    def close(self) -> None:
        """End the reader, then give the leases back: a consumer is deregistered when nobody reads by it any more."""
        with contextlib.ExitStack() as stack:
            if self._leases is not None:
                stack.callback(self._leases.release, self.reader.is_robbed)
            if self._host is not None:
                stack.callback(self._host.close)
            stack.callback(self.reader.close)


def _start_host(options: KinesisOptions, aws: AwsOptions) -> ReaderHost:
    address = reader_address(options)
    host = ReaderHost(
        config=reader_config(options),
        aws=aws,
        host=address.bind_host,
        port=address.port,
        advertised_host=address.host,
    )
    try:
        return host.start()
    except ServerStartError as error:
        raise ReaderAddressError(f"{address.bind_host}:{address.port}", address.reason, error.reason) from error


def open_session(
    options: KinesisOptions, positions: StreamPositions, after_epoch: int = 0, query: str = ""
) -> ReadingSession:
    """Lease the stream consumers, if there are any, and open a reader at the positions.

    The number of this run will be larger than `after_epoch`, the newest that the checkpoint knows. Leases of a former
    run of `query`, a name in the checkpoint, are taken over as those of a job with a `jobId` are.
    """
    return KinesisSession(options, positions, after_epoch, query)


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


def _arns(leases: Sequence[Lease]) -> list[str]:
    return [one.consumer_arn for one in leases]


def _consumers(options: KinesisOptions, leases: Sequence[Lease]) -> list[StreamConsumer]:
    return [
        StreamConsumer(options.arn_of(one.stream_name) or one.stream_name, one.consumer_arn, one.fencing_token)
        for one in leases
    ]
