"""Errors of the sink.

SinkError
├── SinkOptionError            an option is out of range or contradicts another
├── RecordError                a record cannot be written as it is
│   ├── RecordTooLargeError    it is larger than the destination takes
│   └── InvalidRecordError     a field breaks a rule of the destination
├── RecordsRejectedError       the destination refused records for good
├── DestinationError           the destination refused a whole request for good
├── BufferFullError            a write found no room in the time that it may wait
├── RequestTimeoutError        a request got no answer in time, and time-outs are set to fail
├── UnansweredRequestError     a writer's submit_request_entries returned without an answer
├── WriterClosedError          the writer was used outside of its `async with` block
├── StateFormatError           bytes are not the state of a sink, or of an unknown version
├── GatewayError               the sink gateway cannot be used, or gave up
├── LocationMismatchError      the client means another region, account or endpoint than the gateway
├── DeadLetterFileError        a file of dead letters holds something else
├── RedriveInProgressError     another process writes the same dead letters again
├── GatewayDrainingError       the gateway is ending: what it accepted is written, the rest goes elsewhere
└── GatewayProtocolError       a client broke the gateway's contract
    └── CreditExceededError    it sent more than its credits allow
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.aws import mismatch_message


class SinkError(Exception):
    """Base of all errors of this package."""


class SinkOptionError(SinkError, ValueError):
    """An option is out of range or contradicts another. `option` names it, `reason` says what is wrong.

    Cure: Correct the option that is named; `reason` says which values it takes.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class RecordError(SinkError, ValueError):
    """A record cannot be written as it is. `record_number` counts the writer's records from zero.

    Cure: Correct or drop the record that is named.
    """

    def __init__(self, record_number: int, reason: str) -> None:
        super().__init__(f"record {record_number}: {reason}")
        self.record_number = record_number
        self.reason = reason


class RecordTooLargeError(RecordError):
    """A record is larger than the destination takes.

    Cure: Split or compress the record, or put what is large into a store and write its address.
    """

    def __init__(self, record_number: int, size_in_bytes: int, limit_in_bytes: int) -> None:
        reason = f"its size is {size_in_bytes} bytes, the largest allowed is {limit_in_bytes}"
        super().__init__(record_number, reason)
        self.size_in_bytes = size_in_bytes
        self.limit_in_bytes = limit_in_bytes


class InvalidRecordError(RecordError):
    """A field of a record breaks a rule of the destination.

    Cure: Correct the field that is named, such as an empty partition key.
    """


@dataclass(frozen=True)
class RejectedRecord:
    """A record that the destination refused for good."""

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
    """The destination refused records for good. `records` names each.

    Cure: Look at the destination's words. Correct the records, or give a terminal handler (from Spark:
    `deadLetterPath`) that puts them aside.
    """

    def __init__(self, records: Sequence[RejectedRecord]) -> None:
        more = f", and {len(records) - 1} more" if len(records) > 1 else ""
        super().__init__(f"not accepted: {records[0]}{more}")
        self.records = tuple(records)


class DestinationError(SinkError):
    """The destination refused a whole request for good: trying again gives the same.

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
    reached: `records` or `bytes`.

    Cure: Write more slowly, wait longer (`max_block_time`), or give the writer more room; if the destination throttles,
    give it more shards.
    """

    def __init__(self, buffered_entries: int, buffered_bytes: int, waited_seconds: float, reason: str) -> None:
        super().__init__(
            f"no room for another record after {waited_seconds:g} s: {buffered_entries} records and {buffered_bytes} "
            f"bytes wait, the limit of {reason} is reached"
        )
        self.buffered_entries = buffered_entries
        self.buffered_bytes = buffered_bytes
        self.waited_seconds = waited_seconds
        self.reason = reason


class RequestTimeoutError(SinkError):
    """A request got no answer in time, and time-outs are set to fail.

    Cure: Look at the network and the endpoint; raise `request_timeout`, or leave `fail_on_timeout` off so that entries
    are sent again.
    """

    def __init__(self, timeout_seconds: float, entries: int, first_record_number: int) -> None:
        super().__init__(
            f"a request of {entries} entries from record {first_record_number} got no answer in {timeout_seconds:g} s"
        )
        self.timeout_seconds = timeout_seconds
        self.entries = entries
        self.first_record_number = first_record_number


class UnansweredRequestError(SinkError):
    """A writer's `submit_request_entries` returned without calling its result handler.

    Cure: A bug of the writer that is named: call `complete`, `retry_for_entries` or `complete_exceptionally` on each
    path.
    """

    def __init__(self, writer: str, entries: int) -> None:
        super().__init__(f"{writer}.submit_request_entries returned without an answer for {entries} entries")
        self.writer = writer
        self.entries = entries


class WriterClosedError(SinkError):
    """The writer was used outside of its `async with` block.

    Cure: Write inside of the `async with` block; after an error make a new writer, from the snapshot if one was taken.
    """

    def __init__(self, writer: str) -> None:
        super().__init__(f"{writer} is not open: use it inside `async with`")
        self.writer = writer


class StateFormatError(SinkError, ValueError):
    """Bytes are not the state of a sink, or of an unknown version.

    Cure: Give the codec that wrote the state, in that version or a later one; bytes of another origin cannot be read.
    """


class GatewayError(SinkError):
    """The sink gateway cannot be used, or gave up. `code` is the name of the gRPC status.

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


class GatewayDrainingError(SinkError):
    """The gateway is ending: the batches that it accepted are written, the others go elsewhere.

    Cure: Send the batch again to the gateway that takes its place; clients of this package do so by themselves.
    """

    def __init__(self, destination: str) -> None:
        super().__init__(f"the gateway is draining; send batches for {destination} again to its successor")
        self.destination = destination


class GatewayProtocolError(SinkError):
    """A client broke the gateway's contract. `reason` says how.

    Cure: Run client and gateway in one version; a client of your own has to begin with `hello`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TooManyDestinationsError(SinkError):
    """A gateway serves as many destinations as it may. Clients of this package ask again until one is idle.

    Cure: Raise `--max-destinations`, lower `--destination-idle-seconds`, or name a destination that is served already.
    """

    def __init__(self, destination: str, most: int) -> None:
        super().__init__(
            f"cannot take {destination}: the gateway serves {most} destinations, as many as its --max-destinations, "
            "and none of them is idle; raise that flag, or wait until one is idle"
        )
        self.destination = destination
        self.most = most


class CreditExceededError(GatewayProtocolError):
    """A client sent more than its credits allow.

    Cure: Send only what the credits allow, and wait for acknowledgements.
    """


class DeadLetterFileError(SinkError):
    """A file of dead letters holds a line that is not one. `file` and `number` (from 1) say where.

    Cure: Move the file away if it is something else; a line that was cut can be deleted.
    """

    def __init__(self, file: Path, number: int, error: Exception) -> None:
        super().__init__(f"{file}, line {number}, is not a dead letter: {error!r}")
        self.file = file
        self.number = number


class RedriveInProgressError(SinkError):
    """Another process writes the dead letters of this folder again.

    Cure: Wait until it has ended: two at once would write letters twice.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the dead letters of {folder} are being redriven by another process: wait until it has ended")
        self.folder = folder
