"""Records with headers of the AWS Glue Schema Registry: apart, and decoded, over moto's Glue."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import boto3
import pytest

from penstock.aws import AwsOptions
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    AvroDecoder,
    Consumer,
    GlueDecoder,
    ProtoFile,
    SchemaDecodeError,
    SchemaRegistryError,
    decode_glue_record,
    encode_glue_record,
    message_index,
    plain_values,
)
from penstock.efo_consumer._glue.header import MAX_PAYLOAD_BYTES, split_message_index
from penstock.emulator.testing import RunningEmulator, running_emulator

# As tests of github.com/awslabs/aws-glue-schema-registry have them (GlueSchemaRegistryKafkaStreamsSerdeTest).
ID = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
HEADER = bytes(one % 256 for one in (3, 0, -73, -76, -89, -16, -100, -106, 78, 74, -90, -121, -5, 93, -23, -17, 12, 99))
SANSA = bytes(one % 256 for one in (10, 115, 97, 110, 115, 97, 0, -58, 1, 0, 6, 114, 101, 100))
USER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "favorite_number", "type": ["int", "null"]},
            {"name": "favorite_color", "type": ["string", "null"]},
        ],
    }
)
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  string order_id = 1;
  google.protobuf.Timestamp at = 2;
  message Item { double price = 1; }
}
"""


NODE = json.dumps({"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]})
NODE_MESSAGE = """
syntax = "proto3";
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
message Node {
  Node next = 1;
  google.protobuf.Timestamp at = 2;
  google.protobuf.Any any = 3;
  google.protobuf.Value value = 4;
}
"""


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(companions=("glue",)) as running:
        yield running


@pytest.fixture
def versions(emulator: RunningEmulator) -> dict[str, UUID]:
    """A schema of each format, by the format."""
    return registered(emulator, {"AVRO": USER, "JSON": '{"type": "object"}', "PROTOBUF": ORDER})


@pytest.fixture(scope="module")
def recursive_versions(emulator: RunningEmulator) -> dict[str, UUID]:
    """A schema of each format whose records may contain records of the same type."""
    return registered(emulator, {"AVRO": NODE, "JSON": "{}", "PROTOBUF": NODE_MESSAGE})


def registered(emulator: RunningEmulator, definitions: dict[str, str]) -> dict[str, UUID]:
    client = boto3.client(
        "glue",
        region_name="us-east-1",
        endpoint_url=emulator.endpoints["glue"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    registry = f"shop-{uuid4().hex[:8]}"
    client.create_registry(RegistryName=registry)
    return {
        kind: UUID(
            client.create_schema(
                RegistryId={"RegistryName": registry},
                SchemaName=kind.lower(),
                DataFormat=kind,
                Compatibility="NONE",
                SchemaDefinition=definition,
            )["SchemaVersionId"]
        )
        for kind, definition in definitions.items()
    }


@pytest.fixture
def decoder(emulator: RunningEmulator) -> GlueDecoder:
    aws = AwsOptions(region="us-east-1", access_key_id="test", secret_access_key="test")
    return GlueDecoder(aws, endpoint_url=emulator.endpoints["glue"])


def an_order() -> bytes:
    file = ProtoFile(ORDER)
    order = file.new(file.messages[0])
    order.order_id = "o-1"
    order.at.seconds = 1_767_225_600
    return message_index(0) + bytes(order.SerializeToString())


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"", "it is empty"),
        (b'{"a": 1, "b": "no header"}', "it begins with 7b 22 61 22; the header with 03"),
        (HEADER[:17], "no header"),
        (b"\x03\x07" + HEADER[2:], "names compression 7; known are 0"),
        (b"\x03\x05" + HEADER[2:] + b"abc", "is damaged"),
        (encode_glue_record(b"flight " * 99, ID, "zlib")[:-6], "is cut off"),
        (encode_glue_record(b"flight", ID, "zlib") + b"x", "1 bytes follow its compressed payload"),
        (encode_glue_record(b"flight", ID, "zlib") + zlib.compress(b"flight"), "14 bytes follow"),
        (encode_glue_record(bytes(MAX_PAYLOAD_BYTES + 1), ID, "zlib"), f"more than {MAX_PAYLOAD_BYTES} bytes"),
    ],
)
def test_what_has_no_header_is_told(record: bytes, words: str) -> None:
    """With the bytes that it begins with."""
    with pytest.raises(SchemaDecodeError, match=words):
        decode_glue_record(record)


def test_the_number_of_a_protobuf_message_is_an_unsigned_varint() -> None:
    """It stands before the message; one that is cut off is said."""
    for number in (0, 1, 127, 128, 300, 70_000):
        assert split_message_index(message_index(number) + b"rest") == (number, b"rest")
    assert message_index(300) == b"\xac\x02"
    with pytest.raises(SchemaDecodeError, match="number of a Protobuf message"):
        split_message_index(b"\x80")


@pytest.mark.parametrize("compression", ["none", "zlib"])
async def test_a_consumer_decodes_avro_json_and_protobuf(
    emulator: RunningEmulator, versions: dict[str, UUID], decoder: GlueDecoder, compression: Any
) -> None:
    """By the schema versions in the records' headers, also of compressed payloads; each value has its schema."""
    client, stream = emulator.client(), f"shop-{uuid4().hex[:8]}"
    client.create_stream(StreamName=stream, ShardCount=1)
    payloads = {"AVRO": SANSA, "JSON": b'{"firstName": "John"}', "PROTOBUF": an_order()}
    for kind, payload in payloads.items():
        record = encode_glue_record(payload, versions[kind], compression)
        client.put_record(StreamName=stream, Data=record, PartitionKey="k")
    found = []
    aws = emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))
    async with asyncio.timeout(60), Consumer([stream], start="TRIM_HORIZON", aws=aws, checkpoints=None) as consumer:
        async for batch in consumer:
            found += await decoder.decode_all(batch.records["data"].to_pylist())
            if len(found) == len(payloads):
                break
    assert [one.value for one in found] == [
        {"name": "sansa", "favorite_number": 99, "favorite_color": "red"},
        {"firstName": "John"},
        {"order_id": "o-1", "at": "2026-01-01T00:00:00Z"},
    ]
    assert [(one.schema.schema, one.schema.number) for one in found] == [("avro", 1), ("json", 1), ("protobuf", 1)]


