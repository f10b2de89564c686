"""A record as a shard keeps it."""

from __future__ import annotations

from typing import Any

import msgspec
import pybase64


class Record:
    """One record, kept in the form in which it is sent.

    Every reader and every subscriber gets the same JSON object, so it is built once, when the record is put; what it
    holds is taken out of it again only where a test looks inside.
    """

    __slots__ = ("arrival_ms", "counter", "encoded", "size_bytes")

    def __init__(self, *, counter: int, arrival_ms: int, size_bytes: int, encoded: bytes) -> None:
        self.counter = counter
        self.arrival_ms = arrival_ms
        self.size_bytes = size_bytes
        self.encoded = encoded

    @classmethod
    def build(
        cls, *, counter: int, arrival_ms: int, sequence_number: str, partition_key: str, data: bytes, size_bytes: int
    ) -> Record:
        """Encode a record; `size_bytes` counts data and partition key, as the limits do."""
        encoded = b'{"SequenceNumber":"%b","ApproximateArrivalTimestamp":%d.%03d,"Data":"%b","PartitionKey":%b}' % (
            sequence_number.encode(),
            arrival_ms // 1000,
            arrival_ms % 1000,
            pybase64.b64encode(data),
            msgspec.json.encode(partition_key),
        )
        return cls(counter=counter, arrival_ms=arrival_ms, size_bytes=size_bytes, encoded=encoded)

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
