"""Errors of registration.

RegistrationError               and its codes
├── RegistrationOptionError     an option or a field of a request is missing, wrong or contradicts another
├── StreamNotFoundError         no such stream
├── ConsumerNotFoundError       no such consumer, or it was deleted from outside
├── ConsumerHeldError           another job holds the consumer
├── AcquireTimeoutError         waited for another job's lease for as long as was allowed
├── RegistryUnavailableError    the registry, or Kinesis behind it, cannot be reached: worth a retry
├── LeaseStoreError             the store of leases cannot be used
├── ConsumerDeregisteredError   others deregister the consumer of a job again and again
└── LeaseLostError              given to `on_lost`, or raised by an acquire that takes a lease back: stop reading

Each keeps its facts as plain data: a class as fields with the names of its keyword arguments, a code in `facts`. So all
of them cross gRPC whole.
"""

from collections.abc import Mapping
from typing import ClassVar

from penstock.rpc.errors import Code, CodedError


class RegistrationError(CodedError):
    """Base of everything that this package raises on purpose."""

    codes: ClassVar[Mapping[str, Code]] = {
        "REGISTRY_LOCATION_MISMATCH": Code(
            when="The caller means a stream of another region, account or endpoint than the registry.",
            message="{reason}",
            cure="Set `region`, `endpointUrl` or `streamArn` to what is meant, or name the registry of that place.",
        ),
        "STALE_FENCING_TOKEN": Code(
            when="A newer lease on the consumer was given while this one was made.",
            message="the lease {fencing_token} on consumer {consumer_name!r} of stream {stream_name!r} was overtaken"
            " by {newest_token}",
            cure="Stop reading under the old lease. Acquire a new one if the job is to continue.",
        ),
        "REGISTRATION_DENIED": Code(
            when="IAM does not allow a call to Kinesis.",
            message="not allowed to call {operation}: {reason}",
            cure="Allow `operation` to the role, on the stream and its consumers.",
        ),
        "CONSUMER_LIMIT": Code(
            when="Kinesis accepts no more consumers: 20 per stream, and at most 5 of an account in CREATING.",
            message="Kinesis registers no consumer {consumer_name!r} on stream {stream_name!r}: a limit is reached;"
            " consumers of the stream: {existing}; ours and idle, so that `penstock registry gc` ends them:"
            " {ours_and_idle}",
            cure="Deregister consumers that are not needed: `penstock registry gc` ends those that are ours and idle."
            " Read by `polling` where 20 consumers are not enough.",
        ),
        "CONSUMER_DELETING": Code(
            when="A consumer that is being deleted cannot be adopted.",
            message="consumer {consumer_name!r} of stream {stream_name!r} is being deleted",
            cure="Wait until it is gone; the next lease registers it again.",
        ),
        "REGISTRATION_TIMEOUT": Code(
            when="A consumer did not reach the wanted state in time.",
            message="consumer {consumer} is not {state} after {timeout_seconds:g} s",
            cure="Try again: Kinesis is slow now. Raise `register_timeout` or `deregister_timeout` if it stays slow.",
        ),
        "REGISTRATION_FAILED": Code(
            when="Kinesis or the registry answered with an error that is not retryable and has no code here.",
            message="{operation} failed with {error}: {reason}",
            cure="Follow `error` and the service's words.",
        ),
        "REGISTRY_ACCESS": Code(
            when="The registry refused the caller's token or certificate.",
            message="{where} refused the caller: {reason}",
            cure="Give the token, or the certificate, that the registry asks for.",
        ),
        "REGISTRY_CLOSED": Code(
            when="A registry was used after `close()`.",
            message="the registry is closed",
            cure="Open another registry.",
        ),
        "REGISTRY_FORKED": Code(
            when="A registry was used after a fork: threads and connections do not survive it.",
            message="the registry belongs to process {made_in} and cannot be used in {used_in}: open one there",
            cure="Open a registry in each process, after the fork.",
        ),
    }


