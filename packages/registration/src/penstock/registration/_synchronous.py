"""The registry for callers without an event loop, such as a data source in Spark's driver-side Python process."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.aws import AwsOptions, AwsSession
from penstock.registration._keeper import LeaseKeeper, OnLost, OnRegained
from penstock.registration._local.registry import LocalConsumerRegistry, open_local_registry
from penstock.registration._registry import ConsumerRegistry
from penstock.registration._times import LeaseSettings, RegistrarConfig, elapsed_seconds
from penstock.registration._values import AcquireRequest, Lease
from penstock.registration.errors import (
    RegistrationError,
    RegistryUnavailableError,
)
from penstock.rpc import Synchronous, synchronous

if TYPE_CHECKING:
    from penstock.rpc import ClientSecurity

T = TypeVar("T")
PATIENCE = timedelta(minutes=10)
_ASK_AGAIN_SECONDS = 1.0
"""After an attempt that itself tried for some seconds."""
_logger = logging.getLogger(__name__)


def open_registry(
    *,
    endpoint: str | None = None,
    security: ClientSecurity | None = None,
    aws: AwsOptions | None = None,
    store_path: Path | None = None,
    config: RegistrarConfig | None = None,
    settings: LeaseSettings | None = None,
    patience: timedelta = PATIENCE,
) -> BlockingConsumerRegistry:
    """Open the registry at `endpoint`, or without one a registry in this process.

    `security` is for the remote one; `aws`, `store_path` (default: the user's state directory), `config` and `settings`
    are for the one in this process. There the grace period is zero unless `settings` says otherwise: the process ends,
    and with it whoever would deregister later. A lease that a killed process left behind is ended by the next registry
    that uses the same file. `patience` is for how long a registry that is away is asked again, by `acquire` and by
    heartbeats, until a lease counts as lost; zero: for ever.

    Raises:
        AwsOptionError: no region is to be found, or a profile does not exist.
        RpcOptionError: a TLS file cannot be read, or a token would cross the network in plain text.
    """
    if endpoint is not None:
        # Here: a registry in this process needs no gRPC.
        from penstock.registration._remote.registry import RemoteConsumerRegistry

        remote = endpoint
        return BlockingConsumerRegistry(lambda: RemoteConsumerRegistry(remote, security), patience)
    session = AwsSession(aws)
    return BlockingConsumerRegistry(
        lambda: open_local_registry(session, store_path, config=config, settings=settings), patience
    )


class BlockingConsumerRegistry(Synchronous[ConsumerRegistry]):
    """A ConsumerRegistry with blocking calls and its own heartbeats, usable from any thread; a context manager.

    It lives on a daemon thread, which never keeps the process alive, and in the process that made it: after a fork,
    open another one. Heartbeats are sent from `keep` until `release` or `close`.
    """

    def __init__(self, make: Callable[[], ConsumerRegistry], patience: timedelta = PATIENCE) -> None:
        self._patience_seconds = patience.total_seconds() or math.inf
        self._sweep_wanted = asyncio.Event()
        self._lives = True
        self._acquired: dict[Lease, tuple[AcquireRequest, float]] = {}
        super().__init__("penstock registry", lambda: self._open(make))

    list_consumers = synchronous(ConsumerRegistry.list_consumers)

    def acquire(self, request: AcquireRequest) -> Lease:
        """See ConsumerRegistry.acquire. Blocks until the consumer is ACTIVE.

        In this process it also ends, in the background, what other leases have left behind.
        """

        async def acquire() -> tuple[Lease, float]:
            sent_at = elapsed_seconds()
            lease = await self._acquire(request)
            self._sweep_wanted.set()
            return lease, await self._known_at(lease, sent_at)

        lease, sent_at = self._call(acquire)
        self._acquired[lease] = request, sent_at
        return lease

    async def _acquire(self, request: AcquireRequest) -> Lease:
        """Acquire, also from a registry that is away when a job starts: for as long as heartbeats bear it."""
        since: float | None = None
        while True:
            try:
                return await self._api.acquire(request)
            except RegistryUnavailableError as error:
                now = elapsed_seconds()
                since = now if since is None else since
                left = since + self._patience_seconds - now
                if left <= 0:
                    raise
                limit = "as long as it takes" if math.isinf(left) else f"up to {left:.0f} s"
                _logger.warning(
                    "cannot acquire consumer %s of %s, trying for %s: %s",
                    request.consumer_name,
                    request.stream_name,
                    limit,
                    error,
                )
                await asyncio.sleep(min(left, _ASK_AGAIN_SECONDS))

    async def _known_at(self, lease: Lease, sent_at: float) -> float:
        """From when the lease's life may be counted: from before the request that is known to have begun it.

        An acquire may have waited for longer than a lease lives; then a heartbeat says when the life is known to last.
        """
        now = elapsed_seconds()
        if now - sent_at < lease.time_to_live_seconds / 3:
            return sent_at
        try:
            return now if (await self._api.heartbeat(lease)).held else sent_at
        except RegistrationError:
            # The keeper of the lease finds out that it is lost.
            return sent_at

    def keep(self, lease: Lease, on_lost: OnLost, on_regained: OnRegained | None = None) -> None:
        """Send heartbeats for the lease.

        With `on_regained` a lease that expired, for example during a pause of this process, is taken back if no other
        job has the consumer, and the consumer is registered again if it was deregistered: `on_regained` is called with
        the lease that is kept from then on, which has a larger fencing token and may have another consumer ARN. When
        the lease is lost, `on_lost` is called with a LeaseLostError that names its holder. Both are called on threads
        of their own.
        """
        request, acquired_at = self._acquired.pop(lease, (None, None))

        def tell(call: Callable[[T], None], what: T) -> None:
            # On a thread of its own, so that it may block and may call this registry.
            threading.Thread(target=call, args=(what,), name="penstock lease", daemon=True).start()

        async def keep() -> None:
            self._keeper.keep(
                lease,
                lambda error: tell(on_lost, error),
                acquired_at=acquired_at,
                request=request,
                on_regained=None if on_regained is None else lambda lease: tell(on_regained, lease),
            )

        self._call(keep)

    def release(self, lease: Lease, *, disown: bool = False) -> bool:
        """See ConsumerRegistry.release. Ends the heartbeats first. What was taken back in its place is given back."""
        self._acquired.pop(lease, None)

        async def release() -> bool:
            return await self._api.release(self._keeper.drop(lease), disown=disown)

        return self._call(release)

    def register_again(self, lease: Lease) -> Lease:
        """See LeaseKeeper.register_again. Blocks until the consumer is ACTIVE."""
        return self._call(lambda: self._keeper.register_again(lease))

    def is_held(self, lease: Lease) -> bool:
        """Whether the registry says that a lease is held under this very token; False also where it does not answer.

        Heartbeats ask it too, and say when that was in vain for too long.
        """
        try:
            return self._call(lambda: self._api.heartbeat(lease)).held
        except RegistrationError as error:
            if error.code == "REGISTRY_CLOSED":
                raise
            _logger.info("the registry does not say whether consumer %s is held: %s", lease.consumer_name, error)
            return False

    def _closed(self) -> Exception:
        return RegistrationError.of("REGISTRY_CLOSED")

    def _forked(self, *, made_in: int, used_in: int) -> Exception:
        return RegistrationError.of("REGISTRY_FORKED", made_in=made_in, used_in=used_in)

    async def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if not self._lives:
            raise RegistrationError.of("REGISTRY_CLOSED")
        return await call()

    async def _open(self, make: Callable[[], ConsumerRegistry]) -> ConsumerRegistry:
        registry = make()
        ready: asyncio.Future[LeaseKeeper] = asyncio.get_running_loop().create_future()
        # Heartbeats and sweeps continue for days: they are not part of the trace in which the registry was opened.
        context = contextvars.Context()
        self._life = asyncio.create_task(self._live(registry, ready), name="keep leases", context=context)
        self._keeper = await ready
        return registry

    async def _live(self, registry: ConsumerRegistry, ready: asyncio.Future[LeaseKeeper]) -> None:
        """Keep the heartbeats' tasks until the thread is closed, which cancels this one."""
        try:
            async with LeaseKeeper(registry, patience_seconds=self._patience_seconds) as keeper:
                sweeping = asyncio.create_task(self._sweep_when_wanted(registry), name="sweep leases")
                ready.set_result(keeper)
                try:
                    await asyncio.Event().wait()
                finally:
                    sweeping.cancel()
        finally:
            # Without heartbeats, no call may succeed.
            self._lives = False

    async def _sweep_when_wanted(self, registry: ConsumerRegistry) -> None:
        if not isinstance(registry, LocalConsumerRegistry):
            # A service sweeps on its own.
            return
        while True:
            await self._sweep_wanted.wait()
            self._sweep_wanted.clear()
            try:
                await registry.sweep_once()
            except RegistrationError as error:
                _logger.warning("what other leases left behind was not ended: %s", error)
