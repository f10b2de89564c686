"""Buffered entries as bytes, to be kept across versions and languages."""

import msgspec

from penstock.async_sink._kinesis._entry import KinesisRequestEntry, size_in_bytes
from penstock.async_sink._state import BufferedRequestState
from penstock.async_sink.errors import StateFormatError

_MAGIC = b"PSKS"
_VERSION = 1


class _Body(msgspec.Struct, array_like=True):
    entries: list[tuple[bytes, str, str | None]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def state_to_bytes(state: BufferedRequestState[KinesisRequestEntry]) -> bytes:
    """Four bytes of magic, one of version, then MessagePack: [[[data, partition key, explicit hash key or nil], …]].

    Strings are UTF-8, whatever the machine's locale is.
    """
    body = _Body([(entry.data, entry.partition_key, entry.explicit_hash_key) for entry, _ in state.entries])
    return _MAGIC + bytes([_VERSION]) + _encoder.encode(body)


def state_from_bytes(raw: bytes) -> BufferedRequestState[KinesisRequestEntry]:
    """The state that `state_to_bytes` wrote.

    Raises:
        StateFormatError: the bytes are no such state, damaged, or of an unknown version.
    """
    if raw[:4] != _MAGIC or len(raw) < 5:
        raise StateFormatError("these bytes are no state of a Kinesis sink")
    if raw[4] != _VERSION:
        raise StateFormatError(f"the state has version {raw[4]}, this release reads version {_VERSION}")
    try:
        body = _decoder.decode(raw[5:])
    except msgspec.MsgspecError as error:
        raise StateFormatError(f"the state is damaged: {error}") from error
    entries = [KinesisRequestEntry(data, key, hash_key) for data, key, hash_key in body.entries]
    return BufferedRequestState(tuple((entry, size_in_bytes(entry)) for entry in entries))
