"""A record on its way to a stream, and its bytes in a saved state."""

import msgspec

from penstock.async_sink.errors import InvalidRecordError, StateFormatError

MAX_PARTITION_KEY_LENGTH = 256
"""Characters; the service counts Unicode code points."""
MAX_HASH_KEY = (1 << 128) - 1


class KinesisRequestEntry(
    msgspec.Struct,
    frozen=True,
    # Holds nothing that could hold it: the collector need not look at each of many thousands.
    gc=False,
    omit_defaults=True,
    rename={"data": "Data", "partition_key": "PartitionKey", "explicit_hash_key": "ExplicitHashKey"},
):
    """A record of PutRecords; the field names on the wire are the API's."""

    data: bytes
    """The record's bytes."""
    partition_key: str
    """1 to 256 characters; its MD5 picks the shard."""
    explicit_hash_key: str | None = None
    """Decimal digits, less than 2^128: picks the shard instead of the partition key."""


def size_in_bytes(entry: KinesisRequestEntry) -> int:
    """Bytes as the service counts them: data and partition key in UTF-8."""
    key = entry.partition_key
    return len(entry.data) + (len(key) if key.isascii() else len(key.encode()))


def check_entry(entry: KinesisRequestEntry, record_number: int) -> None:
    """Check the types, and the key fields.

    Raises:
        InvalidRecordError: a field breaks a rule of PutRecords.
    """
    if not isinstance(entry, KinesisRequestEntry):
        raise InvalidRecordError(
            record_number, f"expected a KinesisRequestEntry, got {type(entry).__name__}: give the sink a converter"
        )
    # Text would go on the wire as if it were base64, and arrive as other bytes.
    if not isinstance(entry.data, bytes | bytearray):
        raise InvalidRecordError(record_number, f"its data is {type(entry.data).__name__}, not bytes: encode it")
    if not isinstance(entry.partition_key, str):
        raise InvalidRecordError(record_number, f"its partition key is {type(entry.partition_key).__name__}, not str")
    if not 0 < len(entry.partition_key) <= MAX_PARTITION_KEY_LENGTH:
        raise InvalidRecordError(
            record_number,
            f"its partition key must be 1 to {MAX_PARTITION_KEY_LENGTH} characters, not {len(entry.partition_key)}",
        )
    if entry.explicit_hash_key is not None:
        check_hash_key(entry.explicit_hash_key, record_number)


def check_hash_key(key: str, record_number: int) -> None:
    """Check an explicit hash key.

    Raises:
        InvalidRecordError: it must be a decimal number below 2^128.
    """
    # isdecimal alone would let other scripts' digits pass.
    if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 39 and int(key) <= MAX_HASH_KEY):
        raise InvalidRecordError(record_number, f"its explicit hash key {key!r} must be a decimal number below 2^128")


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
