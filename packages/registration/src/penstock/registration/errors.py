"""Errors of registration.

RegistrationError
├── RegistrationOptionError     an option is missing, wrong or contradicts another
├── InvalidRequestError         a request that no retry makes right
├── LocationMismatchError       the caller means another region, account or endpoint than the registry
├── StreamNotFoundError         no such stream
├── ConsumerNotFoundError       no such consumer, or it was deleted from outside
├── ConsumerHeldError           another job holds the consumer
├── StaleFencingTokenError      a newer lease on the consumer was given in the meantime
├── AcquireTimeoutError         waited for another job's lease for as long as was allowed
├── RegistrationDeniedError     IAM does not allow the call
├── ConsumerLimitError          Kinesis takes no more consumers
├── RegistrationTimeoutError    Kinesis did not finish in time
├── RegistrationFailedError     Kinesis answered with an error that none of the above describes
├── RegistryUnavailableError    the registry, or Kinesis behind it, cannot be reached: worth a retry
├── RegistryAccessError         the registry refused the caller
├── RegistryClosedError         used after close()
├── WrongProcessError           used after a fork
├── LeaseStoreError             the store of leases cannot be used
├── ConsumerDeregisteredError   others deregister the consumer of a job again and again
└── LeaseLostError              given to `on_lost`, or raised by an acquire that takes a lease back: stop reading

Each keeps its facts as fields of plain data, under the names of its keyword arguments, so that it crosses gRPC whole.
"""

from penstock.aws import mismatch_message


class RegistrationError(Exception):
    """Base of everything that this package raises on purpose."""


class RegistrationOptionError(RegistrationError):
    """An option is missing, wrong or contradicts another.

    Cure: Correct the option that is named.
    """

    def __init__(self, *, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class InvalidRequestError(RegistrationError):
    """A request that no retry makes right.

    Cure: Correct the field that is named.
    """

    def __init__(self, *, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class LocationMismatchError(RegistrationError):
    """The caller means a stream of another region, account or endpoint than the registry would.

    Cure: Set `region`, `endpointUrl` or `streamArn` to what is meant, or name the registry of that place.
    """

    def __init__(self, *, stream_name: str, fact: str, caller: str, found: str) -> None:
        super().__init__(
            mismatch_message(
                service="the registry",
                option="registryEndpoint",
                subject=f"stream {stream_name}",
                fact=fact,
                caller=caller,
                found=found,
            )
        )
        self.stream_name = stream_name
        self.fact = fact
        self.caller = caller
        self.found = found


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


class StaleFencingTokenError(RegistrationError):
    """A newer lease on the consumer was given while this one was made.

    Cure: Stop reading under the old lease, and acquire a new one if the job is to go on.
    """

    def __init__(self, *, stream_name: str, consumer_name: str, fencing_token: int, newest_token: int) -> None:
        super().__init__(
            f"the lease {fencing_token} on consumer {consumer_name!r} of stream {stream_name!r} was overtaken"
            f" by {newest_token}"
        )
        self.stream_name = stream_name
        self.consumer_name = consumer_name
        self.fencing_token = fencing_token
        self.newest_token = newest_token


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


class RegistrationDeniedError(RegistrationError):
    """IAM does not allow the call.

    Cure: Allow `operation` to the role on the stream and its consumers.
    """

    def __init__(self, *, operation: str, reason: str) -> None:
        super().__init__(f"not allowed to call {operation}: {reason}")
        self.operation = operation
        self.reason = reason


class ConsumerLimitError(RegistrationError):
    """Kinesis takes no more consumers: 20 per stream, at most 5 of an account in CREATING.

    Cure: Deregister what nobody needs: `penstock registry gc` ends those that are ours and idle. Read by `polling`
    where 20 consumers are not enough.
    """

    def __init__(
        self, *, stream_name: str, consumer_name: str, existing: list[str], ours_and_idle: list[str] | None = None
    ) -> None:
        names = ", ".join(existing) or "none"
        idle = ", ".join(ours_and_idle or ()) or "none"
        super().__init__(
            f"Kinesis registers no consumer {consumer_name!r} on stream {stream_name!r}: a limit is reached;"
            f" consumers of the stream: {names}; ours and idle, so that `penstock registry gc` ends them: {idle}"
        )
        self.stream_name = stream_name
        self.consumer_name = consumer_name
        self.existing = existing
        self.ours_and_idle = ours_and_idle or []


class RegistrationTimeoutError(RegistrationError):
    """The consumer did not reach the state in time.

    Cure: Try again: Kinesis is slow now. Raise `register_timeout` or `deregister_timeout` if that stays.
    """

    def __init__(self, *, consumer: str, state: str, timeout_seconds: float) -> None:
        super().__init__(f"consumer {consumer} is not {state} after {timeout_seconds:g} s")
        self.consumer = consumer
        self.state = state
        self.timeout_seconds = timeout_seconds


class RegistrationFailedError(RegistrationError):
    """Kinesis answered with an error that is neither retryable nor one of the others here.

    Cure: Follow `code` and the service's words.
    """

    def __init__(self, *, operation: str, code: str, reason: str) -> None:
        super().__init__(f"{operation} failed with {code}: {reason}")
        self.operation = operation
        self.code = code
        self.reason = reason


class RegistryUnavailableError(RegistrationError):
    """The registry, or Kinesis behind it, cannot be reached. The lease may still be held: retry.

    Cure: Let the registry be reachable: start it, open its port, look at Kinesis behind it. Leases outlive a short
    outage.
    """

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(f"{where} is not available: {reason}")
        self.where = where
        self.reason = reason


class RegistryAccessError(RegistrationError):
    """The registry refused the caller: token or certificate.

    Cure: Give the token, or the certificate, that the registry asks for.
    """

    def __init__(self, *, where: str, reason: str) -> None:
        super().__init__(f"{where} refused the caller: {reason}")
        self.where = where
        self.reason = reason


class RegistryClosedError(RegistrationError):
    """The registry was used after `close()`.

    Cure: Open another registry.
    """

    def __init__(self) -> None:
        super().__init__("the registry is closed")


class WrongProcessError(RegistrationError):
    """The registry was made in another process: threads and connections do not survive a fork.

    Cure: Open a registry in each process, after the fork.
    """

    def __init__(self, *, made_in: int, used_in: int) -> None:
        super().__init__(f"the registry belongs to process {made_in} and cannot be used in {used_in}: open one there")
        self.made_in = made_in
        self.used_in = used_in


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
    """The lease is no longer held: whoever reads under it stops now.

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
