"""Errors of the consumer; each carries the facts that a caller needs to decide or to report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar

from penstock.aws import AwsError, mismatch_message
from penstock.rpc.errors import Code, CodedError


class EfoConsumerError(Exception):
    """Base of every error that this package raises."""


class EventStreamFrameError(CodedError, EfoConsumerError):
    """Bytes that are not an event-stream frame. The connection is closed, and the reader makes a new one.

    Cure: Nothing, where a connection was cut. If it stays, a proxy changes the bytes.
    """

    codes: ClassVar[Mapping[str, Code]] = {
        "FRAME_CHECKSUM": Code(
            when="A checksum does not match its bytes.",
            message="{part} checksum is {actual:#010x}, the frame says {expected:#010x}",
            cure="Look for a proxy between the reader and the endpoint.",
        ),
        "FRAME_LENGTH": Code(
            when="A frame says that it is longer than the protocol allows, or shorter than a frame can be.",
            message="{field} length of {length} bytes is outside the limit of {limit} bytes",
            cure="Check the endpoint: it is probably not Kinesis.",
        ),
        "FRAME_TRUNCATED": Code(
            when="The stream ended inside a frame, or the headers of a frame run past their end.",
            message="{actual} of {expected} bytes arrived",
            cure="Nothing: the reader subscribes again.",
        ),
    }


class PayloadDecodeError(EfoConsumerError):
    """A payload that is not a SubscribeToShardEvent or GetRecords answer.

    Cure: Check that `endpointUrl` is a Kinesis, and that no proxy answers in its place.
    """


class EfoConsumerConfigError(EfoConsumerError, ValueError):
    """An option is invalid, or contradicts another one.

    Cure: Correct the option that is named, as the message says.

    Attributes:
        option: the option's name as the user wrote it.
    """

    def __init__(self, *, option: str, reason: str) -> None:
        self.option = option
        self.reason = reason
        super().__init__(f"{option}: {reason}")


class ShardEndError(EfoConsumerError):
    """An answer without a continuation and without child shards: to be asked again, not a shard's end.

    Cure: Nothing: the shard is asked again.

    Attributes:
        stream: the stream's name.
        shard_id: the shard that was read.
    """

    def __init__(self, *, stream: str, shard_id: str) -> None:
        self.stream = stream
        self.shard_id = shard_id
        super().__init__(f"{stream}/{shard_id}: no continuation and no child shards")


class SubscriptionSilentError(EfoConsumerError):
    """No event came for longer than the service's idle interval: the connection is dead.

    Cure: Nothing: the reader subscribes again. If it comes often, something between here and the endpoint drops idle
    connections.

    Attributes:
        silence_seconds: how long the reader waited.
    """

    def __init__(self, *, silence_seconds: float) -> None:
        self.silence_seconds = silence_seconds
        super().__init__(f"no event for {silence_seconds:g} s")


class SubscriptionConnectionError(EfoConsumerError):
    """A connection failed, was reset, or could not be made.

    Cure: Nothing, unless it comes often: then look at network, proxy and endpoint.
    """


class Http2NotNegotiatedError(SubscriptionConnectionError):
    """The endpoint did not choose HTTP/2 by ALPN.

    Cure: Set `subscribeTransport` to `http1` or `auto`; a proxy that ends TLS without HTTP/2 is the usual cause.

    Attributes:
        endpoint: the host and port that were asked.
    """

    def __init__(self, *, endpoint: str) -> None:
        self.endpoint = endpoint
        super().__init__(f"{endpoint} does not speak HTTP/2 over TLS (ALPN)")


class ShardReaderError(EfoConsumerError):
    """Base of what a shard reader answers, in-process and over gRPC alike."""


class RecordPublisherError(EfoConsumerError):
    """Reading a shard failed, and a retry would not help.

    Cure: Follow `code` and the message; the query continues from its checkpoint when it is started again.

    Attributes:
        stream: the stream's name.
        shard_id: the shard that was read.
        code: the service's exception name, or the Python class of the cause.
    """

    def __init__(self, message: str, *, stream: str, shard_id: str, code: str) -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.code = code
        super().__init__(f"{stream}/{shard_id}: {message}" if shard_id else f"{stream}: {message}")


class RecordPublisherFatalError(RecordPublisherError):
    """The service said that trying again is useless (access, keys, a stream or consumer that is gone).

    A resource that is missing is never taken for the end of a shard.

    Cure: Give the permission or the key that the message names, or check the name, region and account of what is
    missing, then start the query again. A query or a `Consumer` that holds the lease registers its consumer again.

    Attributes:
        resource: `stream`, `consumer` or `shard`, if that is missing; None otherwise, or where it is unknown.
    """

    def __init__(self, message: str, *, stream: str, shard_id: str, code: str, resource: str | None = None) -> None:
        self.resource = resource
        super().__init__(message, stream=stream, shard_id=shard_id, code=code)


class SubscriptionTakenOverError(RecordPublisherError, ShardReaderError):
    """Another reader of the same stream consumer keeps the subscription: two jobs share one consumer.

    Cure: Give each job an `efoConsumerName` of its own; stop the other job if it is a forgotten one.

    Attributes:
        consumer_arn: the stream consumer that both use.
        times: how often it was taken, or refused, without a subscription that lived to its end in between.
        reader: who was refused: its name, or host, process and number.
        other_reader: who holds it, where it is one of this process; None otherwise, as the service does not tell.
    """

    def __init__(
        self,
        *,
        stream: str,
        shard_id: str,
        consumer_arn: str,
        times: int,
        reader: str = "",
        other_reader: str | None = None,
    ) -> None:
        self.consumer_arn = consumer_arn
        self.times = times
        self.reader = reader
        self.other_reader = other_reader
        who = other_reader or "another reader, which the service does not name,"
        super().__init__(
            f"{who} took the subscription of {consumer_arn} from {reader or 'this reader'} {times} times: "
            "give each job a stream consumer of its own",
            stream=stream,
            shard_id=shard_id,
            code="ResourceInUseException",
        )


class SubscriptionStuckError(RecordPublisherError):
    """Subscriptions to a shard are accepted and bring nothing, as can happen at a closed shard without a reported end.

    Cure: Nothing: the shard is read by polling instead, which ends it by what ListShards shows.

    Attributes:
        subscriptions: how many in a row brought no event.
        outcomes: how each of them ended.
    """

    def __init__(self, *, stream: str, shard_id: str, outcomes: tuple[str, ...]) -> None:
        self.subscriptions = len(outcomes)
        self.outcomes = outcomes
        super().__init__(
            f"{len(outcomes)} subscriptions in a row were accepted and brought no event ({', '.join(outcomes)}): "
            "the shard is read by polling instead",
            stream=stream,
            shard_id=shard_id,
            code="SubscriptionStuck",
        )


class RecordPublisherRetriesError(RecordPublisherError):
    """Every attempt failed, for as long as `retryPatience` or as often as a number of attempts allows.

    Cure: Look at the last failure in the message (network, endpoint, throttling, credentials), then start the query
    again; a longer `retryPatience` bears longer outages.

    Attributes:
        attempts: how many were made since the last one that brought an event.
    """

    def __init__(self, message: str, *, stream: str, shard_id: str, code: str, attempts: int) -> None:
        self.attempts = attempts
        super().__init__(message, stream=stream, shard_id=shard_id, code=code)


class PositionsError(EfoConsumerError, ValueError):
    """Positions or a range that cannot be: malformed, of an unknown version, or backwards.

    Cure: Pass positions as they were given out, with the beginning before the end.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class InitialPositionError(EfoConsumerError):
    """The start of a new query cannot be resolved to positions in shards.

    Cure: Check stream name, region, endpoint, account and permissions, as the message says.

    Attributes:
        stream: the stream's name.
        code: the service's exception name, or the Python class of the cause.
        reason: the cause's words.
    """

    def __init__(self, *, stream: str, code: str, reason: str) -> None:
        self.stream = stream
        self.code = code
        self.reason = reason
        super().__init__(f"{stream}: the initial position cannot be resolved: {reason}")