def test_what_cannot_be_decoded_says_why(decoder: GlueDecoder, versions: dict[str, UUID]) -> None:
    """No header, no such version, and payloads that are not what their schemas say."""
    unknown = uuid4()
    for record, error, words in (
        (b"no header", SchemaDecodeError, "it has no header"),
        (encode_glue_record(SANSA, unknown), SchemaRegistryError, f"there is no schema version {unknown}"),
        (encode_glue_record(SANSA[:4], versions["AVRO"]), SchemaDecodeError, "it is not what version 1 of schema"),
        (encode_glue_record(SANSA + b"x", versions["AVRO"]), SchemaDecodeError, "1 bytes follow what version 1"),
        (encode_glue_record(b"{", versions["JSON"]), SchemaDecodeError, "it is not JSON"),
        (encode_glue_record(b"\x07", versions["PROTOBUF"]), SchemaDecodeError, "message 7 of a schema that has 2"),
        (encode_glue_record(b"\x00\x0a\xff", versions["PROTOBUF"]), SchemaDecodeError, r"it is not a shop\.Order"),
    ):
        with pytest.raises(error, match=words):
            decoder.decode(record)


def nested_messages(levels: int) -> bytes:
    content = b""
    for _ in range(levels):
        content = b"\x0a" + message_index(len(content)) + content
    return message_index(0) + content


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("JSON", b"[" * 3_000 + b"]" * 3_000),
        ("JSON", b'{"a": ' * 100_000 + b"1" + b"}" * 100_000),
        ("AVRO", b"\x02" * 100_000 + b"\x00"),
        ("AVRO", b"\x02" * 3_000 + b"\x00"),
        ("PROTOBUF", nested_messages(3_000)),
    ],
)
@pytest.mark.parametrize("compression", ["none", "zlib"])
async def test_record_that_nests_too_deeply_cannot_be_decoded(
    recursive_versions: dict[str, UUID], decoder: GlueDecoder, kind: str, payload: bytes, compression: Any
) -> None:
    """The error names the record. The compiled reader of Avro would end the process instead."""
    good = {"JSON": b'{"a": {}}', "AVRO": b"\x02\x00", "PROTOBUF": nested_messages(50)}[kind]
    record = encode_glue_record(payload, recursive_versions[kind], compression)
    with pytest.raises(SchemaDecodeError) as caught:
        decoder.decode(record)
    assert caught.value.number is None
    with pytest.raises(SchemaDecodeError) as caught:
        await decoder.decode_all([encode_glue_record(good, recursive_versions[kind]), record])
    assert caught.value.number == 1


@pytest.mark.parametrize(("kind", "module"), [("AVRO", "fastavro"), ("PROTOBUF", "google.protobuf")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    decoder: GlueDecoder, versions: dict[str, UUID], monkeypatch: pytest.MonkeyPatch, kind: str, module: str
) -> None:
    """Not as an ImportError in the middle of a batch."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SchemaDecodeError, match=rf"pip install 'penstock-efo-consumer\[{kind.lower()}\]'"):
        decoder.decode(encode_glue_record(SANSA, versions[kind]))


def test_records_of_avro_are_decoded_by_a_schema_that_is_at_hand() -> None:
    """Bare, behind the header of a single object or of Confluent's serializers, and bare though it begins as one."""
    decoder = AvroDecoder(
        json.dumps({"type": "record", "name": "n", "fields": [{"name": "n", "type": "long"}]}), "n.avsc"
    )
    for record, number in (
        (b"\x18", 12),
        (b"\xc3\x01" + bytes(8) + b"\x18", 12),
        (b"\0" + bytes(4) + b"\x18", 12),
        (b"\0", 0),
        (b"\xc3\x01", -98),
    ):
        assert decoder.decode(record) == {"n": number}
    for record, words in (
        (b"\x18\x18", r"1 bytes follow what n\.avsc describes"),
        (b"", r"it is not what n\.avsc says"),
    ):
        with pytest.raises(SchemaDecodeError, match=words):
            decoder.decode(record)
    for definition in ("{", '{"type": "flight"}'):
        with pytest.raises(SchemaDecodeError, match=r"n\.avsc is not a schema of Avro"):
            AvroDecoder(definition, "n.avsc")


def test_values_are_plain_where_json_cannot_hold_them() -> None:
    """Bytes as base 64, in the console and on a terminal alike."""
    value = {"data": b"\xff", "at": datetime(2026, 1, 1, tzinfo=UTC), "price": Decimal("1.50"), "rows": [1, -math.inf]}
    assert plain_values(value) == {
        "data": "/w==",
        "at": "2026-01-01 00:00:00+00:00",
        "price": "1.50",
        "rows": [1, "-Infinity"],
    }
