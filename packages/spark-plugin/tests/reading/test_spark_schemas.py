"""Records with schemas of the AWS Glue Schema Registry: their bytes, what they become, and how they are written."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import boto3
import pyarrow as pa
import pytest
from moto.glue.models import FakeSchemaVersion
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import (
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.async_sink import KinesisStreamsSink
from penstock.aws import AwsOptions
from penstock.efo_consumer import decode_glue_record, encode_glue_record
from penstock.efo_consumer.errors import SchemaDecodeError, SchemaRegistryError
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import (
    KinesisOptions,
    from_glue,
)
from penstock.spark_plugin._schema import sink_columns
from penstock.spark_plugin._schemas.avro import avro_decoder, avro_spark_type
from penstock.spark_plugin._schemas.column import planned_records
from penstock.spark_plugin._schemas.json_schema import json_spark_type
from penstock.spark_plugin._schemas.protobuf import proto_file, protobuf_decoder, protobuf_encoder, protobuf_spark_type
from penstock.spark_plugin._schemas.registry import GlueSchemaRegistry
from penstock.spark_plugin._writing.records import RecordMaker, bad_rows
from penstock.spark_plugin._writing.value_rows import avro_row_encoder
from penstock.spark_plugin._writing.values import check_value_fields
from penstock.spark_plugin.errors import OptionError, SchemaError, SparkPluginError
from penstock.spark_plugin.testing import endpoint_options

# As tests of github.com/awslabs/aws-glue-schema-registry have them (GlueSchemaRegistryKafkaStreamsSerdeTest).
ID = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
HEADER = bytes(one % 256 for one in (3, 0, -73, -76, -89, -16, -100, -106, 78, 74, -90, -121, -5, 93, -23, -17, 12, 99))
AVRO = HEADER + bytes(one % 256 for one in (10, 115, 97, 110, 115, 97, 0, -58, 1, 0, 6, 114, 101, 100))
JSON = HEADER + b'{"firstName":"John","lastName":"Doe","age":21}'
USER = json.dumps(
    {
        "namespace": "com.amazonaws.services.schemaregistry.serializers.avro",
        "type": "record",
        "name": "User",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "favorite_number", "type": ["int", "null"]},
            {"name": "favorite_color", "type": ["string", "null"]},
        ],
    }
)
USER_MESSAGE = 'syntax = "proto3"; message User { string name = 1; sint32 favorite_number = 2; }'
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Colour { RED = 0; BLUE = 1; }
message Order {
  string id = 1;
  optional int32 count = 2;
  google.protobuf.Timestamp at = 3;
  map<string, Item> items = 4;
  repeated string tags = 5;
  Colour colour = 6;
  uint64 total = 7;
  message Item { double price = 1; }
}
"""
ORDER_ROW = {
    "id": "o-1",
    "count": 3,
    "at": datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
    "items": {"a": {"price": 1.5}},
    "tags": ["x", "y"],
    "colour": "BLUE",
    "total": Decimal(2**64 - 1),
}
PERSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"firstName": {"type": "string"}, "lastName": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["firstName"],
    }
)


def test_a_record_has_the_bytes_that_the_registrys_own_serializers_give_it() -> None:
    """Header and payload, for Avro and JSON, from the tests of AWS's own library."""
    assert encode_glue_record(AVRO[18:], ID) == AVRO
    assert decode_glue_record(AVRO) == (ID, AVRO[18:])
    assert avro_decoder(USER, None)(AVRO[18:]) == {"name": "sansa", "favorite_number": 99, "favorite_color": "red"}
    assert json.loads(decode_glue_record(JSON).payload) == {"firstName": "John", "lastName": "Doe", "age": 21}


