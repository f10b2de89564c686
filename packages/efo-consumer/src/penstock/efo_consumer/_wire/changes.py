"""Records of DynamoDB Streams as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.efo_consumer.errors import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXT = pa.string()
_IDENTITY = pa.struct([pa.field("principalId", _TEXT), pa.field("type", _TEXT)])

CHANGE_SCHEMA = pa.schema(
    [
        pa.field("eventID", _TEXT),
        pa.field("eventName", _TEXT),
        pa.field("keys", _TEXT),
        pa.field("newImage", _TEXT),
        pa.field("oldImage", _TEXT),
        pa.field("sequenceNumber", _TEXT),
        pa.field("approximateCreationDateTime", pa.timestamp("us", tz="UTC")),
        pa.field("sizeBytes", pa.int64()),
        pa.field("streamViewType", _TEXT),
        pa.field("userIdentity", _IDENTITY),
        pa.field("shardId", _TEXT),
        pa.field("streamArn", _TEXT),
    ]
)
"""The columns of changes. Keys and images are DynamoDB's JSON as it came, `{"id": {"S": "42"}}`: items of a table have
no common schema, and numbers are texts of up to 38 digits there, which no type that had to be guessed would keep."""


_NONE = msgspec.Raw(b"null")


class _Body(msgspec.Struct, gc=False):
    keys: msgspec.Raw = msgspec.field(name="Keys", default=_NONE)
    new_image: msgspec.Raw = msgspec.field(name="NewImage", default=_NONE)
    old_image: msgspec.Raw = msgspec.field(name="OldImage", default=_NONE)
    size_bytes: int | None = msgspec.field(name="SizeBytes", default=None)
    view_type: str | None = msgspec.field(name="StreamViewType", default=None)


class _Identity(msgspec.Struct, gc=False):
    principal_id: str | None = msgspec.field(name="PrincipalId", default=None)
    type: str | None = msgspec.field(name="Type", default=None)


class _Change(msgspec.Struct, gc=False):
    event_id: str = msgspec.field(name="eventID")
    event_name: str = msgspec.field(name="eventName")
    body: _Body = msgspec.field(name="dynamodb")
    identity: _Identity | None = msgspec.field(name="userIdentity", default=None)


_decode = msgspec.json.Decoder(_Change).decode


def to_change_batch(records: pa.RecordBatch) -> pa.RecordBatch:
    """Give records that were read of a stream of DynamoDB, READ_SCHEMA, the columns CHANGE_SCHEMA.

    Raises:
        PayloadDecodeError: the data is not a record of DynamoDB Streams.
    """
    try:
        changes = [_decode(data) for data in records.column("data").to_pylist()]
    except msgspec.MsgspecError as error:
        raise PayloadDecodeError(f"not a record of DynamoDB Streams: {error}") from error
    identities = [
        None if one.identity is None else {"principalId": one.identity.principal_id, "type": one.identity.type}
        for one in changes
    ]
    columns = [
        pa.array([one.event_id for one in changes], _TEXT),
        pa.array([one.event_name for one in changes], _TEXT),
        _texts(one.body.keys for one in changes),
        _texts(one.body.new_image for one in changes),
        _texts(one.body.old_image for one in changes),
        records.column("sequenceNumber"),
        records.column("approximateArrivalTimestamp"),
        pa.array([one.body.size_bytes for one in changes], pa.int64()),
        pa.array([one.body.view_type for one in changes], _TEXT),
        pa.array(identities, _IDENTITY),
        records.column("shardId"),
        records.column("streamName"),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGE_SCHEMA)


def _texts(values: Iterable[msgspec.Raw]) -> pa.Array:
    return pa.array([None if one == _NONE else bytes(one).decode() for one in values], _TEXT)
