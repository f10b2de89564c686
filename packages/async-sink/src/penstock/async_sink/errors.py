"""Errors of the sink.

SinkError                      also each error that has only a code
├── SinkOptionError            an option is out of range or contradicts another
├── RecordError                a record cannot be written as it is
├── RecordsRejectedError       the destination refused records permanently
├── DestinationError           the destination refused a whole request permanently
├── BufferFullError            a write found no room in the time that it may wait
├── GatewayError               the sink gateway cannot be used
└── LocationMismatchError      the client means another region, account or endpoint than the gateway
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from penstock.aws import mismatch_message
from penstock.rpc import Code, CodedError


class SinkError(CodedError):
    """Base of all errors of this package; see `penstock errors` for its codes."""

    codes: ClassVar[Mapping[str, Code]] = {
        "UNANSWERED_REQUEST": Code(
            when="A writer's `submit_request_entries` returned without calling its result handler.",
            message="{writer}.submit_request_entries returned without an answer for {entries} entries",
            cure="Correct the writer: call `complete`, `retry_for_entries` or `complete_exceptionally` on each path.",
        ),
        "MAX_BATCH_SIZE": Code(
            when="The `get_max_batch_size` of a rate limiting strategy returned something else than a positive number.",
            message="the strategy's get_max_batch_size returned {size!r}, it must be a whole number of at least 1",
            cure="Correct the strategy. To let nothing leave, return True from `should_block`.",
        ),
        "REQUEST_TIMED_OUT": Code(
            when="A request got no answer in time, and `fail_on_timeout` is set.",
            message="a request of {entries} entries from record {first_record_number} got no answer in {seconds:g} s",
            cure="Look at the network and the endpoint. Raise `request_timeout`, or leave `fail_on_timeout` off.",
        ),
        "WRITER_CLOSED": Code(
            when="A writer was used outside of its `async with` block.",
            message="{writer} is not open: use it inside `async with`",
            cure="Write inside of the `async with` block. After an error make a new writer, from a snapshot if there "
            "is one.",
        ),
        "NOT_ELEMENTS": Code(
            when="`write_many` or `write_batches` was given something of which each character, key or column would "
            "become a record, or rows of Arrow without a converter that makes entries of them.",
            message="a {type} cannot be written: {reason}",
            cure="Give `write_many` an iterable of elements, and `write_batches` record batches or tables of Arrow. "
            "`pyarrow.Table.from_pandas(frame, preserve_index=False)` makes a table of a DataFrame.",
        ),
        "SINK_STATE_DAMAGED": Code(
            when="Bytes are not the saved state of a sink, or they were changed or cut.",
            message="the state is damaged: {reason}",
            cure="Use an older snapshot; bytes of another origin cannot be read.",
        ),
        "SINK_STATE_VERSION": Code(
            when="A saved state was written by a later release, or by a later version of its codec.",
            message="the state has version {version} of {codec}, this release reads versions up to {known}",
            cure="Read the state with the release and the codec that wrote it, or with later ones.",
        ),
        "SINK_STATE_CODEC": Code(
            when="Entries have no codec, or the codec does not take one of the entries.",
            message="no codec for these entries: {reason}",
            cure="Give an `EntryCodec` for entries of your own destination.",
        ),
        "GATEWAY_DRAINING": Code(
            when="The sink gateway is stopping. It writes the batches that it accepted, and refuses others.",
            message="the gateway is draining; send batches for {destination} again to its successor",
            cure="Send the batch to the gateway that takes its place. Clients of this package do so.",
        ),
        "GATEWAY_FULL": Code(
            when="The sink gateway serves as many destinations as it may, and none of them is idle.",
            message="cannot take {destination}: the gateway serves {limit} destinations, as many as its "
            "--max-destinations, and none of them is idle",
            cure="Raise --max-destinations, or wait until a destination is idle.",
        ),
        "GATEWAY_CREDITS": Code(
            when="A client sent the sink gateway more than its credits allow.",
            message="a batch of {entries} entries and {size_in_bytes} bytes exceeds the credits left, {entries_left} "
            "entries and {bytes_left} bytes",
            cure="Correct the client: wait for credits. Clients of this package do so.",
        ),
        "GATEWAY_CONTRACT": Code(
            when="A client of the sink gateway broke its contract.",
            message="{reason}",
            cure="Correct the client as the message says.",
        ),
        "DEAD_LETTER_FILE": Code(
            when="A file of dead letters holds a line that is not a dead letter.",
            message="{file}: line {line} is not a dead letter: {reason}",
            cure="Move the file away if it is something else, or delete a line that was cut.",
        ),
        "DEAD_LETTERS_BUSY": Code(
            when="Another process redrives the dead letters of this folder.",
            message="{folder}: another process redrives these dead letters: wait until it has ended",
            cure="Wait until the other process has ended: two at once would write letters twice.",
        ),
    }


class SinkOptionError(SinkError, ValueError):
    """An option is out of range or contradicts another. `option` names it, `reason` says what is wrong.

    Cure: Correct the option that is named; `reason` says which values it takes.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason
        self.value: int | None = None
        self.rule = ""
        self.bound: int | None = None
        self.bounded_by = ""

    @classmethod
    def out_of_bounds(cls, option: str, value: int, rule: str, bound: int, bounded_by: str = "") -> Self:
        """An error with the facts as fields: `value` must be `rule` (such as "at most") `bound`.

        `bounded_by` is the other option that has this bound; empty if it is the most that the service takes.
        """
        reason = f"must be {rule} {bounded_by}, {bound}" if bounded_by else f"is more than the service takes, {bound}"
        error = cls(option, f"{value} {reason}")
        error.value, error.rule, error.bound, error.bounded_by = value, rule, bound, bounded_by
        return error