class CheckpointError(EfoConsumerError):
    """Where a consumer stands cannot be read or written.

    Cure: Let the folder or table of checkpoints be reachable and writable; give `name` another one if it is damaged.

    Attributes:
        name: of the checkpoint; empty where it is about none in particular.
        reason: the cause's words.
    """

    def __init__(self, *, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"checkpoint {name!r}: {reason}" if name else f"checkpoints: {reason}")


class CheckpointTakenOverError(CheckpointError):
    """A newer consumer of the same name claimed the checkpoint: this one saves nothing over it.

    Cure: Stop this consumer: the newer one continues from the last checkpoint. If both are meant to run, give each a
    `name` of its own.

    Attributes:
        name: of the checkpoint.
        stream: whose positions were claimed.
        owner: who claimed them: host, process and a number within it.
        at: when, in seconds since the epoch by that host's clock.
    """

    def __init__(self, *, name: str, stream: str, owner: str, at: float) -> None:
        self.stream = stream
        self.owner = owner
        self.at = at
        super().__init__(
            name=name,
            reason=f"{owner} took {stream} over at {_utc(int(at * 1000))} and saves its own: stop this consumer, or "
            "give each a name of its own",
        )


class SessionNotFoundError(ShardReaderError):
    """No session of that id is open: open it first.

    Cure: Open the session again: the reader was restarted, or the session was idle for too long. Queries do so
    automatically.

    Attributes:
        session_id: the session that was named.
    """

    def __init__(self, *, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"no session {session_id!r} is open")


