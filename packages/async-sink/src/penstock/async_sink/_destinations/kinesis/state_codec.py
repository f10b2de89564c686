"""Kinesis entries as bytes: `[data, partition key, explicit hash key or nil]` in MessagePack."""

import msgspec

from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry, size_in_bytes
from penstock.async_sink.errors import StateFormatError

LEGACY_MAGIC = b"PSKS"
"""How states began when there were only those of Kinesis sinks."""
_LEGACY_VERSION = 1

_Plain = tuple[bytes, str, str | None]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Plain)


class _LegacyBody(msgspec.Struct, array_like=True):
    entries: list[_Plain]


_legacy_decoder = msgspec.msgpack.Decoder(_LegacyBody)


class KinesisEntryCodec:
    """An `EntryCodec`."""

    name = "kinesis"
    version = 1

    def encode(self, entry: KinesisRequestEntry) -> bytes:
        """The entry as bytes; strings are UTF-8, whatever the machine's locale is."""
        return _encoder.encode((entry.data, entry.partition_key, entry.explicit_hash_key))

    def decode(self, raw: bytes, version: int) -> KinesisRequestEntry:
        """The entry of these bytes."""
        return KinesisRequestEntry(*_decoder.decode(raw))

    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        """Data and partition key."""
        return size_in_bytes(entry)


def decode_legacy(raw: bytes) -> list[KinesisRequestEntry]:
    """The entries of a state that begins with `LEGACY_MAGIC`: then a byte of version, and `[[entry, …]]`.

    Raises:
        StateFormatError: it is damaged, or of an unknown version.
    """
    version = raw[4] if len(raw) > 4 else 0
    if version != _LEGACY_VERSION:
        raise StateFormatError(f"the state has version {version}, this release reads version {_LEGACY_VERSION}")
    try:
        body = _legacy_decoder.decode(raw[5:])
    except msgspec.MsgspecError as error:
        raise StateFormatError(f"the state is damaged: {error}") from error
    return [KinesisRequestEntry(*plain) for plain in body.entries]