def test_a_protobuf_message_goes_there_and_back() -> None:
    """Every kind of field; an optional one that is not set is null, others have Protobuf's defaults."""
    kind = protobuf_spark_type(ORDER, "Order", "orders")
    assert kind.simpleString() == (
        "struct<id:string,count:int,at:timestamp,items:map<string,struct<price:double>>,tags:array<string>,"
        "colour:string,total:decimal(20,0)>"
    )
    encode, decode = protobuf_encoder(ORDER, "shop.Order"), protobuf_decoder(ORDER, "Order", kind, "orders")
    assert decode(encode(ORDER_ROW)) == ORDER_ROW
    assert decode(encode({"id": "o-2", "at": None})) == {
        "id": "o-2", "count": None, "at": None, "items": {}, "tags": [], "colour": "RED", "total": Decimal(0),
    }  # fmt: skip
    some = StructType([StructField("id", StringType()), StructField("unheard", LongType())])
    assert protobuf_decoder(ORDER, None, some, "orders")(encode(ORDER_ROW)) == {"id": "o-1"}
    with pytest.raises(SchemaDecodeError, match=r"it is a message shop\.Order, and not shop\.Order\.Item"):
        protobuf_decoder(ORDER, "Item", kind, "orders")(encode(ORDER_ROW))
    with pytest.raises(SchemaDecodeError, match="message 9 of a schema that has 3"):
        decode(b"\x09")
    for row, words in (({"colour": "PINK"}, "'PINK' is not a shop.Colour: RED, BLUE"), ({"tags": [None]}, "is null")):
        with pytest.raises(ValueError, match=words):
            encode(row)


def test_a_schema_that_protoc_refuses_is_told_with_its_line() -> None:
    """In protoc's own words."""
    with pytest.raises(SchemaError, match=r"protoc does not take .* line 1:.*Strin"):
        proto_file('syntax = "proto3"; message A { Strin a = 1; }')
    with pytest.raises(SchemaError, match=r"has several messages: A, B; say which by 'schemaMessage'"):
        protobuf_spark_type('syntax = "proto3"; message A {} message B {}', None, "letters")
    with pytest.raises(SchemaError, match=r"'next': holds A within itself"):
        protobuf_spark_type('syntax = "proto3"; message A { A next = 1; }', None, "letters")


