"""A record, in the form in which it is sent and kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pybase64


def encode_record(
    *, arrival_ms: int, sequence_number: str, partition_key: str, data: bytes, encrypted: bool = False
) -> bytes:
    """The JSON object in which a record is sent: built once, when the record is put, for all of its readers."""
    return b'{"SequenceNumber":"%b","ApproximateArrivalTimestamp":%d.%03d,"Data":"%b","PartitionKey":%b%b}' % (
        sequence_number.encode(),
        arrival_ms // 1000,
        arrival_ms % 1000,
        pybase64.b64encode(data),
        msgspec.json.encode(partition_key),
        b',"EncryptionType":"KMS"' if encrypted else b"",
    )


class Record:
    """One record; what its JSON object holds is taken out of it again only where a test looks inside."""

    __slots__ = ("arrival_ms", "counter", "encoded", "size_bytes")

    def __init__(self, *, counter: int, arrival_ms: int, size_bytes: int, encoded: bytes) -> None:
        self.counter = counter
        self.arrival_ms = arrival_ms
        self.size_bytes = size_bytes
        """Data and partition key, as the limits count them."""
        self.encoded = encoded

    @property
    def sequence_number(self) -> str:
        """The record's sequence number."""
        return str(self._decoded()["SequenceNumber"])

    @property
    def partition_key(self) -> str:
        """The record's partition key."""
        return str(self._decoded()["PartitionKey"])

    @property
    def data(self) -> bytes:
        """The record's data blob."""
        return pybase64.b64decode(self._decoded()["Data"])

    def _decoded(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.encoded)
        return decoded
