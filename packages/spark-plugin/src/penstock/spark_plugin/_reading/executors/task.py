"""A shard reader as a task: it runs on an executor until its driver releases it."""

import logging
import os
import select
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import FrameType

from penstock.efo_consumer import ReaderHost
from penstock.rpc import collect_seldom
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.executors.fleet_file import ExecutorReader
from penstock.spark_plugin._reading.executors.roster import (
    Invitation,
    join_roster,
    own_address,
    report_failure,
    write_certificate,
)
from penstock.spark_plugin._reading.session.addresses import LOOPBACK, READER_HOST, ancestors
from penstock.spark_plugin._reading.session.configs import reader_config

_log = logging.getLogger(__name__)
_SESSION_TIMEOUT = timedelta(hours=1)
"""As of the service; queries say a shorter one for theirs."""
_LOOK_SECONDS = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""SIGHUP is what PySpark's daemon sends its workers when the executor ends, or the session."""


def serve(number: int, invitation: Invitation) -> None:
    """Serve as a reader of the session, until the driver closes the roster, the executor ends, or either is gone.

    Raises:
        Exception: the reader cannot be started; the failure was reported to the driver.
    """
    # The worker is this task's for as long as it serves.
    collect_seldom()
    with _wakened_by(_SIGNALS) as wakened, tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            host = _host(invitation, Path(folder)).start()
        except Exception as error:
            report_failure(invitation, number, f"{type(error).__name__}: {error}")
            raise
        with host:
            path = None if host.socket_path is None else str(host.socket_path)
            me = ExecutorReader(number, host.address, path, _executor_host() or socket.gethostname(), os.getpid())
            with join_roster(invitation, me) as roster:
                _log.info("shard reader %d serves at %s", number, me.address)
                reason = _wait(roster, wakened)
            _log.info("shard reader %d at %s ends: %s", number, me.address, reason)


def _host(invitation: Invitation, folder: Path) -> ReaderHost:
    options = KinesisOptions.parse(invitation.options, stream_required=False)
    certificate, key = None, None
    if invitation.certificate is not None:
        certificate, key = write_certificate(invitation.certificate, folder)
    return ReaderHost(
        config=replace(reader_config(options), session_timeout=_SESSION_TIMEOUT),
        aws=aws_options(options),
        host=LOOPBACK if invitation.loopback else _reachable_host(invitation),
        token=invitation.token,
        certificate_file=certificate,
        private_key_file=key,
        serves_others=True,
    )


def _reachable_host(invitation: Invitation) -> str:
    """The address by which the cluster knows this executor; or else from which it reaches the driver."""
    return os.environ.get(READER_HOST) or _executor_host() or own_address(invitation)


def _executor_host() -> str | None:
    """Out of the executor's command line (Linux): Spark says it nowhere else."""
    for _, line in ancestors():
        for name, value in pairwise(line):
            if name == "--hostname" and value:
                return value
    return None


def _wait(roster: socket.socket, wakened: socket.socket) -> str:
    """Wait for the end; give the reason."""
    parent = os.getppid()
    while True:
        ready, _, _ = select.select([roster, wakened], [], [], _LOOK_SECONDS)
        if wakened in ready:
            return "the executor ends"
        if roster in ready:
            return "the driver released it"
        if os.getppid() != parent:
            return "the executor is gone"


@contextmanager
def _wakened_by(numbers: tuple[signal.Signals, ...]) -> Iterator[socket.socket]:
    """A socket that has something to read after a signal; as it was, afterwards: Spark uses its workers again."""
    wakened, waker = socket.socketpair()
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def wake(_number: int, _frame: FrameType | None) -> None:
        waker.send(b"!")

    with wakened, waker:
        waker.setblocking(False)
        try:
            for number in numbers:
                before[number] = signal.signal(number, wake)
            yield wakened
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
