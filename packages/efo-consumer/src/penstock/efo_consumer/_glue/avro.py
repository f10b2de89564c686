"""Values of Avro's records by a schema that is at hand, and values of any format as JSON can hold them."""

import base64
import io
import json
from collections.abc import Callable
from typing import Any, Final

from penstock.efo_consumer.errors import SchemaDecodeError

# What serializers put before a record: a mark, and what names the schema. Of Avro's single objects, and of Confluent's.
_HEADERS: Final = ((b"\xc3\x01", 10), (b"\0", 5))


class AvroDecoder:
    """Decodes records by one schema, which are bare or follow a header: that of Avro's single objects, or Confluent's.

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


def avro_reader(definition: str, name: str) -> Callable[[bytes], Any]:
    """What reads a bare record.

    Raises:
        ImportError: fastavro is not installed.
        SchemaDecodeError: the definition is not a schema of Avro. The reader raises it where a record does not fit.
    """
    import fastavro

    try:
        schema = fastavro.parse_schema(json.loads(definition))
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise SchemaDecodeError(f"{name} is not a schema of Avro that can be read ({error})") from error

    def read(payload: bytes) -> Any:
        body = io.BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(body, schema, None)
        except Exception as error:  # of many kinds, by what is wrong
            raise SchemaDecodeError(f"it is not what {name} says ({error or type(error).__name__})") from error
        if body.read(1):
            raise SchemaDecodeError(f"bytes are left behind what {name} says")
        return value

    return read


def plain_values(value: Any) -> Any:
    """The value as JSON can hold it: bytes as base 64; times, decimals, NaN and infinities as text."""
    return json.loads(json.dumps(value, default=_plain), parse_constant=str)


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
