"""The registry, as callers see it: in-process and remote alike."""

from __future__ import annotations

from typing import Protocol

from penstock.registration._values import AcquireRequest, Consumer, Heartbeat, Lease


class ConsumerRegistry(Protocol):
    """Leases on stream consumers.

    Both homes raise the same errors: what a call raises does not tell where the registry lives.
    """

    async def acquire(self, request: AcquireRequest) -> Lease:
        """Register the consumer when needed, wait until it is ACTIVE, and lease it.

        Repeating it with the same job id gives the same lease a new fencing token; the old token is refused then.
        Cancelling gives back what was got so far, at once in-process; a remote lease runs out if the cancellation does
        not reach the registry.

        Raises:
            ConsumerHeldError: another job holds it, and the policy is refuse.
            AcquireTimeoutError: the request's timeout passed.
            StaleFencingTokenError: another acquire overtook this one while Kinesis was registering.
            StreamNotFoundError, RegistrationDeniedError, ConsumerLimitError, RegistrationTimeoutError,
            RegistrationFailedError: of Kinesis.
            RegistryUnavailableError: the registry or Kinesis cannot be reached.
        """
        ...

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """Prolong the lease by its time to live, or learn that it is lost.

        Raises:
            RegistryUnavailableError: unknown whether it is held: try again before it would expire.
        """
        ...

    async def release(self, lease: Lease) -> bool:
        """Give the lease back.

        Returns whether the registry deregisters the consumer, at once or after its grace period.
        Repeating it, or giving back a lease that was lost, is no error, and gives back nothing.
        """
        ...

    async def list_consumers(self, stream_name: str | None = None) -> list[Consumer]:
        """The consumers that the registry knows, of one stream or all, ordered by stream and name."""
        ...

    async def close(self) -> None:
        """Let go of connections and files. Leases stay as they are."""
        ...
