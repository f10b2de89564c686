"""The sink for a DynamoDB table: BatchWriteItem, its requests and its unprocessed items."""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import (
    AwsDestination,
    AwsSink,
    ServiceApi,
    ServiceLimits,
    SinkOptions,
    look_up,
    named,
)
from penstock.async_sink._destinations.dynamodb_items import DynamoDbEntries, DynamoDbRequestEntry, Item, key_of
from penstock.async_sink.errors import DestinationError, SinkOptionError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Without a converter, elements are entries.
    I = TypeVar("I", default="DynamoDbRequestEntry")  # noqa: E741  # FLIP-171's name for what the caller writes
else:
    from typing import TypeVar

    I = TypeVar("I")  # noqa: E741

_UNPROCESSED = "UnprocessedItem"
# The key of a consumer registry's table (`DynamoDbLeaseStore`): a client that may write through a gateway would
# take over, or delete, the leases of all jobs.
_KEY_OF_LEASES = ("stream", "consumer_name")
# Two regions of a global table wrote the same item at once; the service asks for another try.
_CONFLICT_CODE = "ReplicatedWriteConflictException"
_encoder = msgspec.json.Encoder()


class _Put(msgspec.Struct):
    item: dict[str, Any] = msgspec.field(name="Item")


class _Delete(msgspec.Struct):
    key: dict[str, Any] = msgspec.field(name="Key")


class _Write(msgspec.Struct):
    put: _Put | None = msgspec.field(name="PutRequest", default=None)
    delete: _Delete | None = msgspec.field(name="DeleteRequest", default=None)


class _Answer(msgspec.Struct):
    unprocessed: dict[str, list[_Write]] = msgspec.field(name="UnprocessedItems")


_decoder = msgspec.json.Decoder(_Answer)


def rounds_of(keys: Sequence[Hashable]) -> list[list[int]]:
    """Places by the request that they leave in: a request contains a key once, and repeats wait for the next one.

    BatchWriteItem refuses a request that names an item twice. In their rounds, writes of a key keep their order.
    """
    rounds: list[list[int]] = []
    seen: dict[Hashable, int] = {}
    for place, key in enumerate(keys):
        number = seen.get(key, 0)
        seen[key] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds


def encode_request(table_name: str, entries: Sequence[DynamoDbRequestEntry]) -> bytes:
    """The request's body."""
    writes = [
        {"DeleteRequest": {"Key": entry.item}} if entry.delete else {"PutRequest": {"Item": entry.item}}
        for entry in entries
    ]
    return _encoder.encode({"RequestItems": {table_name: writes}})


def unprocessed_places(answer: bytes, entries: Sequence[DynamoDbRequestEntry], key_names: Sequence[str]) -> list[int]:
    """Places of the entries that the answer returns as unprocessed.

    Raises:
        msgspec.MsgspecError: the answer is not of BatchWriteItem.
    """
    unprocessed = [write for writes in _decoder.decode(answer).unprocessed.values() for write in writes]
    if not unprocessed:
        return []
    places = {_comparable(entry.item, key_names): place for place, entry in enumerate(entries)}
    found: list[int] = []
    for write in unprocessed:
        item = write.put.item if write.put is not None else write.delete.key if write.delete is not None else {}
        try:
            found.append(places[_comparable(item, key_names)])
        except KeyError:
            # The entry is unknown. A write can be repeated, but must not be lost.
            return list(range(len(entries)))
    return sorted(set(found))


def _comparable(item: Item, key_names: Sequence[str]) -> Hashable:
    """The key in the form of answers, where binaries are base64."""
    return tuple(
        (kind, msgspec.to_builtins(value) if isinstance(value, bytes) else value)
        for kind, value in key_of(item, key_names)
    )


class Table(AwsDestination[DynamoDbRequestEntry]):
    """A table, written to by BatchWriteItem."""

    api = ServiceApi(
        service="dynamodb",
        target_prefix="DynamoDB_20120810",
        json_version="1.0",
        kinds_of_codes={_CONFLICT_CODE: ErrorKind.RETRYABLE},
        lookup_hint="not called when key_names are given",
    )

    def __init__(self, aws: AwsOptions | AwsSession, name: str, key_names: tuple[str, ...]) -> None:
        self._entries = DynamoDbEntries(key_names)
        super().__init__(aws, name, self._entries)

    async def learn(self, client: JsonClient) -> None:
        """The table's key, if it was not given; a table of leases is refused."""
        if not self._entries.key_names:
            table = (await look_up(client, "DescribeTable", {"TableName": self.name}))["Table"]
            definitions = table.get("AttributeDefinitions", ())
            self._entries.types = {one["AttributeName"]: one["AttributeType"] for one in definitions}
            key_names = tuple(element["AttributeName"] for element in table["KeySchema"])
            if key_names == _KEY_OF_LEASES:
                reason = f"its key is {' and '.join(key_names)}: it is the table of a consumer registry"
                raise DestinationError(self.name, "TableOfLeases", f"{reason}; write to another table")
            self._entries.key_names = key_names

    async def send(
        self,
        client: JsonClient,
        entries: Sequence[DynamoDbRequestEntry],
        result_handler: ResultHandler[DynamoDbRequestEntry],
    ) -> None:
        """Send repeated writes of a key in separate calls, after the first write.

        A write whose predecessor was not processed is not sent, because sending the predecessor again would undo it.
        """
        key_names = self._entries.key_names
        keys = [key_of(entry.item, key_names) for entry in entries]
        failures: dict[int, EntryFailure] = {}

        def rounds() -> Iterator[list[int]]:
            for places in rounds_of(keys):
                held_back = {keys[place] for place in failures}
                for place in places:
                    if keys[place] in held_back:
                        message = "an earlier write of the same key has to be sent again"
                        failures[place] = EntryFailure(place, _UNPROCESSED, message, throttled=False)
                if sent := [place for place in places if keys[place] not in held_back]:
                    yield sent

        async def call(places: Sequence[int]) -> Iterator[EntryFailure]:
            request = [entries[place] for place in places]
            answer = await client.submit("BatchWriteItem", encode_request(self.name, request))
            left = unprocessed_places(answer, request, key_names)
            return (EntryFailure(places[index], _UNPROCESSED, "", throttled=True) for index in left)

        await self.send_in_parts(rounds(), call, failures, len(entries), result_handler)


_LIMITS = ServiceLimits(
    max_batch_size=25,
    max_batch_size_in_bytes=16_000_000,
    max_record_size_in_bytes=400 * 1024,
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
        SinkOptionError: the name is missing, or a limit is above the service's.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        table_name: str,
        *,
        key_names: Sequence[str] = (),
        **options: Unpack[SinkOptions[I, DynamoDbRequestEntry]],
    ) -> None:
        """Describe the table; `options` are `converter`, `config`, `strategy` and `terminal`.

        `key_names` are the attributes of the table's key, of which a request may hold each value once; each writer asks
        DescribeTable for them if they are not given.
        """
        if isinstance(key_names, str):
            raise SinkOptionError("key_names", f"must be a sequence of names, such as [{key_names!r}], not str")
        make = partial(Table, name=named("table_name", table_name), key_names=tuple(key_names))
        super().__init__(aws, make, _LIMITS, **options)
