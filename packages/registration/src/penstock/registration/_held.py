"""The leases of one job on the consumers of its streams."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Final

from penstock.registration._dead_holders import HolderWatch, LeaseMarks
from penstock.registration._synchronous import BlockingConsumerRegistry
from penstock.registration._values import AcquireRequest, Lease
from penstock.registration.errors import (
    ConsumerDeregisteredError,
    ConsumerHeldError,
    LeaseLostError,
    RegistrationError,
)

_logger = logging.getLogger(__name__)
_LATE_SECONDS: Final = 5.0
_ASK_AGAIN_SECONDS: Final = 0.5
_LOG_AGAIN_SECONDS: Final = 30.0


class HeldLeases:
    """The leases of one job, one for each stream: kept by heartbeats, and released together.

    A lease that expired, for example while this process was paused, is taken back unless another job has the consumer.
    Its consumer is registered again if it was deregistered, and then has another ARN. Usable from any thread; calls
    block.

    Args:
        registry: gives the leases; closed by `close`.
        marks: show other processes of this machine that this one is alive; closed by `close`.
        on_lost: called when a lease is lost, on a thread of its own.
    """

    def __init__(
        self,
        registry: BlockingConsumerRegistry,
        marks: LeaseMarks,
        on_lost: Callable[[LeaseLostError], None] = lambda _: None,
    ) -> None:
        self._registry = registry
        self._marks = marks
        self._on_lost = on_lost
        self._news = threading.Condition()
        self._leases: dict[str, Lease] = {}
        self._lost: LeaseLostError | None = None

    def acquire(self, request: AcquireRequest, told: Callable[[Lease | None], None] = lambda _: None) -> None:
        """Get a lease on a stream's consumer, and keep it.

        The lease of a process of this machine that is dead is taken over.

        Args:
            request: its claim has a name (`NAME/RUN`).
            told: see `HolderWatch.looking`.

        Raises:
            RegistrationError: the consumer cannot be leased.
        """
        watch = HolderWatch(self._registry, request, self._marks)
        with watch.looking(told):
            lease = self._acquire(request, watch)
        stream = request.stream_name
        self._have(stream, lease)
        self._registry.keep(lease, self._has_lost, partial(self._regained, stream))

    def _acquire(self, request: AcquireRequest, watch: HolderWatch) -> Lease:
        try:
            return self._registry.acquire(request)
        except ConsumerHeldError:
            with suppress(RegistrationError):
                # The holder is gone, or dead and its lease taken over.
                if watch.look() is None:
                    return self._registry.acquire(request)
            raise

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams in the order in which their leases were acquired."""
        with self._news:
            return tuple(self._leases)

    def leases(self, streams: Sequence[str]) -> tuple[Lease, ...]:
        """Return the newest lease of each of these streams."""
        with self._news:
            return tuple(self._leases[stream] for stream in streams)

    @property
    def is_lost(self) -> bool:
        """Whether a lease is lost."""
        return self._lost is not None

    def check(self) -> None:
        """Raise the error if a lease is lost.

        Raises:
            LeaseLostError: one is.
        """
        if self._lost is not None:
            raise self._lost

    def settled(self, streams: Sequence[str]) -> tuple[Lease, ...]:
        """Return the leases of these streams once the registry confirms that all are held.

        Raises:
            LeaseLostError: a lease that expired was not taken back.
        """
        log_at = time.monotonic() + _LATE_SECONDS
        while True:
            self.check()
            leases = self.leases(streams)
            missing = next((one for one in leases if not self._registry.is_held(one)), None)
            if missing is None:
                return leases
            if time.monotonic() >= log_at:
                log_at = time.monotonic() + _LOG_AGAIN_SECONDS
                _logger.warning(
                    "the lease on consumer %r of %s ran out; waiting until it is taken back, or another job has it",
                    missing.consumer_name,
                    missing.stream_name,
                )
            with self._news:
                if self._lost is None and tuple(self._leases[stream] for stream in streams) == leases:
                    self._news.wait(_ASK_AGAIN_SECONDS)

    def registered_again(self, streams: Sequence[str]) -> tuple[Lease, ...]:
        """Return the leases of these streams; consumers that were deregistered are registered again first.

        A consumer that cannot be registered again is logged: the reader's own error names the cause.

        Raises:
            ConsumerDeregisteredError: a consumer is deregistered again and again.
        """
        for stream, lease in zip(streams, self.leases(streams), strict=True):
            try:
                self._regained(stream, self._registry.register_again(lease))
            except ConsumerDeregisteredError:
                raise
            except RegistrationError as error:
                _logger.warning(
                    "consumer %s of %s is not registered again: %s", lease.consumer_name, lease.stream_name, error
                )
        return self.leases(streams)

    def release(self, streams: Sequence[str], is_robbed: Callable[[Lease], bool] = lambda _: False) -> None:
        """Release leases; the registry deregisters the consumers that it registered.

        Args:
            streams: the streams of the leases. Each is released even if another one fails: consumers cost by the hour.
            is_robbed: whether another reader, which knows another registry, took subscriptions of the lease's consumer.
                Then the consumer stays registered.

        Raises:
            RegistrationError: a lease cannot be released. It expires, and a registry then deregisters the consumer.
        """
        with ExitStack() as exits:
            for stream in streams:
                with self._news:
                    lease = self._leases.pop(stream)
                disown = is_robbed(lease)
                if disown:
                    _logger.warning(
                        "consumer %s of %s: another reader, which knows another registry, took its subscriptions%s. "
                        "Give each reader a consumer name of its own, or both the same registry",
                        lease.consumer_name,
                        lease.stream_name,
                        "; it is left registered for that one" if lease.registration_is_ours else "",
                    )
                exits.callback(self._marks.let_go, lease)
                exits.callback(self._registry.release, lease, disown=disown)

    def close(self, is_robbed: Callable[[Lease], bool] = lambda _: False) -> None:
        """Release all leases; close the registry and the marks.

        Raises:
            RegistrationError: as `release`.
        """
        with closing(self._marks), closing(self._registry):
            self.release(self.streams, is_robbed)

    def _have(self, stream: str, lease: Lease) -> None:
        with self._news:
            self._leases[stream] = lease
            self._marks.hold(lease)
            self._news.notify_all()

    def _has_lost(self, error: LeaseLostError) -> None:
        with self._news:
            self._lost = self._lost or error
            self._news.notify_all()
        self._on_lost(error)

    def _regained(self, stream: str, lease: Lease) -> None:
        with self._news:
            known = self._leases.get(stream)
        # Each call is on a thread of its own, and may be late.
        if known is not None and lease.fencing_token > known.fencing_token:
            self._have(stream, lease)
