"""The sink for a table, and its writer."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import ElementConverter, EntryFailure
from penstock.async_sink._core.runs import Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import AwsSink, AwsSinkWriter, ServiceLimits, look_up
from penstock.async_sink._destinations.columns import ColumnarWriter, sized_rows
from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry, key_of, size_in_bytes
from penstock.async_sink._destinations.dynamodb.wire import encode_request, rounds_of, unprocessed_places
from penstock.async_sink._rate.defaults import StrategyFactory, slow_start_strategy
from penstock.async_sink.errors import InvalidRecordError, SinkOptionError
from penstock.aws import (
    AwsOptions,
    AwsSession,
    ErrorKind,
    JsonClient,
    error_code,
)

_Read = Callable[[Any], Any]


def _unless_null(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


def _reader(kind: Any) -> _Read | None:
    """Makes mappings of the maps in a value of that type; None where there are none."""
    if pa.types.is_map(kind):
        item = _reader(kind.item_type) or (lambda value: value)
        return _unless_null(lambda pairs: {key: item(value) for key, value in pairs})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _reader(kind.value_type)
        return None if element is None else _unless_null(lambda values: list(map(element, values)))
    if pa.types.is_struct(kind):
        fields = _readers(kind)
        return _unless_null(lambda struct: _read(struct, fields)) if fields else None
    return None


def _readers(fields: Any) -> dict[str, _Read]:
    return {field.name: reader for field in fields if (reader := _reader(field.type)) is not None}


def _read(row: dict[str, Any], readers: dict[str, _Read]) -> dict[str, Any]:
    return row | {name: read(row[name]) for name, read in readers.items()}


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The values of each row, by their columns' names."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    readers = _readers(batch.schema)
    return [_read(row, readers) for row in rows] if readers else rows


I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

_UNPROCESSED = "UnprocessedItem"
# Two regions of a global table wrote the same item at once; the service asks for another try.
_CONFLICT_CODE = "ReplicatedWriteConflictException"


class DynamoDbEntryWriter(ColumnarWriter[I, DynamoDbRequestEntry]):
    """What writers of DynamoDB entries share, wherever the entries go."""

    _key_names: tuple[str, ...] = ()

    def get_size_in_bytes(self, entry: DynamoDbRequestEntry) -> int:
        """The item's names and values, as the service counts them.

        Raises:
            InvalidRecordError: the item lacks an attribute of the table's key, or is of another type.
        """
        if not isinstance(entry, DynamoDbRequestEntry):
            what = f"expected a DynamoDbRequestEntry, got {type(entry).__name__}: give the sink a converter"
            raise InvalidRecordError(self.records_written, what)
        for name in self._key_names:
            if name not in entry.item:
                raise InvalidRecordError(self.records_written, f"its item has no {name!r}, which the table's key has")
        return size_in_bytes(entry)

    def get_order_key(self, entry: DynamoDbRequestEntry) -> Hashable:
        """The item's key: with an order per key, writes of an item happen in the order of writing."""
        return key_of(entry.item, self._key_names)

    def rows_of(self, batch: pa.RecordBatch) -> Iterator[Rows[DynamoDbRequestEntry]]:
        """Puts with an attribute per column, none where it is null."""

        def sized() -> Iterator[tuple[DynamoDbRequestEntry, int]]:
            for number, row in enumerate(plain_rows(batch), start=self.records_written):
                try:
                    entry = DynamoDbRequestEntry.put({name: value for name, value in row.items() if value is not None})
                    yield entry, self.get_size_in_bytes(entry)
                except InvalidRecordError as error:
                    raise InvalidRecordError(number, error.reason) from error
                except ValueError as error:
                    raise InvalidRecordError(number, str(error)) from error

        yield sized_rows(sized(), self.records_written, self.config.max_record_size_in_bytes)


