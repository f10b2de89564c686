"""Records of a stream, and sources of partition keys."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast
from uuid import uuid4

import msgspec
import pyarrow as pa

from penstock.async_sink._core.entries import WriteContext, row_dictionaries
from penstock.async_sink._destinations.columns import read_column
from penstock.async_sink.errors import RecordError, SinkOptionError

MAX_PARTITION_KEY_LENGTH = 256
"""Characters; the service counts Unicode code points."""
HASH_KEY_PATTERN = "0|[1-9][0-9]{0,38}"
MAX_HASH_KEY = str((1 << 128) - 1)
MAX_RECORD_BYTES = 10 << 20
"""Data and partition key of a record. A stream takes 1 MiB unless it is set to take more."""
KEY_RULE = f"its partition key must be 1 to {MAX_PARTITION_KEY_LENGTH} characters"
HASH_KEY_RULE = "its explicit hash key must be a decimal number below 2^128 without leading zeros"
_is_hash_key = re.compile(HASH_KEY_PATTERN).fullmatch


class KinesisRequestEntry(
    msgspec.Struct,
    frozen=True,
    # It cannot be part of a cycle, so the garbage collector need not track it.
    gc=False,
    omit_defaults=True,
    rename={"data": "Data", "partition_key": "PartitionKey", "explicit_hash_key": "ExplicitHashKey"},
):
    """A record of PutRecords; the field names on the wire are the API's."""

    data: bytes | bytearray
    """The record's bytes."""
    partition_key: str
    """1 to 256 characters; its MD5 picks the shard."""
    explicit_hash_key: str | None = None
    """A decimal number below 2^128 without leading zeros: picks the shard instead of the partition key."""


def size_in_bytes(entry: KinesisRequestEntry) -> int:
    """Bytes as the service counts them: data and partition key in UTF-8."""
    key = entry.partition_key
    return len(entry.data) + (len(key) if key.isascii() else len(key.encode()))


def measure(entry: KinesisRequestEntry, record_number: int) -> int:
    """Check the types and the key fields; the bytes as the service counts them.

    Raises:
        RecordError: a field breaks a rule of PutRecords.
    """
    if not isinstance(entry, KinesisRequestEntry):
        what = f"expected a KinesisRequestEntry, got {type(entry).__name__}: give the sink a converter"
        raise RecordError(record_number, what)
    key, hash_key = entry.partition_key, entry.explicit_hash_key
    # Text would be sent as if it were base64, and arrive as other bytes.
    if not isinstance(entry.data, bytes | bytearray):
        raise RecordError(record_number, f"its data is {type(entry.data).__name__}, not bytes: encode it")
    if not isinstance(key, str):
        raise RecordError(record_number, f"its partition key is {type(key).__name__}, not str")
    if not 0 < len(key) <= MAX_PARTITION_KEY_LENGTH:
        raise RecordError(record_number, f"{KEY_RULE}, not {len(key)}")
    key_bytes = len(key)
    if not key.isascii():
        try:
            key_bytes = len(key.encode())
        except UnicodeEncodeError as error:
            what = f"its partition key {key!r} cannot be encoded in UTF-8: it has half of a surrogate pair"
            raise RecordError(record_number, what) from error
    if hash_key is not None and not (
        isinstance(hash_key, str) and _is_hash_key(hash_key) and int(hash_key) <= int(MAX_HASH_KEY)
    ):
        raise RecordError(record_number, f"{HASH_KEY_RULE}, not {hash_key!r}")
    return len(entry.data) + key_bytes


Plain = tuple[bytes, str, str | None]
"""The fields of an entry."""


