"""BatchWriteItem on the wire: which entries share a request, and which of them were left unprocessed."""

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry, Item, key_of

_encoder = msgspec.json.Encoder()


class _Put(msgspec.Struct):
    item: dict[str, Any] = msgspec.field(name="Item")


class _Delete(msgspec.Struct):
    key: dict[str, Any] = msgspec.field(name="Key")


class _Write(msgspec.Struct):
    put: _Put | None = msgspec.field(name="PutRequest", default=None)
    delete: _Delete | None = msgspec.field(name="DeleteRequest", default=None)


class _Answer(msgspec.Struct):
    unprocessed: dict[str, list[_Write]] = msgspec.field(name="UnprocessedItems", default_factory=dict)


_decoder = msgspec.json.Decoder(_Answer)


def rounds_of(keys: Sequence[Hashable]) -> list[list[int]]:
    """Places by the request that they leave in: a key stands in a request once, repeats wait for the next one.

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
    """Places of the entries that the answer gives back.

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
            # Nobody knows which it was. A write can be done twice, and must not be left out.
            return list(range(len(entries)))
    return sorted(set(found))


def _comparable(item: Item, key_names: Sequence[str]) -> Hashable:
    """The key as it is compared with an answer's, where binaries are base64."""
    return tuple(
        (kind, msgspec.to_builtins(value) if isinstance(value, bytes) else value)
        for kind, value in key_of(item, key_names)
    )