class RegistrationOptionError(RegistrationError):
    """An option or a field of a request is missing, wrong or contradicts another.

    Cure: Correct the option that is named.
    """

    def __init__(self, *, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class StreamNotFoundError(RegistrationError):
    """The stream does not exist in this account, region and endpoint.

    Cure: Check the stream's name, the region and the account of the credentials.
    """

    def __init__(self, *, stream_name: str) -> None:
        super().__init__(f"stream {stream_name!r} does not exist in this account and region")
        self.stream_name = stream_name


class ConsumerNotFoundError(RegistrationError):
    """The stream consumer does not exist, or vanished while the registry waited for it.

    Cure: Check the consumer's name or ARN; with `efoRegistration` lazy or eager it is made.
    """

    def __init__(self, *, stream_name: str, consumer_name: str) -> None:
        super().__init__(f"stream {stream_name!r} has no consumer {consumer_name!r}")
        self.stream_name = stream_name
        self.consumer_name = consumer_name


class ConsumerHeldError(RegistrationError):
    """Another job holds the consumer, and the request did not ask to wait or to take over.

    Cure: Give each job a consumer name of its own, wait until the lease has ended, or take over by the conflict policy.
    A query with a `jobId` takes over from its own predecessor.
    """

    def __init__(
        self,
        *,
        stream_name: str,
        consumer_name: str,
        holder_job_id: str,
        held_seconds: float,
        remaining_seconds: float,
    ) -> None:
        super().__init__(
            f"consumer {consumer_name!r} of stream {stream_name!r} is held by job {holder_job_id!r} for"
            f" {held_seconds:.0f} s; its lease ends in {remaining_seconds:.0f} s unless it is renewed."
            " Use another consumer name, or the conflict policy wait or take_over"
        )
        self.stream_name = stream_name
        self.consumer_name = consumer_name
        self.holder_job_id = holder_job_id
        self.held_seconds = held_seconds
        self.remaining_seconds = remaining_seconds


class AcquireTimeoutError(RegistrationError):
    """Acquiring took longer than the request's timeout. `holder_job_id` is the job that holds the consumer, if known.

    Cure: Give each job a consumer name of its own (Spark's option `efoConsumerName`), or end the job that holds this
    one. A holder that is gone loses its lease after the time to live, 30 s by default, and the registry's grace period:
    none in the job's own process, 60 s by default of a service.
    """

    def __init__(
        self,
        *,
        stream_name: str,
        consumer_name: str,
        timeout_seconds: float,
        holder_job_id: str | None = None,
    ) -> None:
        text = f"no lease on consumer {consumer_name!r} of stream {stream_name!r} within {timeout_seconds:g} s"
        if holder_job_id is not None:
            text += (
                f": it is held by job {holder_job_id!r}, which renews its lease."
                " Give each job a consumer name of its own, or end that job"
            )
        super().__init__(text)
        self.stream_name = stream_name
        self.consumer_name = consumer_name
        self.timeout_seconds = timeout_seconds
        self.holder_job_id = holder_job_id


class RegistryUnavailableError(RegistrationError):
    """The registry, or Kinesis behind it, cannot be reached. The lease may still be held: retry.

    Cure: Let the registry be reachable: start it, open its port, look at Kinesis behind it. Leases outlive a short
    outage.
    """

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(f"{where} is not available: {reason}")
        self.where = where
        self.reason = reason


class LeaseStoreError(RegistrationError):
    """The store of leases cannot be used.

    Cure: Let the file be on a local disk that this process may write, or the table be reachable with its permissions.
    """

    def __init__(self, *, store: str, reason: str) -> None:
        super().__init__(f"lease store {store}: {reason}")
        self.store = store
        self.reason = reason

    def for_clients(self) -> "LeaseStoreError":
        """Without the store's place, which is the service's own."""
        return LeaseStoreError(store="of the registry", reason="cannot be used now; the service's log says why")


class ConsumerDeregisteredError(RegistrationError):
    """Somebody deregistered the consumer of a job that holds its lease, too often for it to be registered again.

    Cure: Let all jobs that read by the consumer share one registry, or give each a consumer name of its own.
    """

    def __init__(self, *, stream_name: str, consumer_name: str, times: int, within_seconds: float) -> None:
        super().__init__(
            f"consumer {consumer_name!r} of stream {stream_name!r} was deregistered {times} times within"
            f" {within_seconds:.0f} s while this job held its lease, by a job that keeps its leases in another"
            " registry, or by an operator. Let all jobs that read by it share one registry, or give each a consumer"
            " name of its own"
        )
        self.stream_name = stream_name
        self.consumer_name = consumer_name
        self.times = times
        self.within_seconds = within_seconds


class LeaseLostError(RegistrationError):
    """The job does not hold the lease any more, and must stop reading under it.

    Cure: Stop reading under it. The reason names the job that has the consumer: give each job a name of its own.
    """

    def __init__(self, *, stream_name: str, consumer_name: str, fencing_token: int, reason: str) -> None:
        super().__init__(
            f"the lease {fencing_token} on consumer {consumer_name!r} of stream {stream_name!r} is lost: {reason}"
        )
        self.stream_name = stream_name
        self.consumer_name = consumer_name
        self.fencing_token = fencing_token
        self.reason = reason
