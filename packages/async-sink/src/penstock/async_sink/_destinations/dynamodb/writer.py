"""The writer for a table."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from penstock.async_sink._core.entries import EntryFailure, EntryListener
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink._destinations.aws import AwsSinkWriter
from penstock.async_sink._destinations.dynamodb.attributes import key_of
from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry, size_in_bytes
from penstock.async_sink._destinations.dynamodb.rows import plain_rows
from penstock.async_sink._destinations.dynamodb.wire import encode_request, rounds_of, unprocessed_places
from penstock.async_sink._destinations.lookup import LOOKUP_ERRORS, look_up, lookup_failed
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError
from penstock.aws import (
    AwsOptions,
    AwsSession,
    ErrorKind,
    JsonClient,
    classify,
    error_code,
)

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

_UNPROCESSED = "UnprocessedItem"
# Two regions of a global table wrote the same item at once; the service asks for another try.
_CONFLICT_CODE = "ReplicatedWriteConflictException"


class DynamoDbEntryWriter(AsyncSinkWriter[I, DynamoDbRequestEntry]):
    """What writers of DynamoDB entries share, wherever the entries go."""

    _key_names: tuple[str, ...] = ()

    def get_size_in_bytes(self, entry: DynamoDbRequestEntry) -> int:
        """The item's names and values, as the service counts them.

        Raises:
            InvalidRecordError: the item lacks an attribute of the table's key, or is none.
        """
        if not isinstance(entry, DynamoDbRequestEntry):
            what = f"{type(entry).__name__} is no DynamoDbRequestEntry: give the sink a converter that makes one"
            raise InvalidRecordError(self.records_written, what)
        for name in self._key_names:
            if name not in entry.item:
                raise InvalidRecordError(self.records_written, f"its item has no {name!r}, which the table's key has")
        return size_in_bytes(entry)

    def get_order_key(self, entry: DynamoDbRequestEntry) -> Hashable:
        """The item's key: with an order per key, writes of an item happen in the order of writing."""
        return key_of(entry.item, self._key_names)

    async def write_many(
        self, elements: Iterable[I] | pa.RecordBatch, *, listener: EntryListener | None = None
    ) -> None:
        """Write elements, or put the rows of a record batch: an attribute per column, none where it is null.

        A record batch is checked as a whole before any of it is written.

        Raises:
            RecordError: a row has a value that DynamoDB does not have, lacks its key, or is larger than the limit.
            SinkError: the writer has failed.
        """
        if not isinstance(elements, pa.RecordBatch):
            await super().write_many(elements, listener=listener)
            return
        entries, sizes = [], []
        limit = self.config.max_record_size_in_bytes
        for number, row in enumerate(plain_rows(elements), start=self.records_written):
            try:
                entry = DynamoDbRequestEntry.put({name: value for name, value in row.items() if value is not None})
                size = self.get_size_in_bytes(entry)
            except InvalidRecordError as error:
                raise InvalidRecordError(number, error.reason) from error
            except ValueError as error:
                raise InvalidRecordError(number, str(error)) from error
            if size > limit:
                raise RecordTooLargeError(number, size, limit)
            entries.append(entry)
            sizes.append(size)
        await self._write_entries(entries, sizes, listener=listener, first_index=0)


class DynamoDbWriter(AwsSinkWriter[I, DynamoDbRequestEntry], DynamoDbEntryWriter[I]):
    """Sends entries by BatchWriteItem. Made by `DynamoDbSink.create_writer`."""

    SERVICE = "dynamodb"
    TARGET_PREFIX = "DynamoDB_20120810"
    JSON_10 = True

    def __init__(
        self, aws: AwsOptions | AwsSession, *arguments: Any, key_names: Sequence[str] = (), **keywords: Any
    ) -> None:
        """`key_names` are the attributes of the table's key; DescribeTable tells them if they are not given."""
        self._key_names = tuple(key_names)
        super().__init__(aws, *arguments, **keywords)

    async def open_destination(self) -> None:
        """Open the connection pool, and learn the table's key if it was not given.

        Raises:
            DestinationError: the table cannot be described.
        """
        await super().open_destination()
        if self._key_names:
            return
        assert self._client is not None
        try:
            table = (await look_up(self._client, "DescribeTable", {"TableName": self.destination}))["Table"]
        except LOOKUP_ERRORS as error:
            await self.close_destination()
            raise lookup_failed(self.destination, error, "not called when key_names are given") from error
        except BaseException:
            await self.close_destination()
            raise
        self._key_names = tuple(element["AttributeName"] for element in table["KeySchema"])

    def classify(self, error: BaseException) -> ErrorKind:
        """As elsewhere; a conflict of replicated writes can be tried again."""
        return ErrorKind.RETRYABLE if error_code(error) == _CONFLICT_CODE else classify(error)

    async def send(self, client: JsonClient, entries: Sequence[DynamoDbRequestEntry]) -> list[EntryFailure]:
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
                kind = self.classify(error)
                if number == 0 or kind is ErrorKind.FATAL:
                    raise
                # The rounds before were written, and are not to be written again.
                left = list(range(len(sent)))
                code, message = error_code(error) or type(error).__name__, str(error)
                throttled = kind is ErrorKind.THROTTLED
            for index in left:
                failures[sent[index]] = EntryFailure(sent[index], code, message, throttled)
                held_back.add(keys[sent[index]])
        return [failures[place] for place in sorted(failures)]
