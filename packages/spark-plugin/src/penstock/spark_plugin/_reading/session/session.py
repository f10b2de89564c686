"""The reading session of a query: stream consumers leased, a shard reader opened, both kept while the query lives."""

import contextlib
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from penstock.aws import AwsOptions
from penstock.efo_consumer import (
    BlockingSession,
    PositionsSnapshot,
    ReaderHost,
    ReaderUnavailableError,
    RecordPublisherType,
    ShardFailedError,
    ShardStats,
    StreamConsumer,
    StreamPositions,
    connect_reader,
)
from penstock.efo_consumer.errors import SubscriptionTakenOverError
from penstock.registration import Lease
from penstock.rpc import ServerStartError
from penstock.spark_plugin._connections import aws_options, caller_location, service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions, check_beside_readers
from penstock.spark_plugin._reading.executors.fleet_file import ExecutorFleet
from penstock.spark_plugin._reading.session.addresses import reader_address
from penstock.spark_plugin._reading.session.announcing import ReaderAnnouncer
from penstock.spark_plugin._reading.session.configs import reader_config, session_settings
from penstock.spark_plugin._reading.session.leases import QueryLeases
from penstock.spark_plugin.errors import SparkPluginError

_log = logging.getLogger(__name__)
_NOT_FOUND = "ResourceNotFoundException"
_ASK_AGAIN_SECONDS = 0.5