class PartitionKey(ABC):
    """The source of partition keys. Elements and rows get the same keys."""

    @abstractmethod
    def of_element(self, element: Any) -> str:
        """The key of an element.

        Raises:
            SinkOptionError: the element lacks the item that the key comes from, or the item makes no key.
        """

    @abstractmethod
    def of_rows(self, batch: pa.RecordBatch) -> Any:
        """The keys of a record batch: a column of strings.

        Raises:
            SinkOptionError: the batch lacks the column that they come from.
        """

    @staticmethod
    def from_column(name: str) -> "PartitionKey":
        """The value of a column, or of an element's item of that name. Numbers become decimal digits, and other values
        are cast to text by Arrow. A null is refused."""
        return _FromColumn(name)

    @staticmethod
    def from_function(function: Callable[[Any], str]) -> "PartitionKey":
        """The string that a function returns for an element, or for a row as a dictionary."""
        return _FromFunction(function)

    @staticmethod
    def fixed(key: str) -> "PartitionKey":
        """The same key for all records: all go to one shard.

        Raises:
            SinkOptionError: the key must be 1 to 256 characters.
        """
        return _Fixed(key)

    @staticmethod
    def random() -> "PartitionKey":
        """A new key for each record, for an even distribution over the shards."""
        return _Random()


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    I = TypeVar("I", default=Any)  # noqa: E741  # FLIP-171's name for what the caller writes
else:
    from typing import TypeVar

    I = TypeVar("I")  # noqa: E741


@dataclass(frozen=True)
class _FromColumn(PartitionKey):
    name: str

    def of_element(self, element: Any) -> str:
        try:
            value = element[self.name]
        except LookupError as error:
            raise SinkOptionError(
                self.name, f"no such item for the partition key in a {type(element).__name__}"
            ) from error
        if value is None or isinstance(value, str):
            # What is not a string is refused with the number of its record.
            return cast("str", value)
        if type(value) is int:
            return str(value)
        try:
            # Like `of_rows`: a row and the same row as an element go to one shard.
            return cast("str", pa.scalar(value).cast(pa.string()).as_py())
        except pa.ArrowException as error:
            raise SinkOptionError(self.name, f"a {type(value).__name__} makes no partition key") from error

    def of_rows(self, batch: pa.RecordBatch) -> Any:
        return read_column(batch, self.name, pa.string())


@dataclass(frozen=True)
class _FromFunction(PartitionKey):
    function: Callable[[Any], str]

    def of_element(self, element: Any) -> str:
        return self.function(element)

    def of_rows(self, batch: pa.RecordBatch) -> Any:
        keys = [self.function(row) for row in row_dictionaries(batch)]
        try:
            return pa.array(keys, pa.string())
        except pa.ArrowException as error:
            wrong = next((type(key).__name__ for key in keys if not isinstance(key, str | None)), "str")
            raise SinkOptionError("partition_key", f"its function gave a {wrong}: {error}") from error


@dataclass(frozen=True)
class _Fixed(PartitionKey):
    key: str

    def __post_init__(self) -> None:
        if not 0 < len(self.key) <= MAX_PARTITION_KEY_LENGTH:
            raise SinkOptionError("partition_key", f"must be 1 to 256 characters, not {len(self.key)}")

    def of_element(self, element: Any) -> str:
        return self.key

    def of_rows(self, batch: pa.RecordBatch) -> Any:
        return pa.repeat(pa.scalar(self.key, pa.string()), batch.num_rows)


@dataclass(frozen=True)
class _Random(PartitionKey):
    def of_element(self, element: Any) -> str:
        return uuid4().hex

    def of_rows(self, batch: pa.RecordBatch) -> Any:
        return pa.array([uuid4().hex for _ in range(batch.num_rows)], pa.string())


@dataclass(frozen=True)
class KinesisElementConverter(Generic[I]):
    """Converts elements to records: one function returns the bytes, others the keys."""

    serialize: Callable[[I], bytes]
    """The record's bytes."""
    partition_key: PartitionKey
    """Its partition key."""
    explicit_hash_key: Callable[[I], str | None] | None = None
    """Its explicit hash key, if it has one: a decimal number below 2^128 without leading zeros."""

    def apply(self, element: I, context: WriteContext) -> KinesisRequestEntry:
        """The record of an element."""
        return KinesisRequestEntry(
            self.serialize(element),
            self.partition_key.of_element(element),
            None if self.explicit_hash_key is None else self.explicit_hash_key(element),
        )
