"""The records of a shard: the form in which each is sent, and the columns that keep them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import msgspec
import pybase64

if TYPE_CHECKING:
    from collections.abc import Iterator


# How many trimmed records may stay in the columns before they are closed up.
_SLACK = 1024


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


class RecordSlice:
    """Records that follow each other, as they were when the slice was made; each `Record` is built when looked at."""

    __slots__ = ("_arrivals_ms", "_counters", "_sizes", "encoded")

    def __init__(self, counters: array[int], arrivals_ms: array[int], sizes: array[int], encoded: list[bytes]) -> None:
        self._counters = counters
        self._arrivals_ms = arrivals_ms
        self._sizes = sizes
        self.encoded = encoded
        """The JSON objects in which the records are sent."""

    @property
    def size_bytes(self) -> int:
        """Data and partition keys of all of them."""
        return sum(self._sizes)

    @property
    def first_counter(self) -> int:
        """The counter of the first record."""
        return self._counters[0]

    @property
    def last_counter(self) -> int:
        """The counter of the last record."""
        return self._counters[-1]

    def __len__(self) -> int:
        return len(self.encoded)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordSlice: ...
    def __getitem__(self, index: int | slice) -> Record | RecordSlice:
        if isinstance(index, slice):
            return RecordSlice(self._counters[index], self._arrivals_ms[index], self._sizes[index], self.encoded[index])
        return Record(
            counter=self._counters[index],
            arrival_ms=self._arrivals_ms[index],
            size_bytes=self._sizes[index],
            encoded=self.encoded[index],
        )

    def __iter__(self) -> Iterator[Record]:
        for index in range(len(self.encoded)):
            yield self[index]


class RecordLog:
    """An append-only sequence of records that can be cut off at the front.

    Columns of plain numbers beside a list of `bytes`: nothing that the garbage collector has to visit, so that a put
    into a shard with a million records costs what the first one did.
    """

    def __init__(self) -> None:
        self._counters = array("Q")
        self._arrivals_ms = array("Q")
        self._sizes = array("I")
        self._encoded: list[bytes] = []
        self._start = 0
        self.trimmed_to = 0
        """The counter after the last trimmed record's."""

    def __len__(self) -> int:
        return len(self._encoded) - self._start

    def append(self, *, counter: int, arrival_ms: int, size_bytes: int, encoded: bytes) -> None:
        """Add a record; counters increase, arrival times do not decrease."""
        self._counters.append(counter)
        self._arrivals_ms.append(arrival_ms)
        self._sizes.append(size_bytes)
        self._encoded.append(encoded)

    def trim_before(self, arrival_ms: int) -> None:
        """Forget the records that arrived before `arrival_ms`."""
        before = self._start
        self._start = bisect_left(self._arrivals_ms, arrival_ms, self._start)
        if self._start > before:
            self.trimmed_to = self._counters[self._start - 1] + 1
        # Closing up moves what is left: not for every record that goes.
        if self._start > _SLACK and self._start * 2 > len(self._encoded):
            for column in (self._counters, self._arrivals_ms, self._sizes, self._encoded):
                del column[: self._start]
            self._start = 0
        elif self._start:
            # The bytes go at once.
            index = self._start - 1
            while index >= 0 and self._encoded[index]:
                self._encoded[index] = b""
                index -= 1

    def index_of(self, counter: int) -> int:
        """The index of the first record whose counter is not below `counter`; the length without such a record."""
        return bisect_left(self._counters, counter, self._start) - self._start

    def index_at(self, arrival_ms: int) -> int:
        """The index of the first record that did not arrive before `arrival_ms`; the length without such a record."""
        return bisect_left(self._arrivals_ms, arrival_ms, self._start) - self._start

    def counter(self, index: int) -> int:
        """The counter of a record."""
        return self._counters[self._start + index]

    def arrival_ms(self, index: int) -> int:
        """When a record arrived, in milliseconds since the epoch."""
        return self._arrivals_ms[self._start + index]

    @property
    def last_counter(self) -> int:
        """The counter of the last record; -1 without one."""
        return self._counters[-1] if len(self) else -1

    def slice(self, start: int, end: int) -> RecordSlice:
        """The records from index `start` up to `end`, not included."""
        start += self._start
        end += self._start
        return RecordSlice(
            self._counters[start:end], self._arrivals_ms[start:end], self._sizes[start:end], self._encoded[start:end]
        )

    def fitting(self, start: int, *, max_records: int, max_bytes: int, stop: int | None = None) -> RecordSlice:
        """Records from index `start` up to `stop`, within both bounds; at least one if any, whatever its size."""
        start += self._start
        stop = len(self._encoded) if stop is None else max(start, self._start + stop)
        end = min(stop, start + max_records)
        sizes = self._sizes[start:end]
        if sum(sizes) > max_bytes:
            total = 0
            for count, size in enumerate(sizes):
                total += size
                if total > max_bytes and count:
                    end = start + count
                    break
        return self.slice(start - self._start, end - self._start)


Built: TypeAlias = tuple[bytes, int, int]
"""The first part of a frame, the CRC up to there, and the length of the payload that is still to come."""

# Of up to 1.5 MB each, for each shard with two subscribers or more.
_KEPT = 4


class FrameCache:
    """The frames that the subscribers of one shard need again: the frames of the last few batches."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int], Built] = {}

    def get(self, batch: tuple[int, int]) -> Built | None:
        """What was built of the records from one counter to another."""
        return self._frames.get(batch)

    def put(self, batch: tuple[int, int], built: Built) -> None:
        """Keep what was built, and forget the oldest."""
        self._frames[batch] = built
        if len(self._frames) > _KEPT:
            del self._frames[next(iter(self._frames))]
