"""The stream consumers of a `Consumer`: registered, leased and released with penstock-registration."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import socket
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from platformdirs import user_state_path

from penstock.aws import AwsLocation, AwsOptions, AwsSession
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._reader.api import StreamConsumer
from penstock.efo_consumer.errors import EfoConsumerConfigError
from penstock.registration import (
    AcquireRequest,
    BlockingConsumerRegistry,
    HeldLeases,
    LeaseMarks,
    open_local_registry,
    open_registry,
    open_store,
)
from penstock.registration.errors import AcquireTimeoutError, ConsumerHeldError
from penstock.rpc import RpcOptionError, check_address, lock_file, make_folder, open_regular

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from penstock.registration import Lease
    from penstock.rpc import ClientSecurity

_log = logging.getLogger(__name__)
_ASK_AGAIN_SECONDS = 0.5
_TELL_AGAIN_SECONDS = 60.0
_STORE_URL = re.compile(r"(sqlite|dynamodb):")


class JobIdentity:
    """The name by which a consumer holds leases: unique, and the same after a restart on this machine.

    It is stored in a file that is locked while it is used, and a lock ends with its process: a consumer that gets it
    knows that the previous holder is dead, and need not wait until its lease expires. Without the file it is new.

    Args:
        name: the consumer's.
        folder: for the file.
    """

    def __init__(self, name: str, folder: Path) -> None:
        host = socket.gethostname()
        self.job_id = f"{name}@{host}/{uuid.uuid4().hex[:8]}"
        self._file: IO[str] | None = None
        path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.job"
        try:
            make_folder(folder)
            with ExitStack() as unless_ours:
                number = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode=0o600)
                file = unless_ours.enter_context(os.fdopen(number, "a+"))
                if not lock_file(file):
                    return
                unless_ours.pop_all()
        except OSError as error:
            _log.debug("%s is a new job with each start: %s", name, error)
            return
        self._file = file
        file.seek(0)
        known = file.read().strip()
        # A folder that was copied to another machine names another job.
        if known.startswith(f"{name}@{host}/"):
            self.job_id = known
            return
        file.truncate(0)
        file.write(self.job_id)
        file.flush()

    def close(self) -> None:
        """Let the next process have it. Harmless when called again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class ConsumerLeases:
    """Leases on one stream consumer per stream, kept until `aclose`. For one event loop.

    Args:
        aws: credentials, region and endpoint.
        registry: a SQLite file, in the user's state directory when None; the URL of a store, or `host:port` of a
            registry service.
        security: how a registry service is reached.
        timeout: how long to wait for another's lease; None: without end.

    Raises:
        EfoConsumerConfigError: the registry is not one of these kinds.
        AwsOptionError: `aws` is not an `AwsOptions`.
    """

    def __init__(
        self,
        aws: AwsOptions,
        registry: Path | str | None,
        security: ClientSecurity | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self._aws = AwsOptions.of(aws)
        self._place = registry
        self._endpoint = None
        if isinstance(registry, str) and not _STORE_URL.match(registry):
            try:
                check_address(registry)
            except RpcOptionError as error:
                raise EfoConsumerConfigError(
                    option="registry",
                    reason=f"the registry {error.reason}: give a Path, a URL (sqlite:///PATH, dynamodb://TABLE), or "
                    "host:port of a registry service",
                ) from error
            self._endpoint = registry
        if security is not None and self._endpoint is None:
            raise EfoConsumerConfigError(
                option="registry_security", reason="is for a registry service: give its host:port as registry"
            )
        self._security = security
        self._timeout_seconds = None if timeout is None else timeout.total_seconds()
        store = None if self._endpoint is not None else registry
        self._marks = LeaseMarks(endpoint=self._endpoint, store=store, endpoint_url=aws.endpoint_url)
        self._held: HeldLeases | None = None
        self.robbed: frozenset[str] = frozenset()
        """Streams of which another reader took subscriptions, by the same consumer."""
        self._lost = asyncio.Event()
        self._error: Exception | None = None

    async def acquire(self, streams: Sequence[str], consumer_name: str, job_id: str) -> tuple[StreamConsumer, ...]:
        """Register the consumer of each stream when it is not there, wait until it is ACTIVE, and keep its lease.

        The streams' consumers are made side by side: each takes seconds, up to a minute. When this is cancelled or
        fails for one, the others are waited for, so that `aclose` releases all: a consumer is paid for by the hour.

        It waits for a consumer that another job holds, unless the job's process ran on this machine and is dead: then
        it takes the lease over. Two that each hold some of what the other needs do not wait for each other: who waits
        for a stream gives back those behind it in order.

        Raises:
            AcquireTimeoutError: another job holds one, and did so for longer than the timeout.
            RegistrationError: it cannot be registered.
        """
        loop = asyncio.get_running_loop()

        def on_lost(error: Exception) -> None:
            self._error = self._error or error
            loop.call_soon_threadsafe(self._lost.set)

        self._held = leases = HeldLeases(self._open(), self._marks, on_lost)
        requests = self._requests(streams, consumer_name, job_id)
        waiting, began, told_at = sorted(streams), time.monotonic(), -math.inf
        while waiting:
            outcomes = await _acquire(leases, [requests[stream] for stream in waiting])
            held = {stream: one for stream, one in outcomes.items() if isinstance(one, ConsumerHeldError)}
            for error in (one for one in outcomes.values() if one is not None and one not in held.values()):
                raise error
            if not held:
                break
            first, now = min(held), time.monotonic()
            if self._timeout_seconds is not None and now - began >= self._timeout_seconds:
                raise AcquireTimeoutError(
                    stream_name=first,
                    consumer_name=consumer_name,
                    timeout_seconds=self._timeout_seconds,
                    holder_job_id=held[first].holder_job_id,
                )
            self.check()
            behind = [stream for stream in leases.streams if stream > first]
            await asyncio.to_thread(leases.release, behind)
            waiting = sorted([*held, *behind])
            if now - told_at >= _TELL_AGAIN_SECONDS:
                told_at = now
                _log.warning(
                    "waiting for consumer %r of %s, which %r has held for %.0f s: this consumer begins when that one "
                    "has stopped. To read side by side give each a name of its own",
                    consumer_name,
                    first,
                    held[first].holder_job_id,
                    held[first].held_seconds,
                )
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        return _consumers(streams, leases.leases(streams))

    async def settled(self, streams: Sequence[str]) -> tuple[StreamConsumer, ...]:
        """The streams' consumers, once the registry agrees that all leases are held. See `HeldLeases.settled`.

        Raises:
            LeaseLostError: one was not got back.
        """
        assert self._held is not None
        return _consumers(streams, await asyncio.to_thread(self._held.settled, streams))

    async def registered_again(self, streams: Sequence[str]) -> tuple[StreamConsumer, ...]:
        """The streams' consumers; those that others deregistered are registered again.

        Raises:
            ConsumerDeregisteredError: others deregister one again and again.
        """
        assert self._held is not None
        return _consumers(streams, await asyncio.to_thread(self._held.registered_again, streams))

    def _requests(self, streams: Sequence[str], consumer_name: str, job_id: str) -> dict[str, AcquireRequest]:
        # A registry in this process is at the same place.
        caller = None if self._endpoint is None else AwsLocation.of(AwsSession(self._aws))
        return {
            stream: AcquireRequest(
                stream_name=stream,
                stream_arn=StreamIdentity.of(stream).arn,
                consumer_name=consumer_name,
                job_id=job_id,
                caller=caller,
                # With a name, by which a lease that is taken over becomes the one of this request.
                claim=f"{uuid.uuid4().hex}/{uuid.uuid4().hex}",
            )
            for stream in streams
        }

    def identity(self, name: str) -> JobIdentity:
        """The holder of the leases. Close it after them."""
        if isinstance(self._place, Path):
            return JobIdentity(name, self._place.with_name(f"{self._place.name}.jobs"))
        return JobIdentity(name, user_state_path("penstock") / "jobs")

    @property
    def are_lost(self) -> bool:
        """Whether one of them is lost."""
        return self._error is not None

    def check(self) -> None:
        """Raise the reason if one of them is lost."""
        if self._error is not None:
            raise self._error

    async def lost(self) -> Exception:
        """Wait until a lease is lost; give the reason."""
        await self._lost.wait()
        assert self._error is not None
        return self._error

    async def aclose(self) -> None:
        """Release the leases: consumers that were registered for them are deregistered.

        A consumer whose subscriptions another reader took stays: that reader uses another registry.
        """
        held, self._held = self._held, None
        if held is not None:
            await asyncio.to_thread(held.close, lambda lease: StreamIdentity.of(lease.stream_name).name in self.robbed)

    def _open(self) -> BlockingConsumerRegistry:
        if self._endpoint is not None:
            return open_registry(endpoint=self._endpoint, security=self._security)
        if isinstance(self._place, str):
            session = AwsSession(self._aws)
            url = self._place
            return BlockingConsumerRegistry(lambda: open_local_registry(session, store=open_store(url, session)))
        return open_registry(aws=self._aws, store_path=self._place)


async def _acquire(leases: HeldLeases, requests: Sequence[AcquireRequest]) -> dict[str, BaseException | None]:
    """Acquire side by side, and give what became of each stream. All end before a cancellation does."""
    acquired = asyncio.gather(
        *(asyncio.to_thread(leases.acquire, request) for request in requests), return_exceptions=True
    )
    try:
        outcomes = await asyncio.shield(acquired)
    except asyncio.CancelledError:
        await acquired
        raise
    return {request.stream_name: outcome for request, outcome in zip(requests, outcomes, strict=True)}


def _consumers(streams: Sequence[str], leases: Sequence[Lease]) -> tuple[StreamConsumer, ...]:
    found = zip(streams, leases, strict=True)
    return tuple(StreamConsumer(stream, one.consumer_arn, one.fencing_token) for stream, one in found)
