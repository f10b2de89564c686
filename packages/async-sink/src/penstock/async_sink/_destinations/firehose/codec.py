"""Firehose entries as bytes: the data as it is."""

from penstock.async_sink._destinations.firehose.writer import FirehoseRequestEntry


class FirehoseEntryCodec:
    """An `EntryCodec`."""

    name = "firehose"
    version = 1

    def encode(self, entry: FirehoseRequestEntry) -> bytes:
        """The entry's data."""
        return bytes(entry.data)

    def decode(self, raw: bytes, version: int) -> FirehoseRequestEntry:
        """The entry with this data."""
        return FirehoseRequestEntry(raw)

    def get_size_in_bytes(self, entry: FirehoseRequestEntry) -> int:
        """Bytes of data."""
        return len(entry.data)
