"""Protobuf schemas of the registry: text of `.proto` files, compiled by protoc as grpcio-tools has it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from penstock.efo_consumer import ProtoFile as CompiledProto
from penstock.efo_consumer import message_index
from penstock.efo_consumer.errors import SchemaDecodeError
from penstock.spark_plugin.errors import MissingLibraryError, SchemaError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_OF_MESSAGES: dict[str, type[DataType]] = {_TIMESTAMP: TimestampType, _DURATION: DayTimeIntervalType}
_TEXTS = (StringType, CharType, VarcharType)
_WHOLE = (ByteType, ShortType, IntegerType)
# By the names of FieldDescriptorProto's types: what a field is in Spark, and which columns can be written into it.
_TYPES: dict[str, tuple[DataType, tuple[type[DataType], ...]]] = {
    "double": (DoubleType(), (FloatType, DoubleType)),
    "float": (FloatType(), (FloatType,)),
    "int32": (IntegerType(), _WHOLE),
    "sint32": (IntegerType(), _WHOLE),
    "sfixed32": (IntegerType(), _WHOLE),
    "uint32": (LongType(), (*_WHOLE, LongType)),
    "fixed32": (LongType(), (*_WHOLE, LongType)),
    "int64": (LongType(), (*_WHOLE, LongType)),
    "sint64": (LongType(), (*_WHOLE, LongType)),
    "sfixed64": (LongType(), (*_WHOLE, LongType)),
    "uint64": (DecimalType(20, 0), (*_WHOLE, LongType, DecimalType)),
    "fixed64": (DecimalType(20, 0), (*_WHOLE, LongType, DecimalType)),
    "bool": (BooleanType(), (BooleanType,)),
    "string": (StringType(), _TEXTS),
    "bytes": (BinaryType(), (BinaryType,)),
    "enum": (StringType(), _TEXTS),
}


class ProtoFile(CompiledProto):
    """A compiled `.proto` file, whose messages options name."""

    def message(self, name: str | None, schema_name: str) -> Any:
        """The descriptor of a message by its name, with or without the package; the only one by default.

        Raises:
            SchemaError: the message does not exist, or the file has several and no name is given.
        """
        names = [name] if name else self.top_level
        found = (
            [one for one in self.messages for wanted in names if f".{one.full_name}".endswith(f".{wanted}")]
            if names
            else []
        )
        exact = [one for one in found if one.full_name == name] or found
        if len(exact) == 1:
            return exact[0]
        have = ", ".join(str(one.full_name) for one in self.messages if not one.GetOptions().map_entry)
        problem = f"has no message {name!r}, but {have}" if name and not found else f"has several messages: {have}"
        raise SchemaError("data", f"schema {schema_name!r} {problem}; say which by 'schemaMessage' (or `message`)")


@lru_cache(maxsize=64)
def proto_file(definition: str) -> ProtoFile:
    """The compiled file; a process remembers the last 64.

    Raises:
        MissingLibraryError: protobuf or grpcio-tools is not installed.
        SchemaError: protoc refuses it.
    """
    try:
        return ProtoFile(definition)
    except ImportError as error:
        raise MissingLibraryError.of_extra("protobuf", "Protobuf", "protobuf and grpcio-tools") from error
    except SchemaDecodeError as error:
        raise SchemaError("data", error.reason) from error


def protobuf_spark_type(definition: str, message: str | None, schema_name: str) -> StructType:
    """What Spark makes of a message, by the rules of its own `from_protobuf`; unsigned numbers are wide enough.

    Raises:
        SchemaError: the message does not exist, or contains itself.
    """
    file = proto_file(definition)
    return _struct(file, file.message(message, schema_name), "", ())


def _struct(file: ProtoFile, message: Any, path: str, within: tuple[str, ...]) -> StructType:
    if message.full_name in within:
        raise SchemaError(
            path, f"holds {message.full_name} within itself, which is not a type of Spark; name the columns by `schema`"
        )
    inner = (*within, str(message.full_name))
    return StructType(
        [
            StructField(one.name, _field_type(file, one, f"{path}.{one.name}" if path else one.name, inner))
            for one in message.fields
        ]
    )


def _field_type(file: ProtoFile, field: Any, path: str, within: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return MapType(_single(file, key, path, within), _single(file, value, path, within), False)
    single = _single(file, field, path, within)
    return ArrayType(single, False) if field.is_repeated else single


def _single(file: ProtoFile, field: Any, path: str, within: tuple[str, ...]) -> DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return TimestampType()
        return DayTimeIntervalType() if name == _DURATION else _struct(file, field.message_type, path, within)
    return _TYPES[file.type_name(field)][0]


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def protobuf_decoder(definition: str, message: str | None, kind: DataType, schema_name: str) -> Callable[[bytes], Any]:
    """The decoder of a payload: it checks the message, and reads the fields that `kind` has."""
    file = proto_file(definition)
    if not isinstance(kind, StructType):
        raise SchemaError("data", f"is {kind.simpleString()}; a Protobuf message is a struct")
    wanted = None if message is None else str(file.message(message, schema_name).full_name)
    readers: dict[str, Callable[[Any], Any]] = {}

    def decode(payload: bytes) -> Any:
        found = file.parsed(payload)
        name = str(found.DESCRIPTOR.full_name)
        if wanted is not None and name != wanted:
            raise SchemaDecodeError(f"it is a message {name}, and not {wanted}")
        if name not in readers:
            readers[name] = _reader(file, found.DESCRIPTOR, kind)
        try:
            return readers[name](found)
        except OverflowError as error:
            raise SchemaDecodeError(f"it is a message {name} with a time that is out of range ({error})") from error

    return decode


def _reader(file: ProtoFile, message: Any, kind: StructType) -> Callable[[Any], Any]:
    fields = [
        (one.name, _field_reader(file, message.fields_by_name[one.name], one.dataType))
        for one in kind.fields
        if one.name in message.fields_by_name
    ]
    return lambda found: {name: read(found) for name, read in fields}


def _field_reader(file: ProtoFile, field: Any, kind: DataType) -> Callable[[Any], Any]:
    name = field.name
    if _is_map(field):
        value = _value_reader(
            file, field.message_type.fields_by_name["value"], kind.valueType if isinstance(kind, MapType) else kind
        )
        # Through the items: to look a missing message up in such a map would make one.
        return lambda found: {key: value(one) for key, one in getattr(found, name).items()}
    if field.is_repeated:
        each = _value_reader(file, field, kind.elementType if isinstance(kind, ArrayType) else kind)
        return lambda found: [each(one) for one in getattr(found, name)]
    read = _value_reader(file, field, kind)
    if field.has_presence:
        return lambda found: read(getattr(found, name)) if found.HasField(name) else None
    return lambda found: read(getattr(found, name))


def _value_reader(file: ProtoFile, field: Any, kind: DataType) -> Callable[[Any], Any]:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP and not isinstance(kind, StructType):
            return lambda found: _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
        if name == _DURATION and not isinstance(kind, StructType):
            return lambda found: timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
        if not isinstance(kind, StructType):
            raise SchemaError(str(field.name), f"is a message {name}, and not {kind.simpleString()}")
        return _reader(file, field.message_type, kind)
    if field.enum_type is not None:
        names = {value.number: str(value.name) for value in field.enum_type.values}
        return lambda found: names.get(found, str(found))
    if isinstance(kind, DecimalType):
        return Decimal
    return _itself


def _itself(value: Any) -> Any:
    return value


def check_protobuf_fields(
    fields: Sequence[StructField], definition: str, message: str | None, schema_name: str
) -> None:
    """Check that rows of these columns can be written as a message, by their types.

    Raises:
        SchemaError: a column has no field; the error names the first one.
    """
    file = proto_file(definition)
    _check(file, fields, file.message(message, schema_name), "", schema_name)


def _check(file: ProtoFile, fields: Sequence[StructField], message: Any, path: str, schema_name: str) -> None:
    for one in fields:
        full = f"{path}.{one.name}" if path else one.name
        field = message.fields_by_name.get(one.name)
        if field is None:
            have = ", ".join(message.fields_by_name)
            raise SchemaError(
                full,
                f"message {message.full_name} of schema {schema_name!r} has no such field, and {have}: leave the "
                "column out ('valueColumns'), rename it, or register a version of the schema that has it",
            )
        kind: DataType = one.dataType
        if _is_map(field):
            if not isinstance(kind, MapType):
                raise _other(full, kind, "map", schema_name)
            entry = field.message_type.fields_by_name
            _check_single(file, kind.keyType, entry["key"], f"{full}.key", schema_name)
            _check_single(file, kind.valueType, entry["value"], f"{full}.value", schema_name)
        elif field.is_repeated:
            if not isinstance(kind, ArrayType):
                raise _other(full, kind, "repeated", schema_name)
            _check_single(file, kind.elementType, field, f"{full}.element", schema_name)
        else:
            _check_single(file, kind, field, full, schema_name)
    missing = [one.name for one in message.fields if one.is_required and one.name not in {this.name for this in fields}]
    if missing:
        full = f"{path}.{missing[0]}" if path else missing[0]
        raise SchemaError(full, f"schema {schema_name!r} requires it, and the rows lack the column: add it")


def _check_single(file: ProtoFile, kind: DataType, field: Any, path: str, schema_name: str) -> None:
    message = field.message_type
    if message is None:
        wanted = file.type_name(field)
        if not isinstance(kind, _TYPES[wanted][1]) or (isinstance(kind, DecimalType) and kind.scale):
            raise _other(path, kind, wanted, schema_name)
    elif isinstance(kind, StructType):
        _check(file, kind.fields, message, path, schema_name)
    elif not isinstance(kind, _OF_MESSAGES.get(str(message.full_name), ())):
        raise _other(path, kind, str(message.full_name), schema_name)


def _other(path: str, kind: DataType, wanted: str, schema_name: str) -> SchemaError:
    return SchemaError(path, f"is {kind.simpleString()}, and {wanted} in schema {schema_name!r}: cast it")


def protobuf_encoder(definition: str, message: str | None) -> Callable[[Mapping[str, Any]], bytes]:
    """What makes a payload of a row: the number of its message, and the message. Nulls are fields that are not set.

    The encoder raises ValueError, TypeError and their like for rows that the message does not take.
    """
    file = proto_file(definition)
    descriptor = file.message(message, "")
    prefix = message_index(file.index_of(descriptor))

    def encode(row: Mapping[str, Any]) -> bytes:
        made = file.new(descriptor)
        _fill(made, row)
        return prefix + bytes(made.SerializeToString())

    return encode


def _fill(made: Any, row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        if value is None:
            continue
        field = made.DESCRIPTOR.fields_by_name[name]
        if _is_map(field):
            entry, target = field.message_type.fields_by_name["value"], getattr(made, name)
            for key, one in value.items():
                if entry.message_type is None:
                    target[key] = _plain(entry, one)
                else:
                    _fill_message(target[key], one)
        elif field.is_repeated:
            target = getattr(made, name)
            for one in value:
                if field.message_type is None:
                    target.append(_plain(field, one))
                else:
                    _fill_message(target.add(), one)
        elif field.message_type is None:
            setattr(made, name, _plain(field, value))
        else:
            target = getattr(made, name)
            target.SetInParent()
            _fill_message(target, value)


def _fill_message(made: Any, value: Any) -> None:
    if value is None:
        raise ValueError("an element of an array or a map is null, which Protobuf does not have")
    if isinstance(value, (datetime, timedelta)):
        micros = (value - _EPOCH if isinstance(value, datetime) else value) // timedelta(microseconds=1)
        if isinstance(value, datetime) or micros >= 0:
            made.seconds, made.nanos = micros // 1_000_000, micros % 1_000_000 * 1000
        else:  # both parts of a duration have its sign
            made.seconds, made.nanos = -(-micros // 1_000_000), -(-micros % 1_000_000 * 1000)
    else:
        _fill(made, value)


def _plain(field: Any, value: Any) -> Any:
    if value is None:
        raise ValueError("an element of an array or a map is null, which Protobuf does not have")
    if field.enum_type is not None:
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            raise ValueError(
                f"{value!r} is not a {field.enum_type.full_name}: {', '.join(field.enum_type.values_by_name)}"
            )
        return found.number
    return int(value) if isinstance(value, Decimal) else value
