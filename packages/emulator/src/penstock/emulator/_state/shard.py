"""One shard: its range, its lineage and its records."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.emulator._state.quotas import TokenBucket
from penstock.emulator._state.records import FrameCache, RecordLog, encode_record
from penstock.emulator._state.sequence import IssueTimes, SequenceNumbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.emulator._config import Conduct, EmulatorConfig
    from penstock.emulator._state.records import RecordSlice
    from penstock.emulator._state.sequence import HashKeyRange

_MS = timedelta(milliseconds=1)


class Shard:
    """An append-only log with positions.

    A position is a counter: the reader wants the first record whose counter is not below it. Counters are also used up
    by `advance`, so the records of a shard may skip some.
    """

    def __init__(
        self,
        *,
        index: int,
        hash_keys: HashKeyRange,
        epoch: int,
        now: float,
        config: EmulatorConfig,
        conduct: Conduct,
        parents: tuple[Shard, ...] = (),
    ) -> None:
        self.id = f"shardId-{index:012d}"
        self.index = index
        self.hash_keys = hash_keys
        self.parents = parents
        self.children: list[Shard] = []
        self.created = now
        self.closed: float | None = None
        self.expired = False
        """Whether it was closed longer ago than the retention: AWS does not know it any more."""
        self.log = RecordLog()
        self.frames = FrameCache()
        self.listeners: set[Callable[[], None]] = set()
        self.trimmed_to = 0
        """The position after the last record that was trimmed."""
        timed = not conduct.behaviour.sequence_numbers_without_time
        self._conduct = conduct
        self._sequence = SequenceNumbers(epoch=epoch, index=index, timed=timed)
        self._issued = None if timed else IssueTimes()
        self._next_counter = 0
        self._last_ms = int(now * 1000)
        self._limited = config.enforce_limits
        self._write_records = TokenBucket(config.shard_write_records_per_second, now=now)
        self._write_bytes = TokenBucket(config.shard_write_bytes_per_second, now=now)
        self._read_calls = TokenBucket(config.shard_read_calls_per_second, now=now)
        self._read_bytes = TokenBucket(config.shard_read_bytes_per_second, now=now)
        self.starting_sequence_number = self.advance(now)
        self.ending_sequence_number: str | None = None

    @property
    def epoch(self) -> int:
        """The second that its sequence numbers begin with."""
        return self._sequence.epoch

    @property
    def last_arrival(self) -> float:
        """When its last record arrived, in seconds since the epoch; its creation where it had none."""
        return self._last_ms / 1000

    @property
    def is_open(self) -> bool:
        """Whether the shard takes records."""
        return self.closed is None

    @property
    def records(self) -> RecordSlice:
        """The records of now, oldest first."""
        return self.log.slice(0, len(self.log))

    @property
    def tip(self) -> int:
        """The position after everything that was written so far."""
        return self._next_counter

    def admit_write(self, size_bytes: int, now: float) -> bool:
        """Count a record against the write limits; False where it has to be refused."""
        if not self._limited:
            return True
        if not (self._write_records.has(1, now) and self._write_bytes.has(size_bytes, now)):
            return False
        self._write_records.take(1)
        self._write_bytes.take(size_bytes)
        return True

    def admit_read(self, now: float) -> bool:
        """Count a GetRecords call against the read limits; False where it has to be refused."""
        if not self._limited:
            return True
        if not (self._read_calls.has(1, now) and self._read_bytes.has(1, now)):
            return False
        self._read_calls.take(1)
        return True

    def charge_read(self, size_bytes: int) -> None:
        """Count what a GetRecords call gave; it may leave a debt for the calls after it."""
        if self._limited:
            self._read_bytes.take(size_bytes)

    def append(self, *, partition_key: str, data: bytes, size_bytes: int, now: float, encrypted: bool = False) -> str:
        """Add a record, and return its sequence number; call `notify` when the request's records are all in."""
        counter = self._next_counter
        # Arrival times must not go back within a shard, whatever the clock does.
        self._last_ms = arrival_ms = max(self._last_ms, int(now * 1000))
        self._next_counter = counter + 1
        sequence_number = self._give_out(counter, arrival_ms // 1000)
        jitter = self._conduct.behaviour.arrival_jitter
        # Only what is shown goes back: trimming and timestamps as positions need times in order.
        shown_ms = (
            arrival_ms - int(self._conduct.next_draw("arrival", self.id) * (jitter / _MS)) if jitter else arrival_ms
        )
        self.log.append(
            counter=counter,
            arrival_ms=arrival_ms,
            size_bytes=size_bytes,
            encoded=encode_record(
                arrival_ms=shown_ms,
                sequence_number=sequence_number,
                partition_key=partition_key,
                data=data,
                encrypted=encrypted,
            ),
        )
        return sequence_number

    def advance(self, now: float) -> str:
        """Use up a sequence number without a record: the shard's bounds, and progress on an idle shard."""
        counter = self._next_counter
        self._next_counter = counter + 1
        return self._give_out(counter, int(max(now, self.created)))

    def close(self, children: list[Shard], now: float) -> None:
        """Take no more records; readers that reach the end get `children`."""
        self.closed = now
        self.children = children
        self.ending_sequence_number = self.advance(now)
        self.notify()

    def trim(self, horizon: float) -> None:
        """Forget the records that arrived before `horizon` (seconds); a shard that was closed before it is expired."""
        self.log.trim_before(math.ceil(horizon * 1000))
        self.trimmed_to = max(self.trimmed_to, self.log.trimmed_to)
        if self._issued is not None:
            self._issued.forget_before(int(horizon))
        self.expired = self.expired or (self.closed is not None and self.closed < horizon)

    def is_before(self, sequence_number: str, horizon: float) -> bool:
        """Whether a sequence number of this shard was given out before `horizon`; its first one never was."""
        if sequence_number == self.starting_sequence_number:
            return False
        # Whole seconds are all that a sequence number knows.
        return self.given_out_at(sequence_number) + 1 <= horizon

    def given_out_at(self, sequence_number: str) -> int:
        """The second at which a sequence number of this shard was given out; 0 where that was before the horizon."""
        if self._issued is None:
            return self._sequence.arrival_seconds(sequence_number)
        return self._issued.second(self._sequence.counter(sequence_number) or 0)

    def notify(self) -> None:
        """Tell whoever waits at the tip."""
        for listener in tuple(self.listeners):
            listener()

    def position_of(self, sequence_number: str) -> int | None:
        """The position of a sequence number, or None where it did not come from this shard."""
        counter = self._sequence.counter(sequence_number)
        if counter is None or counter >= self._next_counter:
            return None
        return None if self._sequence.counter_of_namesake(sequence_number, self.created) is not None else counter

    def position_of_namesake(self, sequence_number: str) -> int | None:
        """Where a number of the shard that had this name in a deleted stream would be; None for any other number."""
        counter = self._sequence.counter_of_namesake(sequence_number, self.created)
        return None if counter is None else min(counter, self._next_counter)

    def is_known_number(self, sequence_number: str) -> bool:
        """Whether a record has this number, or had it before it was trimmed, or ListShards shows it."""
        if sequence_number in (self.starting_sequence_number, self.ending_sequence_number):
            return True
        counter = self._sequence.counter(sequence_number)
        if counter is None:
            return False
        index = self.log.index_of(counter)
        return counter < self.trimmed_to or (index < len(self.log) and self.log.counter(index) == counter)

    def position_at(self, timestamp: float) -> int:
        """The position of the first record that arrived at `timestamp` (seconds) or later, or else the tip."""
        # Clients send floats of milliseconds: round, or 1.001 would become 1.000.
        index = self.log.index_at(round(timestamp * 1000))
        return self.log.counter(index) if index < len(self.log) else self._next_counter

    def sequence_number_of(self, records: RecordSlice, index: int) -> str:
        """The sequence number of one of the records of this shard."""
        record = records[index]
        return self._sequence.text(record.counter, record.arrival_ms // 1000)

    def read(self, position: int, *, max_records: int, max_bytes: int, until: float | None = None) -> RecordSlice:
        """Records from `position` on, in order; at least one if any, whatever its size.

        `until` leaves out what arrived after that time (seconds).
        """
        return self.log.fitting(
            self.log.index_of(position), max_records=max_records, max_bytes=max_bytes, stop=self._index_after(until)
        )

    def has_records(self, position: int, until: float | None = None) -> bool:
        """Whether there is a record at `position` or after it, that arrived at the time `until` or before it."""
        if until is None:
            return self.log.last_counter >= position
        return self.log.index_of(position) < (self._index_after(until) or 0)

    def _index_after(self, time: float | None) -> int | None:
        return None if time is None else self.log.index_at(math.floor(time * 1000) + 1)

    def exhausted(self, position: int) -> bool:
        """Whether a reader at `position` has seen all that will ever be in this shard."""
        return self.closed is not None and not self.has_records(position)

    def millis_behind(self, position: int, now: float) -> int:
        """The age of the next unread record at `now`; 0 at the tip."""
        index = self.log.index_of(position)
        if index == len(self.log):
            return 0
        return max(1, int(now * 1000) - self.log.arrival_ms(index))

    def child_shards(self) -> list[dict[str, Any]]:
        """The children as GetRecords and SubscribeToShard list them at the end of a shard."""
        return [
            {
                "ShardId": child.id,
                "ParentShards": [parent.id for parent in child.parents],
                "HashKeyRange": child.hash_keys.as_dict(),
            }
            for child in self.children
        ]

    def description(self, *, as_open: bool = False) -> dict[str, Any]:
        """The shard as ListShards describes it; `as_open` leaves out that it was closed."""
        sequence_numbers = {"StartingSequenceNumber": self.starting_sequence_number}
        if self.ending_sequence_number is not None and not as_open:
            sequence_numbers["EndingSequenceNumber"] = self.ending_sequence_number
        description: dict[str, Any] = {"ShardId": self.id}
        for name, parent in zip(("ParentShardId", "AdjacentParentShardId"), self.parents, strict=False):
            description[name] = parent.id
        description["HashKeyRange"] = self.hash_keys.as_dict()
        description["SequenceNumberRange"] = sequence_numbers
        return description

    def _give_out(self, counter: int, second: int) -> str:
        if self._issued is not None:
            self._issued.note(counter, second)
        return self._sequence.text(counter, second)
