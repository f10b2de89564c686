"""Waiting for a stream consumer that another job holds: saying so, and knowing when that job is dead."""

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from penstock.registration import AcquireRequest, BlockingConsumerRegistry, ConflictPolicy, Lease, default_store_path
from penstock.rpc import lock_file
from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_log = logging.getLogger(__name__)
HELD_TIMEOUT = timedelta(minutes=5)
"""How long a query waits for a predecessor's lease: longer than a lease lives, so that only a live holder fails it."""

_LOOK_SECONDS = 0.5
_LATE_SECONDS = 5.0
"""A consumer is ours within seconds, unless another query holds it."""

_TAKE_OVER_TIMEOUT = timedelta(seconds=30)
_KEPT_SECONDS = 86_400.0
"""Longer than any lease lives without its holder."""


class LeaseMarks:
    """Locked files that say which leases a living process of this machine holds.

    A lock ends with its process, however that ends. So a lease whose file is there and is not locked was held by a
    process that is dead: by that very lease, as its fencing token is in the file's name, and by this very kernel. Where
    there is no file, as of a process on another machine, nothing is known.

    Args:
        options: name the registry and the endpoint.
        folder: for the files.
    """

    def __init__(self, options: KinesisOptions, folder: Path | None = None) -> None:
        self._place = (options.registry_endpoint, options.registry_store, options.endpoint_url, _boot())
        self._folder = folder or default_store_path().with_name("held")
        self._held: dict[Path, int] = {}

    def hold(self, lease: Lease) -> None:
        """Say that this process holds a lease, until `close`."""
        if not self._place[-1]:
            return
        path = self._path(lease)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_old()
            # Under its name it is seen locked only.
            number, made = tempfile.mkstemp(dir=self._folder)
            lock_file(number, wait=True)
            os.replace(made, path)
        except OSError as error:
            _log.debug("a restart would have to wait for this lease to end: %s", error)
            return
        self._held[path] = number

    def is_dead(self, lease: Lease) -> bool:
        """Whether the process that held a lease is known to be dead."""
        return _is_free(self._path(lease))

    def close(self) -> None:
        """Hold none any more."""
        held, self._held = self._held, {}
        for path, number in held.items():
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(number)

    def _path(self, lease: Lease) -> Path:
        which = (*self._place, lease.stream_arn, lease.consumer_name, lease.job_id, lease.fencing_token)
        return self._folder / hashlib.sha256(repr(which).encode()).hexdigest()[:32]

    def _remove_old(self) -> None:
        """Remove files of processes that are dead, and whose leases are over."""
        for file in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > _KEPT_SECONDS and _is_free(file):
                    file.unlink()


def _is_free(path: Path) -> bool:
    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return lock_file(number)
    except OSError:
        return False
    finally:
        os.close(number)


def _boot() -> str:
    """A name of the running kernel; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def waiting(registry: BlockingConsumerRegistry, request: AcquireRequest, marks: LeaseMarks) -> Iterator[None]:
    """Log why nothing seems to happen while a consumer is acquired: another job holds it.

    Its lease is taken over if the process that held it is known to be dead. The request's claim has a name.
    """
    is_over = threading.Event()
    watching = threading.Thread(target=_watch, args=(registry, request, marks, is_over), daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()


def _watch(
    registry: BlockingConsumerRegistry, request: AcquireRequest, marks: LeaseMarks, is_over: threading.Event
) -> None:
    began, told_of = time.monotonic(), None
    while not is_over.wait(_LOOK_SECONDS):
        try:
            consumers = registry.list_consumers(request.stream_arn or request.stream_name)
        except Exception as error:
            # What fails is reported by the call that waits.
            _log.debug("cannot tell who holds consumer %s: %s", request.consumer_name, error)
            continue
        lease = next((one.lease for one in consumers if one.consumer_name == request.consumer_name), None)
        if is_over.is_set():
            return
        if lease is None or lease.job_id == request.job_id:
            if told_of is None and time.monotonic() - began >= _LATE_SECONDS:
                told_of = request.job_id
                _log.warning(
                    "still waiting for consumer %r of %s: Kinesis is creating it",
                    request.consumer_name,
                    request.stream_name,
                )
        elif marks.is_dead(lease):
            # By its job the lease goes on until the call that waits gets it: that is not waited for.
            told_of = lease.job_id
            _take_over(registry, request, lease)
        elif told_of != lease.job_id:
            told_of = lease.job_id
            _tell_held(request, lease)


def _take_over(registry: BlockingConsumerRegistry, request: AcquireRequest, lease: Lease) -> None:
    """Take the lease of a dead process for the request, whose own acquire then gets it as that of its claim's name."""
    _log.warning(
        "consumer %r of %s was held by job %r, whose process on this machine is dead: its lease is not waited for",
        request.consumer_name,
        request.stream_name,
        lease.job_id,
    )
    name, _, _ = request.claim.rpartition("/")
    taken = replace(
        request,
        job_id=lease.job_id,
        claim=f"{name}/{uuid.uuid4().hex}",
        # Only that very lease, and none that somebody was given since.
        after_fencing_token=lease.fencing_token,
        conflict_policy=ConflictPolicy.REFUSE,
        timeout=_TAKE_OVER_TIMEOUT,
    )
    try:
        registry.acquire(taken)
    except Exception as error:
        # The request itself is faster, as soon as the lease is of its claim's name; or somebody else was.
        _log.debug("consumer %s: %s", request.consumer_name, error)


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
