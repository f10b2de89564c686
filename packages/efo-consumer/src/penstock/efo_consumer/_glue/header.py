"""The header of records whose schema is in the AWS Glue Schema Registry. Plain Python: no Spark, no AWS.

| bytes | hold |
| --- | --- |
| 0 | the version of the header: 3 |
| 1 | the compression of the payload: 0 none, 5 zlib |
| 2 to 17 | the UUID of the schema version that the payload was written with, big-endian |
| from 18 | the payload |

Source: `AWSSchemaRegistryConstants` and `SerializationDataEncoder` of github.com/awslabs/aws-glue-schema-registry.
"""

import zlib
from typing import Literal, NamedTuple
from uuid import UUID

from penstock.efo_consumer.errors import SchemaDecodeError

Compression = Literal["none", "zlib"]

_VERSION = 3
_COMPRESSIONS: dict[str, int] = {"none": 0, "zlib": 5}
_HEADER_BYTES = 18
MAX_PAYLOAD_BYTES = 64 << 20
"""Most bytes that a compressed payload may become: a record of 10 MB could claim 10 GB."""


class GlueRecord(NamedTuple):
    """A record, taken apart."""

    schema_version_id: UUID
    """Id of the schema version that it was written with."""
    payload: bytes
    """Without compression. That of Protobuf begins with the number of its message; see `message_index`."""


def encode_glue_record(payload: bytes, schema_version_id: UUID, compression: Compression = "none") -> bytes:
    """The record with its header, as the registry's own serializers write it."""
    if compression == "zlib":
        payload = zlib.compress(payload)
    return glue_header(schema_version_id, compression) + payload


def glue_header(schema_version_id: UUID, compression: Compression = "none") -> bytes:
    """The 18 bytes before a payload."""
    return bytes((_VERSION, _COMPRESSIONS[compression])) + schema_version_id.bytes


def decode_glue_record(record: bytes, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> GlueRecord:
    """Take a record apart.

    Raises:
        SchemaDecodeError: the record has no such header, or its payload is damaged or longer than `max_payload_bytes`.
    """
    if len(record) < _HEADER_BYTES or record[0] != _VERSION:
        begins = f"it begins with {record[:4].hex(' ')}" if record else "it is empty"
        raise SchemaDecodeError(f"it has no header of the Glue Schema Registry ({begins}; the header with 03)")
    schema_version_id, payload = UUID(bytes=bytes(record[2:_HEADER_BYTES])), bytes(record[_HEADER_BYTES:])
    if record[1] == _COMPRESSIONS["zlib"]:
        payload = _inflate(payload, max_payload_bytes)
    elif record[1] != _COMPRESSIONS["none"]:
        raise SchemaDecodeError(f"its header names compression {record[1]}; known are 0 (none) and 5 (zlib)")
    return GlueRecord(schema_version_id, payload)


def _inflate(payload: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(payload, most)
    except zlib.error as error:
        raise SchemaDecodeError(f"its compressed payload is damaged ({error})") from error
    if inflater.eof:
        if inflater.unused_data:
            raise SchemaDecodeError(f"{len(inflater.unused_data)} bytes follow its compressed payload")
        return plain
    if len(plain) >= most:
        raise SchemaDecodeError(f"its payload is more than {most} bytes without compression")
    raise SchemaDecodeError("its compressed payload is cut off")


def split_message_index(payload: bytes) -> tuple[int, bytes]:
    """The number of a Protobuf payload's message in its schema, and the message.

    Raises:
        SchemaDecodeError: the payload does not begin with a number.
    """
    index = 0
    for place, byte in enumerate(payload[:5]):
        index |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return index, payload[place + 1 :]
    raise SchemaDecodeError("its payload does not begin with the number of a Protobuf message")


def message_index(index: int) -> bytes:
    """The number of a message, as it stands before it: an unsigned varint."""
    encoded = bytearray()
    while index >= 0x80:
        encoded.append(index & 0x7F | 0x80)
        index >>= 7
    encoded.append(index)
    return bytes(encoded)
