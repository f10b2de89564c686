"""What tasks need of the contract: positions and ranges as messages, and what the reader's errors are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from penstock.efo_consumer import errors
from penstock.efo_consumer._model.positions import PositionType, ShardPosition, ShardRange
from penstock.efo_consumer.errors import EfoConsumerError, PositionsError, ReaderUnavailableError
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import StatusTable, typed_error

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ShardReaderService"]
READ_RANGE: Final = f"/{SERVICE.full_name}/ReadRange"
CALL_SECONDS: Final = 30.0
"""How long a call may take beside the time that its caller asked it to wait."""
STATUS: Final[StatusTable] = {
    errors.PositionsError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EfoConsumerConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.SessionNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.StaleEpochError: grpc.StatusCode.ABORTED,
    errors.FencedConsumerError: grpc.StatusCode.ABORTED,
    errors.SubscriptionTakenOverError: grpc.StatusCode.ABORTED,
    errors.DataLossError: grpc.StatusCode.OUT_OF_RANGE,
    errors.LocationMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StreamRecreatedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RangeDeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ShardFailedError: grpc.StatusCode.UNAVAILABLE,
    # A shard failed with a code of Kinesis.
    "AccessDeniedException": grpc.StatusCode.PERMISSION_DENIED,
    "KMSAccessDeniedException": grpc.StatusCode.PERMISSION_DENIED,
    "LimitExceededException": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ProvisionedThroughputExceededException": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ResourceNotFoundException": grpc.StatusCode.NOT_FOUND,
    "InvalidArgumentException": grpc.StatusCode.INVALID_ARGUMENT,
    "ValidationException": grpc.StatusCode.INVALID_ARGUMENT,
}
"""What the servicer answers. The error's class and fields travel along, so that the caller gets the same error back."""
_TYPES: Final = tuple(kind for kind in STATUS if not isinstance(kind, str) and issubclass(kind, Exception))
_POSITION_TYPES = {kind: pb.PositionType.Value(f"POSITION_TYPE_{kind.name}") for kind in PositionType}
_POSITION_KINDS = {number: kind for kind, number in _POSITION_TYPES.items()}


def reader_error(error: grpc.RpcError, endpoint: str) -> EfoConsumerError:
    """What the servicer raised; when it raised nothing, why the reader could not be reached."""
    found = typed_error(error, _TYPES)
    if isinstance(found, errors.LocationMismatchError):
        return errors.LocationMismatchError(**{**vars(found), "address": endpoint})
    if isinstance(found, EfoConsumerError):
        return found
    code = getattr(error, "code", lambda: None)()
    details = str(getattr(error, "details", lambda: None)() or "")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        # A rule of the contract, which is checked before the servicer: its words begin with the field.
        option, _, rule = details.partition(" ")
        return errors.EfoConsumerConfigError(option=option, reason=rule)
    name = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    return ReaderUnavailableError(endpoint=endpoint, reason=f"{name}: {details}" if details else name)


def position_to_message(position: ShardPosition) -> pb.ShardPosition:
    """Position to message. By hand, as a step of a session has thousands."""
    return pb.ShardPosition(
        type=_POSITION_TYPES[position.type],
        timestamp_millis=position.timestamp_millis or 0,
        sequence_number=position.sequence_number or "",
        caught_up_millis=position.caught_up_millis or 0,
        record=position.record,
        arrived_millis=position.arrived_millis or 0,
        first_record=position.first_record or "",
    )


def position_from_message(message: pb.ShardPosition) -> ShardPosition:
    """Message to position.

    Raises:
        PositionsError: the type is not specified, or a field is malformed.
    """
    kind = _POSITION_KINDS.get(message.type)
    if kind is None:
        raise PositionsError("a position needs a type")
    return ShardPosition(
        kind,
        timestamp_millis=message.timestamp_millis if kind is PositionType.AT_TIMESTAMP else None,
        sequence_number=message.sequence_number if kind is PositionType.AFTER_SEQUENCE_NUMBER else None,
        caught_up_millis=message.caught_up_millis or None,
        record=message.record if message.HasField("record") else None,
        arrived_millis=message.arrived_millis or None,
        first_record=message.first_record or None,
    )


def ranges_to_messages(ranges: Sequence[ShardRange]) -> list[pb.ShardRange]:
    """Ranges to messages."""
    return [
        pb.ShardRange(
            stream_name=item.stream_name,
            shard_id=item.shard_id,
            after=position_to_message(item.after),
            upto=position_to_message(item.upto),
            created_millis=item.created_millis or 0,
        )
        for item in ranges
    ]
