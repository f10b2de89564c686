"""A record on its way to a stream, and its bytes in a saved state."""

import msgspec

from penstock.async_sink.errors import RecordError, StateFormatError

MAX_PARTITION_KEY_LENGTH = 256
"""Characters; the service counts Unicode code points."""
MAX_HASH_KEY = str((1 << 128) - 1)
KEY_RULE = f"its partition key must be 1 to {MAX_PARTITION_KEY_LENGTH} characters"
HASH_KEY_RULE = "its explicit hash key must be a decimal number below 2^128"


class KinesisRequestEntry(
    msgspec.Struct,
    frozen=True,
    # Holds nothing that could hold it: the collector need not look at each of many thousands.
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
    """Decimal digits, less than 2^128: picks the shard instead of the partition key."""


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
    # Text would go on the wire as if it were base64, and arrive as other bytes.
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
    # isdecimal alone would let other scripts' digits pass.
    if hash_key is not None and not (
        isinstance(hash_key, str)
        and hash_key.isascii()
        and hash_key.isdecimal()
        and len(hash_key) <= len(MAX_HASH_KEY)
        and int(hash_key) <= int(MAX_HASH_KEY)
    ):
        raise RecordError(record_number, f"{HASH_KEY_RULE}, not {hash_key!r}")
    return len(entry.data) + key_bytes


LEGACY_MAGIC = b"PSKS"
"""How states began when there were only those of Kinesis sinks."""
_LEGACY_VERSION = 1

Plain = tuple[bytes, str, str | None]
"""The fields of an entry."""


class _LegacyBody(msgspec.Struct, array_like=True):
    entries: list[Plain]


_legacy_decoder = msgspec.msgpack.Decoder(_LegacyBody)


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
