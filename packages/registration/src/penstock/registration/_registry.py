"""The registry, as callers see it: in-process and remote alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, Protocol

from penstock.registration._values import AcquireRequest, Consumer, Heartbeat, Lease, Orphan
from penstock.registration.errors import RegistrationError

_LOOK_SECONDS: Final = 2.0


class ConsumerRegistry(Protocol):
    """Leases on stream consumers.

    The registry raises the same errors in this process and behind an endpoint.
    """

    async def acquire(self, request: AcquireRequest) -> Lease:
        """Register the consumer when needed, wait until it is ACTIVE, and lease it.

        Repeating it with the same job id gives the same lease a new fencing token; the old token is refused then.
        Cancelling gives back what was got so far, at once in-process; a remote lease runs out if the cancellation does
        not reach the registry.

        Raises:
            ConsumerHeldError: another job holds it, and the policy is refuse.
            AcquireTimeoutError: the request's timeout passed.
            StreamNotFoundError: Kinesis does not know the stream.
            RegistrationError: STALE_FENCING_TOKEN: another acquire overtook this one while Kinesis was registering;
                REGISTRATION_DENIED, CONSUMER_LIMIT, REGISTRATION_TIMEOUT, REGISTRATION_FAILED: by Kinesis.
            RegistryUnavailableError: the registry or Kinesis cannot be reached.
        """
        ...

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """Prolong the lease by its time to live, or learn that it is lost.

        Raises:
            RegistryUnavailableError: unknown whether it is held: try again before it would expire.
        """
        ...

    async def release(self, lease: Lease, *, disown: bool = False) -> bool:
        """Give the lease back.

        With `disown` the consumer belongs to readers that this registry does not know: it stays registered, unless
        another job holds it here.

        Returns whether the registry deregisters the consumer, at once or after its grace period.
        Repeating it, or giving back a lease that was lost, is not an error, and gives back nothing.
        """
        ...

    async def list_consumers(self, stream_name: str | None = None, *, with_state: bool = False) -> list[Consumer]:
        """The consumers that the registry knows, of one stream or all, ordered by stream and name.

        `with_state` asks Kinesis for the state and the cost of each, with two calls per stream; where it does not
        answer, both stay None.
        """
        ...

    async def close(self) -> None:
        """Close connections and files. Leases stay as they are."""
        ...


class RegistryAdministration(Protocol):
    """What operators ask of a registry, of either home."""

    async def force_release(self, stream_name: str, consumer_name: str) -> Lease | None:
        """End the lease on a consumer, whoever holds it. The holder learns of it at its next heartbeat.

        Returns the lease as it was; None when no job held the consumer.

        Raises:
            ConsumerNotFoundError: the registry does not know the consumer.
        """
        ...

    async def adopt(self, stream_name: str, consumer_name: str, *, stream_arn: str | None = None) -> Consumer:
        """Make an existing registration ours: it is ended like one that the registry made.

        If no job leases it within the grace period, which starts now, it is deregistered.

        Raises:
            ConsumerNotFoundError, StreamNotFoundError: Kinesis does not know it.
            RegistrationError: CONSUMER_DELETING: it is being deleted.
        """
        ...

    async def collect_garbage(self, stream_name: str | None = None, *, dry_run: bool = False) -> list[Orphan]:
        """Find the consumers that exist and that no lease holds, and deregister those that are ours.

        Covers one stream, which the registry need not know yet, or all streams that it knows; ordered by stream and
        name. Grace periods do not apply: the holder of a lease that is over has stopped. The result says for each
        consumer whether Kinesis refused.

        Raises:
            StreamNotFoundError: the stream that was named does not exist.
            RegistrationError: Kinesis does not answer for a stream.
        """
        ...


class ServedRegistry(ConsumerRegistry, RegistryAdministration, Protocol):
    """What a servicer needs: the calls of jobs and of operators, and the ARNs of streams."""

    async def stream_arn(self, stream_name: str) -> str:
        """The ARN of the stream that this name means here.

        Raises:
            StreamNotFoundError: the stream does not exist.
            RegistrationError: Kinesis does not answer.
        """
        ...

    async def with_state(self, consumers: list[Consumer]) -> list[Consumer]:
        """The same consumers, ordered by stream and name, with what Kinesis says about them."""
        ...

    def orphans(
        self, stream_name: str | None = None, *, dry_run: bool = False, after: str = ""
    ) -> AsyncGenerator[tuple[str, list[Orphan]], None]:
        """`collect_garbage`, stream by stream, for the streams whose ARNs are larger than `after`.

        Gives the ARN of each stream and its orphans, when the stream is done. Closing the generator early leaves the
        streams that follow as they are.
        """
        ...


async def holder_of(registry: ConsumerRegistry, request: AcquireRequest) -> str | None:
    """The job that keeps the request waiting, for the text of an error; None if no job does, or that is unknown."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            consumers = await registry.list_consumers(request.stream_arn or request.stream_name)
    except (TimeoutError, RegistrationError):
        return None
    leases = (one.lease for one in consumers if one.consumer_name == request.consumer_name)
    return next((one.job_id for one in leases if one is not None and one.job_id != request.job_id), None)
