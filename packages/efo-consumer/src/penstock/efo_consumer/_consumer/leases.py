"""The stream consumers of a `Consumer`: registered, leased and let go by penstock-registration."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._reader.api import StreamConsumer
from penstock.registration import AcquireRequest, open_registry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.aws import AwsOptions
    from penstock.registration import BlockingConsumerRegistry, Lease


class ConsumerLeases:
    """Leases on one stream consumer per stream, kept until `aclose`. For one event loop.

    Args:
        aws: credentials, region and endpoint.
        registry_path: the registry's SQLite file; in the user's state directory when None.
    """

    def __init__(self, aws: AwsOptions, registry_path: Path | None) -> None:
        self._aws = aws
        self._registry_path = registry_path
        self._registry: BlockingConsumerRegistry | None = None
        self._leases: list[Lease] = []
        self._lost = asyncio.Event()
        self._error: Exception | None = None

    async def acquire(self, streams: Sequence[str], consumer_name: str, job_id: str) -> tuple[StreamConsumer, ...]:
        """Register the consumer of each stream when it is not there, wait until it is ACTIVE, and keep its lease.

        The streams' consumers are made side by side: each takes seconds, up to a minute. When this is cancelled or
        fails for one, the others are waited for, so that `aclose` lets go of all: a consumer is paid for by the hour.

        Raises:
            RegistrationError: it cannot be registered, or another job holds it.
        """
        loop = asyncio.get_running_loop()

        def on_lost(error: Exception) -> None:
            self._error = error
            loop.call_soon_threadsafe(self._lost.set)

        def acquire(registry: BlockingConsumerRegistry, stream: str) -> None:
            arn = StreamIdentity.of(stream).arn
            request = AcquireRequest(stream_name=stream, stream_arn=arn, consumer_name=consumer_name, job_id=job_id)
            lease = registry.acquire(request)
            self._leases.append(lease)
            registry.keep(lease, on_lost)

        self._registry = registry = open_registry(aws=self._aws, store_path=self._registry_path)
        acquired = asyncio.gather(
            *(asyncio.to_thread(acquire, registry, stream) for stream in streams), return_exceptions=True
        )
        try:
            outcomes = await asyncio.shield(acquired)
        except asyncio.CancelledError:
            await acquired
            raise
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return tuple(StreamConsumer(one.stream_name, one.consumer_arn, one.fencing_token) for one in self._leases)

    @property
    def are_lost(self) -> bool:
        """Whether one of them is lost."""
        return self._lost.is_set()

    async def lost(self) -> Exception:
        """Wait until a lease is lost; give the reason."""
        await self._lost.wait()
        assert self._error is not None
        return self._error

    async def aclose(self) -> None:
        """Let go of the leases: consumers that were registered for them are deregistered."""
        registry, self._registry = self._registry, None
        leases, self._leases = self._leases, []
        if registry is not None:

            def release() -> None:
                # Each is let go, whatever becomes of the others: they are paid for by the hour.
                with ExitStack() as exits:
                    exits.callback(registry.close)
                    for lease in leases:
                        exits.callback(registry.release, lease)

            await asyncio.to_thread(release)