class StaleEpochError(ShardReaderError):
    """A newer run of the same query has the session: the caller is its predecessor and should stop.

    Cure: Stop: the newer run reads. If both are meant to run, give each a checkpoint and a `jobId` of its own.

    Attributes:
        session_id: the session.
        epoch: number of the caller's run.
        current_epoch: number of the run that took over.
        owner: who that is, host and process; empty if unknown.
    """

    def __init__(self, *, session_id: str, epoch: int, current_epoch: int, owner: str = "") -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.current_epoch = current_epoch
        self.owner = owner
        super().__init__(
            f"session {session_id!r} was taken over by {owner or 'another caller'}: run {epoch} is over, "
            f"{current_epoch} is newer"
        )


class FencedConsumerError(ShardReaderError):
    """The lease of the stream consumer is older than one that this reader has seen.

    Cure: Stop: another job holds the consumer. Give each job an `efoConsumerName` of its own.

    Attributes:
        stream: the stream's name.
        fencing_token: of the caller.
        seen_fencing_token: the newest that was seen.
    """

    def __init__(self, *, stream: str, fencing_token: int, seen_fencing_token: int) -> None:
        self.stream = stream
        self.fencing_token = fencing_token
        self.seen_fencing_token = seen_fencing_token
        super().__init__(
            f"{stream}: fencing token {fencing_token} is older than {seen_fencing_token}: "
            "another job holds the consumer"
        )


class ShardFailedError(ShardReaderError):
    """A shard cannot be followed any more. Opening the session again retries it.

    Cure: Follow `code` and `reason`, then start the query again.

    Attributes:
        stream: the stream's name.
        shard_id: the shard.
        code: the service's exception name, or the Python class of the cause.
        reason: the cause's words.
    """

    def __init__(self, *, stream: str, shard_id: str, code: str, reason: str) -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.code = code
        self.reason = reason
        place = f"{stream}/{shard_id}: "
        super().__init__(place + reason.removeprefix(place))

    @classmethod
    def of(cls, error: Exception, *, stream: str, shard_id: str) -> ShardFailedError:
        """The failure of a shard, with its cause. An unexpected error keeps its class in the reason."""
        is_known = isinstance(error, EfoConsumerError | AwsError)
        code = getattr(error, "code", "") if is_known else ""
        reason = str(error) if is_known else repr(error)
        failure = cls(stream=stream, shard_id=shard_id, code=code or type(error).__name__, reason=reason)
        failure.__cause__ = error
        return failure


class DataLossError(ShardReaderError):
    """Records expired before they were read, or cannot be proved to exist.

    Cure: Read sooner, or let the stream keep records for longer. To continue with what is left set `failOnDataLoss`
    to false.

    Attributes:
        stream: the stream's name.
        shard_id: the shard.
        after: where the lost range begins, exclusive, as text.
        upto: where it ends, inclusive, as text.
        reason: what was found instead.
    """

    def __init__(self, *, stream: str, shard_id: str, after: str, upto: str, reason: str) -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.after = after
        self.upto = upto
        self.reason = reason
        super().__init__(
            f"{stream}/{shard_id}: the range ({after}, {upto}] is lost: {reason}. To continue with the records that "
            "are left set failOnDataLoss to false; a longer retention period of the stream prevents it next time"
        )