class DynamoDbWriter(AwsSinkWriter[I, DynamoDbRequestEntry], DynamoDbEntryWriter[I]):
    """Sends entries by BatchWriteItem. Made by `DynamoDbSink.create_writer`."""

    SERVICE = "dynamodb"
    TARGET_PREFIX = "DynamoDB_20120810"
    JSON_10 = True
    KINDS_OF_CODES: ClassVar = {_CONFLICT_CODE: ErrorKind.RETRYABLE}
    LOOKUP_HINT = "not called when key_names are given"

    def __init__(
        self, aws: AwsOptions | AwsSession, *arguments: Any, key_names: Sequence[str] = (), **keywords: Any
    ) -> None:
        """`key_names` are the attributes of the table's key; DescribeTable names them if they are not given."""
        self._key_names = tuple(key_names)
        super().__init__(aws, *arguments, **keywords)

    async def learn_destination(self, client: JsonClient) -> None:
        """The table's key, if it was not given."""
        if not self._key_names:
            table = (await look_up(client, "DescribeTable", {"TableName": self.destination}))["Table"]
            self._key_names = tuple(element["AttributeName"] for element in table["KeySchema"])

    async def send(
        self,
        client: JsonClient,
        entries: Sequence[DynamoDbRequestEntry],
        result_handler: ResultHandler[DynamoDbRequestEntry],
    ) -> tuple[Sequence[EntryFailure], Sequence[str | None]]:
        """Call BatchWriteItem, again for writes of a key that another entry has, which wait for the first.

        A write whose predecessor was left unprocessed is not sent: it would be undone when that one is sent again.
        """
        keys = [key_of(entry.item, self._key_names) for entry in entries]
        failures: dict[int, EntryFailure] = {}
        held_back = set[Any]()
        for number, places in enumerate(rounds_of(keys)):
            sent = [place for place in places if keys[place] not in held_back]
            for place in places:
                if keys[place] in held_back:
                    message = "an earlier write of the same key has to be sent again"
                    failures[place] = EntryFailure(place, _UNPROCESSED, message, throttled=False)
            if not sent:
                continue
            request = [entries[place] for place in sent]
            try:
                answer = await client.call_raw("BatchWriteItem", encode_request(self.destination, request))
                left = unprocessed_places(answer, request, self._key_names)
                code, message, throttled = _UNPROCESSED, "", True
            except Exception as error:
                kind = self.kind_of(error)
                if number == 0 or kind is ErrorKind.FATAL:
                    raise
                # The rounds before were written, and are not to be written again.
                left = list(range(len(sent)))
                code, message = error_code(error) or type(error).__name__, str(error)
                throttled = kind is ErrorKind.THROTTLED
            for index in left:
                failures[sent[index]] = EntryFailure(sent[index], code, message, throttled)
                held_back.add(keys[sent[index]])
        return [failures[place] for place in sorted(failures)], ()


_LIMITS = ServiceLimits(
    max_batch_size=25,
    max_batch_size_in_bytes=16_000_000,
    defaults={"max_record_size_in_bytes": 400_000},
)


def dynamodb_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` with DynamoDB's limits as its defaults: 25 items, 16 MB, 400 kB an item.

    Raises:
        SinkOptionError: an option is wrong.
    """
    return _LIMITS.config(options)


class DynamoDbSink(AwsSink[I, DynamoDbRequestEntry]):
    """Writes to a table by BatchWriteItem, at least once.

    Without a converter, elements are `DynamoDbRequestEntry`s. Can be pickled if the converter can.

    Raises:
        SinkOptionError: there is no name, or a limit is above the service's.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        table_name: str,
        *,
        key_names: Sequence[str] = (),
        converter: ElementConverter[I, DynamoDbRequestEntry] | Callable[[I], DynamoDbRequestEntry] | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: StrategyFactory = slow_start_strategy,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """Describe the table.

        `strategy` makes the rate limiting strategy of each writer, `terminal` its handler for records that cannot be
        written; without it they end the writer.

        `key_names` are the attributes of the table's key, of which a request may hold each value once; each writer asks
        DescribeTable for them if they are not given.
        """
        if not table_name:
            raise SinkOptionError("table_name", "must not be empty")
        super().__init__(
            aws,
            DynamoDbWriter,
            config=config or dynamodb_config(),
            strategy=strategy,
            converter=converter,
            terminal=terminal,
            key_names=tuple(key_names),
            destination=table_name,
        )
        _LIMITS.check(self._config)
