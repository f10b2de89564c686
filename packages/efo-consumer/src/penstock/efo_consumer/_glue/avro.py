"""Values of records in Avro and in JSON, and values of any format as JSON can hold them."""

import base64
import io
import json
from collections.abc import Callable
from typing import Any, Final

from penstock.efo_consumer.errors import SchemaDecodeError

# What serializers put before a record: a mark, and what names the schema. Of Avro's single objects, and of Confluent's.
_HEADERS: Final = ((b"\xc3\x01", 10), (b"\0", 5))
_MOST_LEVELS: Final = 1000
_TOO_DEEP: Final = "it nests too deeply"


class AvroDecoder:
    """Decodes records by one schema, which are bare or follow a header: Avro's single-object header, or Confluent's.

    A header is skipped: which schema it names is not looked up. A bare record may begin as a header does; it is taken
    for bare where no record follows.

    Args:
        definition: the schema, as JSON.
        name: of the schema, for errors, such as its file's.

    Raises:
        ImportError: the extra `avro` of this package is not installed.
        SchemaDecodeError: the definition is not a schema of Avro.
    """

    def __init__(self, definition: str, name: str = "the schema") -> None:
        self._read = avro_reader(definition, name)

    def decode(self, record: bytes) -> Any:
        """The value of a record's data, as fastavro makes it.

        Raises:
            SchemaDecodeError: the record does not fit the schema, or bytes are left behind it.
        """
        for mark, header_bytes in _HEADERS:
            if record.startswith(mark):
                try:
                    return self._read(record[header_bytes:])
                except SchemaDecodeError:
                    break
        return self._read(record)


def avro_reader(definition: str, name: str, reads: str | None = None) -> Callable[[bytes], Any]:
    """Return a function that decodes a bare record.

    The schema bounds how deep a record nests, unless a type contains itself. Such records may nest about 150 levels
    deep, and take longer to decode.

    Args:
        definition: the schema that the record was written with, as JSON.
        name: the name of the schema, for errors.
        reads: the schema that the value has, by Avro's rules of resolution. None for `definition`.

    Raises:
        ImportError: fastavro is not installed.
        SchemaDecodeError: a definition is not a schema of Avro. The function raises it if a record does not fit, or
            nests too deeply.
    """
    import fastavro

    try:
        schemas = [None if one is None else fastavro.parse_schema(json.loads(one)) for one in (definition, reads)]
        is_recursive = any(_contains_itself(one) for one in schemas)
    except (ValueError, RecursionError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SchemaDecodeError(f"{name} is not a schema of Avro that can be read ({error})") from error
    read_value: Callable[..., Any] = fastavro.schemaless_reader
    if is_recursive:
        # The compiled reader calls itself for each level without a limit: 20 kB of nested records end the process.
        from fastavro._read_py import schemaless_reader as read_value

    def read(payload: bytes) -> Any:
        body = io.BytesIO(payload)
        try:
            value = read_value(body, *schemas)
        except Exception as error:  # of many kinds, by what is wrong
            raise SchemaDecodeError(f"it is not what {name} says ({type(error).__name__}: {error})") from error
        if left := len(payload) - body.tell():
            raise SchemaDecodeError(f"{left} bytes follow what {name} describes")
        return value

    return read


def _contains_itself(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Whether a type of a parsed schema contains itself. A name refers to a type that was described before."""
    if isinstance(schema, list):
        return any(_contains_itself(one, within) for one in schema)
    if not isinstance(schema, dict):
        return schema in within
    if schema["type"] in ("record", "error"):
        within |= {schema["name"]}
    parts = [
        schema["type"],
        schema.get("items"),
        schema.get("values"),
        *(one["type"] for one in schema.get("fields", ())),
    ]
    return any(_contains_itself(one, within) for one in parts)


def json_value(document: bytes | str) -> Any:
    """Return the value of a JSON document.

    Raises:
        SchemaDecodeError: it is not JSON, or nests more than 1,000 levels deep, which Spark does not read either.
            Where Python's recursion limit is lower, so is this limit.
    """
    try:
        value = json.loads(document)
    except ValueError as error:
        raise SchemaDecodeError(f"it is not JSON ({error})") from error
    except RecursionError as error:
        raise SchemaDecodeError(_TOO_DEEP) from error
    # Most documents have too few brackets to nest that deeply.
    data = document if isinstance(document, bytes) else document.encode(errors="replace")
    if data.count(b"[") + data.count(b"{") > _MOST_LEVELS and _is_deep(value):
        raise SchemaDecodeError(_TOO_DEEP)
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_LEVELS):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for some in parts for part in some if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def plain_values(value: Any) -> Any:
    """The value as JSON can hold it: bytes as base 64; times, decimals, NaN and infinities as text.

    Raises:
        SchemaDecodeError: the value nests too deeply.
    """
    try:
        return json.loads(json.dumps(value, default=_plain), parse_constant=str)
    except RecursionError as error:
        raise SchemaDecodeError(_TOO_DEEP) from error


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