class StreamRecreatedError(ShardReaderError):
    """The stream was deleted and created again under its name: the positions belong to another stream.

    Cure: Start with a new checkpoint to read the new stream. What the old stream held is gone.

    Attributes:
        stream: the stream's name.
        created_millis: when the stream of the positions was created, in milliseconds since the epoch.
        current_millis: when the stream that has the name now was created.
    """

    def __init__(self, *, stream: str, created_millis: int, current_millis: int) -> None:
        self.stream = stream
        self.created_millis = created_millis
        self.current_millis = current_millis
        super().__init__(
            f"stream {stream} is not the one that was read, which was created at {_utc(created_millis)}; this one was "
            f"at {_utc(current_millis)}. It was deleted and created again, so the positions mean nothing in it. Start "
            "with a new checkpoint, from TRIM_HORIZON to read all of the new stream"
        )


def _utc(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


class LocationMismatchError(ShardReaderError):
    """The caller means streams of another region, account or endpoint than the reader would read.

    Cure: Set `region`, `endpointUrl` or `streamArn` to what is meant, or name the reader of that place.

    Attributes:
        stream: the stream's name, or ARN; empty if it is so for every stream.
        fact: `region`, `account` or `endpoint`.
        caller: the caller's.
        found: the reader's.
        address: of the reader, of which `readerEndpoint` may name several; empty in its own process.
        consumer_arn: ARN of the stream consumer that has the caller's value; empty where a setting has it.
    """

    def __init__(
        self, *, stream: str, fact: str, caller: str, found: str, address: str = "", consumer_arn: str = ""
    ) -> None:
        self.stream = stream
        self.consumer_arn = consumer_arn
        self.address = address
        self.fact = fact
        self.caller = caller
        self.found = found
        super().__init__(
            mismatch_message(
                service="the shard reader",
                option="readerEndpoint",
                subject=f"stream {stream}" if stream else "each stream",
                fact=fact,
                caller=caller,
                found=found,
                address=address,
                consumer_arn=consumer_arn,
            )
        )


class RangeDeadlineError(ShardReaderError):
    """A promised range did not come in time: ask for it again.

    Cure: Nothing: Spark tries the task again. If it stays, look at throttling of GetRecords by other readers, or raise
    `range_deadline`.

    Attributes:
        stream: the stream's name.
        shard_id: the shard.
        seconds: how long the reader tried.
        after: the position after which nothing came.
    """

    def __init__(self, *, stream: str, shard_id: str, seconds: float, after: str = "") -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.seconds = seconds
        self.after = after
        rest = f", and nothing came after {after}" if after else ""
        super().__init__(f"{stream}/{shard_id}: the range was not read within {seconds:g} s{rest}")


class ReaderUnavailableError(ShardReaderError):
    """The reader cannot be reached, or refused the call.

    Cure: Let `endpoint` be reachable: start the service, open the port, check token and certificate.

    Attributes:
        endpoint: host and port.
        reason: the transport's words.
    """

    def __init__(self, *, endpoint: str, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        super().__init__(f"shard reader at {endpoint}: {reason}")


class SchemaRegistryError(EfoConsumerError):
    """The Glue Schema Registry does not have the schema, refuses the call, or cannot be asked.

    `code` is the registry's, if it answered.

    Cure: Correct the schema's name, the region or the permissions, as the message says.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_missing(self) -> bool:
        """Whether the registry says that the schema, or its version, does not exist."""
        return self.code == "EntityNotFoundException"


class SchemaDecodeError(EfoConsumerError, ValueError):
    """A record is not what its schema says, or has none.

    Cure: Filter such records out; `from_glue` makes nulls of them with `mode="PERMISSIVE"`.

    Attributes:
        reason: why.
        number: the place of the record among those that were given, from 0; None where one record was given.
    """

    def __init__(self, reason: str, *, number: int | None = None) -> None:
        super().__init__(f"{'a record' if number is None else f'record {number}'} cannot be decoded: {reason}")
        self.reason = reason
        self.number = number