class RecordError(SinkError, ValueError):
    """A record cannot be written as it is: it is too large, or a field breaks a rule of the destination.

    Cure: Correct the record that is named, or drop it. Split or compress a record that is too large, or put it into a
    store and write its address.

    Attributes:
        record_number: counts the writer's records from zero.
        reason: what is wrong.
        size_in_bytes: of a record that is too large; 0 otherwise.
        limit_in_bytes: the size of the largest record that the destination takes; 0 otherwise.
    """

    def __init__(self, record_number: int, reason: str, *, size_in_bytes: int = 0, limit_in_bytes: int = 0) -> None:
        super().__init__(f"record {record_number}: {reason}")
        self.record_number = record_number
        self.reason = reason
        self.size_in_bytes = size_in_bytes
        self.limit_in_bytes = limit_in_bytes

    @classmethod
    def too_large(cls, record_number: int, size_in_bytes: int, limit_in_bytes: int) -> Self:
        """The error of a record that is larger than the limit."""
        reason = f"its size is {size_in_bytes} bytes, the largest allowed is {limit_in_bytes}"
        return cls(record_number, reason, size_in_bytes=size_in_bytes, limit_in_bytes=limit_in_bytes)


@dataclass(frozen=True)
class RejectedRecord:
    """A record that the destination refused permanently."""

    record_number: int
    """Counts the writer's records from zero, in the order of writing."""
    attempts: int
    """How often it was submitted."""
    error_code: str
    """The destination's code; empty when it gave none."""
    error_message: str
    """The destination's words."""

    def __str__(self) -> str:
        reason = ": ".join(part for part in (self.error_code, self.error_message) if part) or "no reason given"
        return f"record {self.record_number} after {self.attempts} attempt(s): {reason}"


class RecordsRejectedError(SinkError):
    """The destination refused records permanently. `records` names each.

    Cure: Look at the destination's words. Correct the records, or give a terminal handler (from Spark:
    `deadLetterPath`) that puts them aside.
    """

    def __init__(self, records: Sequence[RejectedRecord]) -> None:
        more = f", and {len(records) - 1} more" if len(records) > 1 else ""
        super().__init__(f"not accepted: {records[0]}{more}")
        self.records = tuple(records)


class DestinationError(SinkError):
    """The destination refused a whole request permanently.

    `first_record_number` is the first record of the request; its records stay in the writer's snapshot.

    Cure: Follow `code`: a name, a region, credentials or a permission is wrong. Nothing is lost by trying again after
    that.
    """

    def __init__(
        self, destination: str, code: str, message: str, *, entries: int = 0, first_record_number: int | None = None
    ) -> None:
        where = "" if first_record_number is None else f" (request of {entries} from record {first_record_number})"
        super().__init__(f"{destination}: {code}: {message}{where}")
        self.destination = destination
        self.code = code
        self.message = message
        self.entries = entries
        self.first_record_number = first_record_number


class BufferFullError(SinkError):
    """A write found no room in the time that it may wait; its record is not written.

    `buffered_entries` and `buffered_bytes` are what waits, besides what is in flight; `reason` is the limit that was
    reached: `records` or `bytes` of the whole buffer, or the share of a `lane` or a `key`: then records of other lanes
    and keys may still have room. `lane` is the lane (the shard) of the record, None if it is not known.

    Cure: Write more slowly, wait longer (`max_block_time`), or give the writer more room; if the destination throttles,
    give it more shards.
    """

    def __init__(
        self,
        buffered_entries: int,
        buffered_bytes: int,
        waited_seconds: float,
        reason: str,
        lane: str | None = None,
    ) -> None:
        limit = {"lane": f"{lane} has its share", "key": "its key has its share"}.get(
            reason, f"the limit of {reason} is reached"
        )
        super().__init__(
            f"no room for another record after {waited_seconds:g} s: {buffered_entries} records and {buffered_bytes} "
            f"bytes wait, {limit}"
        )
        self.buffered_entries = buffered_entries
        self.buffered_bytes = buffered_bytes
        self.waited_seconds = waited_seconds
        self.reason = reason
        self.lane = lane


class GatewayError(SinkError):
    """The sink gateway cannot be used. `code` is the name of the gRPC status.

    Cure: Look at `code`: UNAVAILABLE means that the endpoint does not answer, UNAUTHENTICATED that the token is
    wrong; the gateway's log has the rest.
    """

    def __init__(self, endpoint: str, code: str, message: str) -> None:
        super().__init__(f"sink gateway {endpoint}: {code}: {message}")
        self.endpoint = endpoint
        self.code = code
        self.message = message


class LocationMismatchError(SinkError):
    """The client means a destination of another region, account or endpoint than the gateway would write to.

    Cure: Set `region` or `endpointUrl` to what is meant, or name the gateway of that place.
    """

    def __init__(self, *, destination: str, fact: str, caller: str, found: str) -> None:
        super().__init__(
            mismatch_message(
                service="the sink gateway",
                option="sinkEndpoint",
                subject=destination,
                fact=fact,
                caller=caller,
                found=found,
            )
        )
        self.destination = destination
        self.fact = fact
        self.caller = caller
        self.found = found
