"""Where a record's partition key comes from."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa

from penstock.async_sink._core.entries import WriteContext
from penstock.async_sink._destinations.columns import read_column
from penstock.async_sink._destinations.kinesis.entry import MAX_PARTITION_KEY_LENGTH, KinesisRequestEntry
from penstock.async_sink.errors import SinkOptionError


class PartitionKey(ABC):
    """Gives a record its partition key; elements and rows get the same one."""

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
        """The value of a column; of an element, its item of that name. Numbers become their digits, and other values
        what Arrow writes of them; a null is refused, as it is not a key."""
        return _FromColumn(name)

    @staticmethod
    def from_function(function: Callable[[Any], str]) -> "PartitionKey":
        """What a function makes of the element; of a row, given as a dictionary. It is to give a string."""
        return _FromFunction(function)

    @staticmethod
    def fixed(key: str) -> "PartitionKey":
        """The same for all: everything goes to one shard, in order where order is kept.

        Raises:
            SinkOptionError: the key must be 1 to 256 characters.
        """
        return _Fixed(key)

    @staticmethod
    def random() -> "PartitionKey":
        """A new one for each record: an even spread over the shards."""
        return _Random()


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
            # As `of_rows` does it: a row and the same row as an element go to one shard.
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
        keys = [self.function(row) for row in batch.to_pylist()]
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
class KinesisElementConverter:
    """Makes records of elements: bytes by one function, keys by others."""

    serialize: Callable[[Any], bytes]
    """The record's bytes."""
    partition_key: PartitionKey
    """Its partition key."""
    explicit_hash_key: Callable[[Any], str | None] | None = None
    """Its explicit hash key, if it has one: decimal digits, less than 2^128."""

    def apply(self, element: Any, context: WriteContext) -> KinesisRequestEntry:
        """The record of an element."""
        return KinesisRequestEntry(
            self.serialize(element),
            self.partition_key.of_element(element),
            None if self.explicit_hash_key is None else self.explicit_hash_key(element),
        )
