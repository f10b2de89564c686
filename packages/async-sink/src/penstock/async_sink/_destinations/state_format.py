"""The state of a writer as bytes, independent of version and language.

Four bytes `PSST`, the version of the format, CRC-32 of what follows (little endian), and that in MessagePack:
`[name of the codec, version of the codec, [entry, …], state of the sink]`, an entry being the bytes that the codec
makes of it. Without a state of the sink the last item is left out, and the version of the format is 1.

The first format had entries of Kinesis only: `PSKS`, a byte with the version 1, and `[[entry, …]]` in MessagePack.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from penstock.async_sink._core.entries import BufferedRequestState, EntryCodec
from penstock.async_sink._destinations.dynamodb_items import DynamoDbEntries, DynamoDbRequestEntry
from penstock.async_sink._destinations.firehose import FirehoseEntries, FirehoseRequestEntry
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.rows import KinesisEntries
from penstock.async_sink._destinations.sqs import SqsEntries, SqsRequestEntry
from penstock.async_sink.errors import SinkError

R = TypeVar("R")

_MAGIC = b"PSST"
_VERSION = 2
_FIRST_MAGIC = b"PSKS"
_HEAD = struct.Struct("<4sBI")
_CODECS: Mapping[type, EntryCodec[Any]] = {
    KinesisRequestEntry: KinesisEntries(),
    FirehoseRequestEntry: FirehoseEntries(),
    DynamoDbRequestEntry: DynamoDbEntries(),
    SqsRequestEntry: SqsEntries(),
}


class _Body(msgspec.Struct, array_like=True):
    codec: str
    version: int
    entries: list[bytes]
    sink_state: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)
_first_decoder = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw]])


def _codec_of(state: BufferedRequestState[Any]) -> EntryCodec[Any]:
    if not state.entries:
        # An empty state is restored by any sink.
        return _CODECS[KinesisRequestEntry]
    kind = type(state.entries[0][0])
    try:
        return _CODECS[kind]
    except KeyError:
        raise SinkError.of("SINK_STATE_CODEC", reason=f"{kind.__name__} has none: give `codec`") from None


def state_to_bytes(state: BufferedRequestState[R], codec: EntryCodec[R] | None = None) -> bytes:
    """The state as bytes. Entries of your own destination need its codec.

    Raises:
        SinkError: SINK_STATE_CODEC: these entries have no codec, or their codec does not take one of them.
    """
    chosen: EntryCodec[Any] = codec if codec is not None else _codec_of(state)
    encoded = []
    for number, (entry, _) in enumerate(state.entries):
        try:
            encoded.append(chosen.encode(entry))
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
            raise SinkError.of(
                "SINK_STATE_CODEC", reason=f"the codec {chosen.name!r} does not take entry {number}: {error}"
            ) from error
    items = [chosen.name, chosen.version, encoded]
    if state.sink_state:
        # An older release would leave it out without a word, so it must not take these bytes for its own.
        items.append(state.sink_state)
    body = _encoder.encode(items)
    return _HEAD.pack(_MAGIC, _VERSION if state.sink_state else 1, zlib.crc32(body)) + body


def state_from_bytes(raw: bytes, codecs: Iterable[EntryCodec[Any]] = ()) -> BufferedRequestState[Any]:
    """The state that `state_to_bytes` wrote; `codecs` are the codecs of your own destinations.

    Raises:
        SinkError: SINK_STATE_DAMAGED, SINK_STATE_VERSION or SINK_STATE_CODEC: the bytes are not a state, are damaged,
            or their version or codec is not known.
    """
    is_first = raw[:4] == _FIRST_MAGIC
    if not is_first and raw[:4] != _MAGIC:
        raise SinkError.of("SINK_STATE_DAMAGED", reason="these bytes are not the state of a sink")
    newest = 1 if is_first else _VERSION
    if len(raw) > 4 and not 1 <= raw[4] <= newest:
        raise SinkError.of("SINK_STATE_VERSION", version=raw[4], codec="the format", known=newest)
    if not is_first and (len(raw) < _HEAD.size or zlib.crc32(raw[_HEAD.size :]) != _HEAD.unpack_from(raw)[2]):
        raise SinkError.of("SINK_STATE_DAMAGED", reason="its checksum is wrong, or its end is missing")
    try:
        if is_first:
            body = _Body("kinesis", 1, [bytes(entry) for entry in _first_decoder.decode(raw[5:])[0]])
        else:
            body = _decoder.decode(raw[_HEAD.size :])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SinkError.of("SINK_STATE_DAMAGED", reason=str(error)) from error
    known = {codec.name: codec for codec in (*_CODECS.values(), *codecs)}
    codec = known.get(body.codec)
    if codec is None:
        raise SinkError.of(
            "SINK_STATE_CODEC", reason=f"the state is one of {body.codec!r}: give `codecs`; known: {', '.join(known)}"
        )
    if not 1 <= body.version <= codec.version:
        raise SinkError.of("SINK_STATE_VERSION", version=body.version, codec=body.codec, known=codec.version)
    entries = []
    for number, encoded in enumerate(body.entries):
        try:
            entries.append(codec.decode(encoded, body.version))
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise SinkError.of("SINK_STATE_DAMAGED", reason=f"entry {number}: {error}") from error
    return BufferedRequestState(tuple((entry, codec.get_size_in_bytes(entry)) for entry in entries), body.sink_state)
