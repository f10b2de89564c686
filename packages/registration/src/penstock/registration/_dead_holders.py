"""Takes over leases whose holder was a process of this machine that is dead."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.registration._stores.url import default_store_path
from penstock.registration._values import AcquireRequest, ConflictPolicy, Lease
from penstock.rpc import lock_file, make_folder, open_regular

if TYPE_CHECKING:
    from penstock.registration._synchronous import BlockingConsumerRegistry

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_TAKE_OVER_TIMEOUT = timedelta(seconds=30)
_KEPT_SECONDS = 86_400.0
"""Longer than any lease lives without its holder."""


class LeaseMarks:
    """Locked files that show which leases a living process of this machine holds.

    A lock ends with its process, even if the process is killed. So if the file of a lease exists and is not locked, the
    process that held this lease is dead: the file's name contains the lease's fencing token and the running kernel. A
    lease without a file, such as the lease of a process on another machine, may be alive or not.

    Args:
        endpoint: `host:port` of the registry service; None for a registry in this process.
        store: path or URL of the lease store of a registry in this process; None for the default.
        endpoint_url: of Kinesis, where it is not AWS's own.
        folder: for the files. Default: `held` in the user's state directory.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        store: Path | str | None = None,
        endpoint_url: str | None = None,
        folder: Path | None = None,
    ) -> None:
        place = str(store.absolute()) if isinstance(store, Path) else store
        self._place = (endpoint, place, endpoint_url, _boot())
        self._folder = folder or default_store_path().with_name("held")
        self._held: dict[Path, int] = {}

    def hold(self, lease: Lease) -> None:
        """Mark a lease as held by this process, until `let_go` or `close`."""
        if not self._place[-1]:
            return
        path = self._path(lease)
        try:
            make_folder(self._folder)
            self._remove_old()
            # The file gets its name when it is locked.
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

    def let_go(self, lease: Lease) -> None:
        """Remove the mark of a lease."""
        self._remove(self._path(lease))

    def close(self) -> None:
        """Remove the marks of all leases."""
        for path in [*self._held]:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        number = self._held.pop(path, None)
        if number is not None:
            with suppress(OSError):
                path.unlink()
            os.close(number)

    def _path(self, lease: Lease) -> Path:
        which = (*self._place, lease.stream_arn, lease.consumer_name, lease.job_id, lease.fencing_token)
        return self._folder / hashlib.sha256(repr(which).encode()).hexdigest()[:32]

    def _remove_old(self) -> None:
        """Remove files of processes that are dead, and whose leases are over."""
        for file in self._folder.iterdir():
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > _KEPT_SECONDS and _is_free(file):
                    file.unlink()


def _is_free(path: Path) -> bool:
    try:
        number = open_regular(path, os.O_RDWR)
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


class HolderWatch:
    """Finds the holder of the consumer that a request asks for, and takes over the lease of a dead process.

    The request then gets the consumer at once, because its claim has the same name.

    Args:
        registry: where the request is made.
        request: its claim has a name (`NAME/RUN`).
        marks: of the processes on this machine.
    """

    def __init__(self, registry: BlockingConsumerRegistry, request: AcquireRequest, marks: LeaseMarks) -> None:
        self._registry, self._request, self._marks = registry, request, marks
        self._dead_job_id = ""

    def look(self) -> Lease | None:
        """Return the lease of another job; None without one, or if it was taken over here.

        Raises:
            RegistrationError: the registry does not say who holds the consumer.
        """
        request = self._request
        consumers = self._registry.list_consumers(request.stream_arn or request.stream_name)
        lease = next((one.lease for one in consumers if one.consumer_name == request.consumer_name), None)
        if lease is None or lease.job_id == request.job_id:
            return None
        if self._marks.is_dead(lease):
            self._dead_job_id = lease.job_id
            self._take_over(lease)
        # A lease that was taken over is held in the name of the dead job until the request gets it.
        return None if lease.job_id == self._dead_job_id else lease

    @contextmanager
    def looking(self, told: Callable[[Lease | None], None] = lambda _: None) -> Iterator[None]:
        """Call `look` twice a second on a thread until the context ends, while the request waits for the consumer.

        Args:
            told: called on that thread with each result.
        """
        is_over = threading.Event()
        threading.Thread(target=self._look_until, args=(is_over, told), name="penstock holder", daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def _look_until(self, is_over: threading.Event, told: Callable[[Lease | None], None]) -> None:
        while not is_over.wait(_LOOK_SECONDS):
            try:
                lease = self.look()
            except Exception as error:
                # The call that waits reports the failure.
                _log.debug("cannot tell who holds consumer %s: %s", self._request.consumer_name, error)
                continue
            if is_over.is_set():
                return
            told(lease)

    def _take_over(self, lease: Lease) -> None:
        request = self._request
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
            # Only this lease, not one that another job got since.
            after_fencing_token=lease.fencing_token,
            conflict_policy=ConflictPolicy.REFUSE,
            timeout=_TAKE_OVER_TIMEOUT,
        )
        try:
            self._registry.acquire(taken)
        except Exception as error:
            # The request itself was faster, or another process was.
            _log.debug("consumer %s: %s", request.consumer_name, error)