def test_avro_types_are_those_of_sparks_own_reader() -> None:
    """Unions with null, named types that are used again, logical types; other unions have none."""
    address = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}
    fields = {
        "home": address,
        "work": ["null", "Address"],
        "tags": {"type": "array", "items": ["null", "string"]},
        "counts": {"type": "map", "values": "long"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "key": {"type": "string", "logicalType": "uuid"},
        "size": ["int", "long", "null"],
        "noon": {"type": "int", "logicalType": "time-millis"},
    }
    definition = {"type": "record", "name": "All", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    assert avro_spark_type(json.dumps(definition)).simpleString() == (
        "struct<home:struct<street:string>,work:struct<street:string>,tags:array<string>,counts:map<string,bigint>,"
        "price:decimal(9,2),at:timestamp,key:string,size:bigint,noon:int>"
    )
    for kind, words in (
        (["string", "long"], "is a union of long, string"),
        (["null", "All"], "holds All within itself"),
    ):
        wrong = {"type": "record", "name": "All", "fields": [{"name": "bad", "type": kind}]}
        with pytest.raises(SchemaError, match=f"'bad': {words}"):
            avro_spark_type(json.dumps(wrong))


def test_json_schemas_say_what_spark_can_read() -> None:
    """References within a schema, maps and arrays; what is of several types is JSON's own text."""
    definition = {
        "type": "object",
        "properties": {
            "id": {"type": ["string", "null"]},
            "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
            "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "size": {"type": ["integer", "number"]},
        },
        "definitions": {"line": {"properties": {"n": {"type": "integer"}, "next": {"$ref": "#/definitions/line"}}}},
    }
    assert json_spark_type(json.dumps(definition)).simpleString() == (
        "struct<id:string,lines:array<struct<n:bigint,next:string>>,labels:map<string,boolean>,any:string,size:double>"
    )
    with pytest.raises(SchemaError, match="says nothing of its fields"):
        json_spark_type('{"type": "string"}')


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(companions=("glue",)) as running:
        yield running


@pytest.fixture(scope="module")
def glue(emulator: RunningEmulator) -> Any:
    """boto3's own client: another party that registers schemas."""
    client = boto3.client(
        "glue",
        region_name="us-east-1",
        endpoint_url=emulator.endpoints["glue"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_registry(RegistryName="shop")
    return client


@pytest.fixture
def name(glue: Any) -> str:
    """A version of a schema of the test."""
    return f"schema-{uuid4().hex[:8]}"


@pytest.fixture
def options(emulator: RunningEmulator) -> dict[str, str]:
    """For `from_glue`."""
    return {
        "region": "us-east-1",
        "glueEndpointUrl": emulator.endpoints["glue"],
        "awsAccessKeyId": "test",
        "awsSecretAccessKey": "test",
    }


def register(glue: Any, name: str, data_format: str, definition: str, compatibility: str = "BACKWARD") -> UUID:
    made = glue.create_schema(
        RegistryId={"RegistryName": "shop"},
        SchemaName=name,
        DataFormat=data_format,
        Compatibility=compatibility,
        SchemaDefinition=definition,
    )
    return UUID(made["SchemaVersionId"])


def register_version(glue: Any, name: str, definition: str) -> UUID:
    schema = {"RegistryName": "shop", "SchemaName": name}
    return UUID(glue.register_schema_version(SchemaId=schema, SchemaDefinition=definition)["SchemaVersionId"])


@pytest.fixture
def registry(emulator: RunningEmulator) -> GlueSchemaRegistry:
    aws = AwsOptions(region="us-east-1", access_key_id="test", secret_access_key="test")
    return GlueSchemaRegistry(aws, emulator.endpoints["glue"])


def test_a_schema_that_is_not_there_is_told_with_its_registry(
    registry: GlueSchemaRegistry, glue: Any, name: str
) -> None:
    """By name, and by number; and an endpoint that does not answer by its option."""
    with pytest.raises(SchemaRegistryError, match=rf"no schema '{name}' in registry 'shop'"):
        registry.version_of_name("shop", name)
    register(glue, name, "AVRO", USER)
    with pytest.raises(SchemaRegistryError, match=f"no version 7 of schema '{name}'"):
        registry.version_of_name("shop", name, 7)
    assert registry.version_of_name("shop", name).number == 1


def written(fields: StructType, rows: list[dict[str, Any]], **options: str) -> tuple[list[bytes], dict[int, str]]:
    """The data of records that a writer makes of rows, and those that it cannot."""
    parsed = KinesisOptions.parse({"streamName": "s", "randomPartitionKey": "true", **options})
    schema = check_value_fields(fields.fields, parsed)
    maker = RecordMaker(sink_columns(fields, parsed), parsed, schema=schema)
    records = maker.of(pa.Table.from_pylist(rows, ARROW[fields.simpleString()]).combine_chunks().to_batches()[0])
    wrong = bad_rows(
        records.batch,
        None,
        row_faults=KinesisStreamsSink.row_faults,
        max_record_bytes=1 << 20,
        needs_stream=False,
        faults=records.faults,
    )
    return records.batch.column("data").to_pylist(), {one.index: one.reason for one in wrong}


USERS = StructType([StructField("name", StringType()), StructField("favorite_number", IntegerType())])
ARROW = {USERS.simpleString(): pa.schema({"name": pa.string(), "favorite_number": pa.int32()})}


def writer_options(options: dict[str, str], name: str, value_format: str, **more: str) -> dict[str, str]:
    return {**options, "schemaRegistry": "shop", "schemaName": name, "valueFormat": value_format, **more}


def test_rows_are_written_by_a_registered_schema(glue: Any, name: str, options: dict[str, str]) -> None:
    """Byte for byte what AWS's serializer writes, except the id; a row that does not fit is reported, as JSON."""
    first = register(glue, name, "AVRO", USER)
    rows: list[dict[str, Any]] = [{"name": "sansa", "favorite_number": 99}, {"name": None, "favorite_number": 1}]
    records, wrong = written(USERS, rows, **writer_options(options, name, "avro"))
    assert records[0] == bytes((3, 0)) + first.bytes + b"\x0asansa\x00\xc6\x01\x02"
    assert (list(wrong), json.loads(records[1])) == ([1], {"favorite_number": 1})
    assert wrong[1].startswith(f"schema '{name}' (version 1) does not take it: ")
    packed, _ = written(USERS, rows[:1], **writer_options(options, name, "avro", schemaCompression="zlib"))
    assert packed[0][1] == 5
    assert decode_glue_record(packed[0]) == decode_glue_record(records[0])
    second = register_version(glue, name, USER.replace('"name": "favorite_color"', '"name": "colour"'))
    records, _ = written(USERS, rows[:1], **writer_options(options, name, "avro"))
    assert decode_glue_record(records[0]).schema_version_id == second
    records, _ = written(USERS, rows[:1], **writer_options(options, name, "avro", schemaVersion="1"))
    assert decode_glue_record(records[0]).schema_version_id == first


@pytest.mark.parametrize(("value_format", "definition"), [("avro", USER), ("protobuf", USER_MESSAGE)])
def test_a_text_that_is_not_utf8_spoils_no_row_but_its_own(
    glue: Any, name: str, options: dict[str, str], value_format: str, definition: str
) -> None:
    """Spark makes such texts of any bytes, and hands them on."""
    register(glue, name, value_format.upper(), definition)
    parsed = KinesisOptions.parse(
        {"streamName": "s", "randomPartitionKey": "true", **writer_options(options, name, value_format)}
    )
    maker = RecordMaker(sink_columns(USERS, parsed), parsed, schema=check_value_fields(USERS.fields, parsed))
    names = pa.array([b"sansa", b"\xff", b"arya"], pa.binary())
    batch = pa.record_batch(
        {
            "name": pa.Array.from_buffers(pa.string(), 3, names.buffers()),
            "favorite_number": pa.array([1, 2, 3], pa.int32()),
        }
    )
    records = maker.of(batch)
    (wrong,) = records.faults.values()
    assert wrong.startswith(f"schema '{name}' (version 1) does not take it: column 'name': 'utf-8' codec can't decode")
    first, bad, last = records.batch.column("data").to_pylist()
    assert (b"sansa" in first, b"arya" in last, first[:2]) == (True, True, last[:2])
    assert json.loads(bad) == {"name": "\ufffd", "favorite_number": 2}


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("surname", StringType()), "'surname': schema .* has no such field, and name, favorite_number"),
        (StructField("favorite_number", LongType()), "'favorite_number': is bigint, and int in schema .*: cast it"),
        (StructField("favorite_number", DecimalType(3, 0)), r"is decimal\(3,0\), and int in schema"),
        (StructField("favorite_color", StringType()), "'name': schema .* needs it, and the rows lack the column"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_anything_is_written(
    glue: Any, name: str, options: dict[str, str], field: StructField, words: str
) -> None:
    """By the registered Avro schema."""
    register(glue, name, "AVRO", USER)
    fields = [field] if field.name == "favorite_color" else [StructField("name", StringType()), field]
    with pytest.raises(SchemaError, match=words):
        check_value_fields(fields, KinesisOptions.parse({"streamName": "s", **writer_options(options, name, "avro")}))


@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_a_schema_of_columns_is_registered_on_request_alone(
    glue: Any, name: str, options: dict[str, str], registry: GlueSchemaRegistry, value_format: str
) -> None:
    """A new schema, then the same again, then a version with a nullable column more, which can read the first."""
    given = writer_options(options, name, value_format)
    row = {"name": "sansa", "favorite_number": 99}
    with pytest.raises(SchemaRegistryError, match=f"no schema '{name}' .*'schemaAutoRegister'"):
        written(USERS, [row], **given)
    given |= {"schemaAutoRegister": "true", "schemaCompatibility": "full"}
    (first,) = written(USERS, [row], **given)[0]
    assert written(USERS, [row], **given)[0] == [first]
    schema = glue.get_schema(SchemaId={"RegistryName": "shop", "SchemaName": name})
    assert (schema["Compatibility"], schema["LatestSchemaVersion"]) == ("FULL", 1)
    more = StructType([*USERS.fields, StructField("city", StringType())])
    ARROW[more.simpleString()] = ARROW[USERS.simpleString()].append(pa.field("city", pa.string()))
    (second,) = written(more, [{**row, "city": "Winterfell"}], **given)[0]
    newer = registry.version_of_id(decode_glue_record(second).schema_version_id)
    assert newer.number == 2
    if value_format == "avro":
        older = registry.version_of_id(decode_glue_record(first).schema_version_id)
        payload = decode_glue_record(first).payload
        assert avro_decoder(older.definition, newer.definition)(payload) == {**row, "city": None}


def test_an_incompatible_schema_is_told_in_plain_words(
    glue: Any, name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry checks a new version after it has taken it: PENDING, and then FAILURE. moto takes everything."""
    register(glue, name, "AVRO", USER, "FORWARD_ALL")
    statuses = iter(["PENDING", "PENDING", "FAILURE"])
    original = FakeSchemaVersion.get_schema_version_as_dict
    monkeypatch.setattr(FakeSchemaVersion, "as_dict", lambda self: {
        "SchemaVersionId": self.schema_version_id, "VersionNumber": 2, "Status": next(statuses),
    })  # fmt: skip
    monkeypatch.setattr(
        FakeSchemaVersion, "get_schema_version_as_dict", lambda self: {**original(self), "Status": next(statuses)}
    )
    with pytest.raises(SparkPluginError) as caught:
        written(USERS, [], **writer_options(options, name, "avro", schemaAutoRegister="true"))
    assert caught.value.code == "INCOMPATIBLE_SCHEMA"
    facts = caught.value.facts
    assert (facts["registry"], facts["schema"], facts["compatibility"]) == ("shop", name, "FORWARD_ALL")


def test_from_glue_refuses_what_it_cannot_use(options: dict[str, str]) -> None:
    """Arguments that lack their others, and options of Kinesis."""
    with pytest.raises(OptionError, match=r"MISSING_OPTION.*schema_name"):
        from_glue("data", options=options)
    with pytest.raises(OptionError, match=r"MISSING_OPTION.*schema_version belongs to it"):
        from_glue("data", schema=USERS, schema_version=1, options=options)
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*FAILFAST or PERMISSIVE"):
        from_glue("data", schema=USERS, mode="DROPMALFORMED", options=options)  # type: ignore[arg-type]  # a mistake
    with pytest.raises(OptionError, match=r"IRRELEVANT_OPTION.*'streamName' has no effect on from_glue"):
        from_glue("data", schema=USERS, options={"streamName": "s"})
    with pytest.raises(OptionError, match="'glueEndpointUrl': is a scheme, a host and a port, without user"):
        from_glue("data", schema=USERS, options={"glueEndpointUrl": "https://me:secret@127.0.0.1:1"})
    with pytest.raises(
        OptionError, match=r"DANGEROUS_OPTION.*'glueEndpointUrl': records and session tokens would go to glue"
    ):
        from_glue("data", schema=USERS, options={"glueEndpointUrl": "http://glue.internal:1", "awsProfile": "p"})


@pytest.fixture
def read(options: dict[str, str]) -> Callable[..., list[Any]]:
    """What tasks make of records, without Spark; JSON stays text, which Spark itself reads."""

    def values(records: list[bytes | None], **given: Any) -> list[Any]:
        planned = planned_records(registry="shop", options=options, **given)
        found: list[Any] = planned.arrow(records).to_pylist(maps_as_pydicts="strict")
        return found

    return values


def test_avro_of_every_version_becomes_that_of_the_query(glue: Any, name: str, read: Callable[..., list[Any]]) -> None:
    """Fields that were added have their defaults; types, maps and nested records come through; a null stays one."""
    fields: list[Any] = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "labels", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "noon", "type": {"type": "int", "logicalType": "time-millis"}},
    ]
    old = json.dumps({"type": "record", "name": "Sale", "fields": fields})
    new = json.dumps(
        {"type": "record", "name": "Sale", "fields": [*fields, {"name": "n", "type": "int", "default": 7}]}
    )
    first = register(glue, name, "AVRO", old)
    register_version(glue, name, new)
    row = {
        "id": 1,
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "price": Decimal("12.34"),
        "day": date(2026, 1, 2),
        "labels": {"a": ["x", "y"], "b": []},
        "key": str(ID),
        "noon": 43_200_000,
    }
    payload = avro_row_encoder(old)({**row, "noon": time(12)})
    record = encode_glue_record(payload, first, "zlib")
    assert read([record, None], schema_name=name) == [{**row, "n": 7}, None]
    assert read([record], schema_name=name, schema_version=1) == [row]
    assert read([record, None], schema=StructType([StructField("id", LongType()), StructField("no", LongType())])) == [
        {"value": {"id": 1, "no": None}, "text": None},
        None,
    ]


def test_unreadable_record_fails_or_is_null(glue: Any, name: str, read: Callable[..., list[Any]]) -> None:
    """No header, another schema, a version that there is not, bytes that are not what the schema says, types."""
    mine = register(glue, name, "AVRO", USER)
    other = register(glue, f"{name}-2", "JSON", PERSON)
    good = encode_glue_record(AVRO[18:], mine)
    wrong = {
        b"no header": "it begins with 6e 6f 20 68",
        encode_glue_record(JSON[18:], other): rf"it is of version 1 of schema '{name}-2' \(JSON\)",
        encode_glue_record(AVRO[18:], uuid4()): "there is no schema version",
        encode_glue_record(b"\xff", mine): "it is not what its Avro schema says",
        good + b"\x00": "1 bytes follow what its Avro schema describes",
    }
    for record, words in wrong.items():
        with pytest.raises((SchemaDecodeError, SchemaRegistryError), match=words):
            read([good, record], schema_name=name)
    sansa = {"name": "sansa", "favorite_number": 99, "favorite_color": "red"}
    assert read([good, *wrong, good], schema_name=name, mode="PERMISSIVE") == [sansa, *[None] * 5, sansa]
    halves = [encode_glue_record(b'{"firstName": ', other), encode_glue_record(b'{"firstName": "a"}', other)]
    assert read(halves, schema_name=f"{name}-2", mode="PERMISSIVE") == [None, '{"firstName": "a"}']
    number = StructType([StructField("name", IntegerType())])
    with pytest.raises(SchemaDecodeError, match="does not fit the type struct<name:int>"):
        read([good], schema=number)
    assert read([good], schema=number, mode="PERMISSIVE") == [None]


def test_record_that_nests_too_deeply_or_has_impossible_times_fails_or_is_null(
    glue: Any, name: str, read: Callable[..., list[Any]]
) -> None:
    """In each format. The compiled reader of Avro would end the process instead."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    message = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message Node { Node next = 1; google.protobuf.Timestamp at = 2; }"""
    avro = register(glue, f"{name}-avro", "AVRO", json.dumps(node))
    text = register(glue, f"{name}-json", "JSON", PERSON)
    proto = register(glue, f"{name}-proto", "PROTOBUF", message)
    deep = b"".join(b"\x0a" + bytes((length,)) for length in range(126, 0, -2))
    wrong = [
        encode_glue_record(b"\x02" * 100_000 + b"\x00", avro),
        encode_glue_record(b'{"firstName": ' + b"[" * 3_000 + b"]" * 3_000 + b"}", text, "zlib"),
        encode_glue_record(b"\0" + deep, proto),
        encode_glue_record(b"\0\x12\x09\x08" + b"\xff" * 7 + b"\x7f", proto),
        encode_glue_record(b"\0\x12\x07\x08" + b"\xff" * 5 + b"\x7f", proto),
        encode_glue_record(b'{"firstName": "a"}', text, "zlib") + b"{}",
    ]
    kind = StructType([StructField("at", TimestampType()), StructField("firstName", StringType())])
    good = encode_glue_record(b'{"firstName": "a"}', text, "zlib")
    found = {"value": None, "text": '{"firstName": "a"}'}
    assert read([good, *wrong, good], schema=kind, mode="PERMISSIVE") == [found, *[None] * len(wrong), found]
    for record in (*wrong[:1], *wrong[2:]):
        with pytest.raises(SchemaDecodeError):
            read([good, record], schema=kind)


def test_spark_writes_and_reads_with_the_registry(
    spark: SparkSession, emulator: RunningEmulator, glue: Any, name: str, options: dict[str, str]
) -> None:
    """Avro through the data source, there and back; JSON and Protobuf in one column; a record that fails the task."""
    emulator.client().create_stream(StreamName=name, ShardCount=1)
    place = {**endpoint_options(emulator.endpoint_url, name), "glueEndpointUrl": options["glueEndpointUrl"]}
    rows = spark.range(5).select("id", functions.lit(1.5).alias("price")).coalesce(1)
    given = {"schemaRegistry": "shop", "valueFormat": "avro", "schemaAutoRegister": "true", "schemaCompression": "zlib"}
    rows.write.format("kinesis").options(**place, **given, randomPartitionKey="true").mode("append").save()
    stream = spark.read.format("kinesis").options(**endpoint_options(emulator.endpoint_url, name)).load()
    found = stream.select(from_glue("data", registry="shop", schema_name=name, options=options).alias("sale"))
    assert found.schema["sale"].dataType.simpleString() == "struct<id:bigint,price:double>"
    assert sorted(map(tuple, found.select("sale.*").collect())) == [(number, 1.5) for number in range(5)]
    order = register(glue, f"{name}-order", "PROTOBUF", ORDER)
    person = register(glue, f"{name}-person", "JSON", PERSON)
    message = encode_glue_record(protobuf_encoder(ORDER, None)(ORDER_ROW), order)
    document = encode_glue_record(b'{"firstName": "John", "age": 21, "more": true}', person)
    frame = spark.createDataFrame([(document,), (message,), (None,)], "data binary").coalesce(1)
    any_of = from_glue("data", schema="firstName string, id string, tags array<string>", options=options)
    orders = from_glue("data", registry="shop", schema_name=f"{name}-order", mode="PERMISSIVE", options=options)
    people = from_glue("data", registry="shop", schema_name=f"{name}-person", mode="PERMISSIVE", options=options)
    local = {**ORDER_ROW, "at": datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC).astimezone().replace(tzinfo=None)}
    read = frame.select(any_of.alias("any"), orders.alias("order"), people.alias("person")).collect()
    assert [row.asDict(recursive=True) for row in read] == [
        {
            "any": {"firstName": "John", "id": None, "tags": None},
            "order": None,
            "person": {"firstName": "John", "lastName": None, "age": 21},
        },
        {"any": {"firstName": None, "id": "o-1", "tags": ["x", "y"]}, "order": local, "person": None},
        {"any": None, "order": None, "person": None},
    ]
    strict = from_glue("data", registry="shop", schema_name=f"{name}-order", options=options)
    with pytest.raises(Exception, match=rf"it is of version 1 of schema '{name}-person'"):
        frame.select(strict).collect()


def test_spark_reads_on_behind_a_record_that_nests_too_deeply(
    spark: SparkSession, glue: Any, name: str, options: dict[str, str]
) -> None:
    """One such record ended the job, and ended it again after each restart."""
    person = register(glue, name, "JSON", PERSON)
    deep = [b'{"firstName": "x", "more": ' + b"[" * levels + b"]" * levels + b"}" for levels in (3_000, 1_000, 900)]
    documents = [b'{"firstName": "a"}', *deep, b'{"firstName": "b"}']
    frame = spark.createDataFrame([(encode_glue_record(one, person),) for one in documents], "data binary").coalesce(1)
    people = from_glue("data", registry="shop", schema_name=name, mode="PERMISSIVE", options=options)
    found = frame.select(people.alias("person"))
    assert [row.person and row.person.firstName for row in found.collect()] == ["a", None, None, "x", "b"]
    strict = from_glue("data", registry="shop", schema_name=name, options=options)
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        frame.select(strict).collect()