class ReadingSession:
    """A session with a reader of the query's own, with the readers of `start_readers`, or with services.

    `penstock.spark_plugin.testing` has a fake.

    Attributes:
        session_id: the session's name at the reader.
        security: how tasks authenticate to the reader.
        reader: the reader; its session is open.
    """

    def __init__(
        self, options: KinesisOptions, positions: StreamPositions, after_epoch: int = 0, query: str = ""
    ) -> None:
        """Lease the stream consumers, if there are any, and open a reader at the positions.

        The number of this run will be larger than `after_epoch`, the newest in the checkpoint. Leases of an earlier
        run of `query`, a name in the checkpoint, are taken over, like leases of a job with a `jobId`.
        """
        aws = aws_options(options)
        job_id = options.job_id or f"query-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        # A job may read several streams, each by a source of its own: they must not take each other's session.
        self.session_id = "/".join((job_id, ",".join(options.stream_name), options.efo_consumer_name or ""))
        self._options = options
        self._leases: QueryLeases | None = None
        self._used: tuple[Lease, ...] = ()
        self._host: ReaderHost | None = None
        self._announcer: ReaderAnnouncer | None = None
        self._fleet = _executor_fleet(options)
        with contextlib.ExitStack() as undo:
            if options.record_publisher == "efo":
                self._leases = QueryLeases(options, aws, job_id, query)
                undo.callback(self._leases.release)
                self._used = self._leases.leases
            patience = options.retry_patience or math.inf
            if options.reader_endpoint:
                self.security = service_security(options)
                self.reader: BlockingSession = connect_reader(
                    options.reader_endpoint, self.security, patience_seconds=patience
                )
                undo.callback(self.reader.close)
            elif self._fleet is not None:
                self.security = self._fleet.security
                self.reader = connect_reader(self._fleet.addresses, self.security, patience_seconds=patience)
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
                settings=None if self._host is not None else session_settings(options),
                caller=None if self._host is not None else caller_location(options),
                after_epoch=after_epoch,
            )
            if not options.reader_endpoint:
                # The console finds services on its own; readers on executors accept only their session.
                view_token = self._host.view_token if self._host is not None else ""
                self._announcer = ReaderAnnouncer(options, job_id, self._stats_by_reader, view_token)
                undo.callback(self._announcer.close)
            undo.pop_all()

    @property
    def address(self) -> str:
        """`host:port` where tasks find the reader now; with several readers all of them, joined by commas."""
        return self._host.address if self._host is not None else self.reader.endpoint or ""

    @property
    def sockets(self) -> Mapping[str, Path]:
        """Unix sockets of the same readers by address, for tasks on their machines; empty if there are none."""
        if self._fleet is not None:
            return self._fleet.sockets()
        path = self._host.socket_path if self._host is not None else None
        return {} if path is None else {self.address: path}

    def _stats_by_reader(self) -> Mapping[str, Sequence[ShardStats]]:
        return {self.address: self.reader.stats()} if self._host is not None else self.reader.stats_by_reader()

    def check(self) -> None:
        """Raise LeaseLostError if a stream consumer was lost."""
        if self._leases is not None:
            self._leases.check()

    def positions(
        self,
        start: StreamPositions,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
        max_records_per_shard: int = 0,
        max_shard_skew_seconds: float | None = None,
    ) -> PositionsSnapshot:
        """See `BlockingSession.positions`. The reader continues with leases that were taken back.

        Raises:
            LeaseLostError: a stream consumer was lost.
        """
        ask = partial(
            self.reader.positions,
            start,
            max_records=max_records,
            max_bytes=max_bytes,
            wait_seconds=wait_seconds,
            max_records_per_shard=max_records_per_shard,
            max_shard_skew_seconds=max_shard_skew_seconds,
        )
        if self._leases is None:
            return ask()
        held = self._leases.leases
        while True:
            if held != self._used:
                _log.warning(
                    "reading on by stream consumers that were taken back, or registered again: %s",
                    ", ".join(_arns(held)),
                )
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

    def prepare(self, streams: Sequence[str]) -> None:
        """Lease the consumers of further streams, which may take long: any thread may call it.

        Raises:
            RegistrationError: a consumer cannot be leased.
        """
        if self._leases is not None:
            self._leases.acquire(streams)

    def extend(self, options: KinesisOptions, positions: StreamPositions) -> None:
        """Also read the streams that were prepared: the options name all streams, and all have positions."""
        self._options = options
        if self._leases is not None:
            self._leases.use()
        self._reopen(positions, self._leases.leases if self._leases is not None else ())

    def _reopen(self, start: StreamPositions, held: tuple[Lease, ...]) -> None:
        """Make the reader subscribe with the consumers of these leases; it keeps the subscriptions that it has."""
        until = time.monotonic() + self.reader.patience_seconds
        while True:
            try:
                self.reader.reopen(start, _consumers(self._options, held))
            except ReaderUnavailableError:
                # Other calls wait for services on their own.
                self.check()
                if time.monotonic() >= until:
                    raise
                time.sleep(_ASK_AGAIN_SECONDS)
            else:
                self._used = held
                return

    def close(self) -> None:
        """End the reader, then release the leases: a consumer is deregistered when no query reads with it."""
        with contextlib.ExitStack() as stack:
            if self._leases is not None:
                stack.callback(self._leases.release, self.reader.is_robbed)
            if self._host is not None:
                stack.callback(self._host.close)
            stack.callback(self.reader.close)
            if self._announcer is not None:
                stack.callback(self._announcer.close)


def _executor_fleet(options: KinesisOptions) -> ExecutorFleet | None:
    """The readers on executors, if the query uses them.

    Raises:
        OptionError: an option would have no effect there.
    """
    fleet = None if options.reader_endpoint or not options.executor_readers else ExecutorFleet.find()
    if fleet is not None:
        check_beside_readers(options)
    return fleet


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
        raise SparkPluginError.of(
            "READER_ADDRESS_UNUSABLE",
            address=f"{address.bind_host}:{address.port}",
            setting=address.reason,
            reason=error.reason,
        ) from error


def _arns(leases: Sequence[Lease]) -> list[str]:
    return [one.consumer_arn for one in leases]


def _consumers(options: KinesisOptions, leases: Sequence[Lease]) -> list[StreamConsumer]:
    return [
        StreamConsumer(options.arn_of(one.stream_name) or one.stream_name, one.consumer_arn, one.fencing_token)
        for one in leases
    ]
