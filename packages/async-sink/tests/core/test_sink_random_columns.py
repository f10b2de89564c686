"""Rows of record batches under random faults: each is accounted for, as single elements are."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.async_sink import (
    All,
    AsyncSinkConfig,
    CallbackHandler,
    EntryFailure,
    KinesisRequestEntry,
    Ordering,
    PerShardRateLimitingStrategy,
    TerminalRecord,
    aimd_strategy,
)
from penstock.async_sink.errors import RecordsRejectedError, SinkError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeKinesisWriter, FakeRequest

KEYS = 5


class Unsteady(FakeDestination):
    """Refuses at random: single records, whole requests, permanently, or for one record that it does not name."""

    def __init__(self, random: Random, clock: FakeClock, *, hostile: bool) -> None:
        super().__init__()
        self.random, self.clock, self.hostile = random, clock, hostile

    async def submit(self, entries: Sequence[Any], handler: Any) -> None:
        self.requests.append(request := FakeRequest(list(entries), handler))
        answered = asyncio.Event()
        self.clock.call_at(self.clock.now() + self.random.random() * 0.1, answered.set)
        await answered.wait()
        if self.hostile and self.random.random() < 0.1:
            handler.reject_request(code="Poison")
            return
        share = self.random.choice([0.0, 0.0, 0.3, 0.3, 1.0])
        failures = [
            EntryFailure(
                index,
                "Refused",
                throttled=self.random.random() < 0.5,
                final=self.hostile and self.random.random() < 0.05,
            )
            for index in range(len(entries))
            if self.random.random() < share
        ]
        failed = {failure.index for failure in failures}
        self.accepted.extend(entry for index, entry in enumerate(request.entries) if index not in failed)
        lanes = [f"shard-{int(entry.partition_key[1:]) % 2}" for entry in entries]
        handler.retry_failures(failures, lanes=lanes if self.random.random() < 0.8 else ())


class Ledger:
    """A listener that books what it hears, by the number of the record."""

    def __init__(self, first: int, count: int) -> None:
        self.numbers = range(first, first + count)
        self.heard: list[int] = []
        self.refused: list[int] = []

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        assert attempts >= 1
        self.heard.append(self.numbers[entry_index])

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        self.refused.append(self.numbers[entry_index])

    def abandoned(self, error: BaseException) -> None:
        pass


class RunLedger(Ledger):
    """One that hears of neighbours by one call."""

    def acknowledged_many(self, first_index: int, count: int, attempts: int) -> None:
        assert min(count, attempts) >= 1
        self.heard.extend(self.numbers[first_index : first_index + count])


def entry_of(number: int) -> KinesisRequestEntry:
    hash_key = str(number % 3 * 2**120) if number % 3 else None
    return KinesisRequestEntry(b"%d" % number + b"." * (number * 13 % 30), f"k{number * 7 % KEYS}", hash_key)


def number_of(entry: Any) -> int:
    return int(entry.data.rstrip(b"."))


def rows(first: int, count: int) -> pa.RecordBatch:
    """A slice, so that its columns begin somewhere in their buffers."""
    entries = [entry_of(number) for number in range(first - 3, first + count)] if first >= 3 else []
    entries = entries or [entry_of(number) for number in range(first, first + count)]
    columns = {
        "data": pa.array([entry.data for entry in entries], pa.binary()),
        "partitionKey": pa.array([entry.partition_key for entry in entries], pa.string()),
        "explicitHashKey": pa.array([entry.explicit_hash_key for entry in entries], pa.string()),
    }
    return pa.record_batch(columns).slice(len(entries) - count)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batches=st.lists(
        st.tuples(st.integers(0, 40), st.booleans(), st.sampled_from([None, Ledger, RunLedger])), min_size=1, max_size=8
    ),
    batch=st.integers(1, 12),
    in_flight=st.integers(1, 4),
    ordering=st.sampled_from(Ordering),
    hostile=st.booleans(),
    max_attempts=st.none() | st.integers(1, 4),
    time_to_live=st.none() | st.floats(0.5, 5.0),
    handled=st.booleans(),
    sharded=st.booleans(),
    ends_after=st.none() | st.integers(0, 30),
)
def test_rows_and_elements_are_accounted_for_however_a_writer_ends(
    seed: int,
    batches: list[tuple[int, bool, type[Ledger] | None]],
    batch: int,
    in_flight: int,
    ordering: Ordering,
    hostile: bool,
    max_attempts: int | None,
    time_to_live: float | None,
    handled: bool,
    sharded: bool,
    ends_after: int | None,
) -> None:
    """Accepted, abandoned or in the snapshot; listeners hear of each once; orders hold; nothing hangs."""

    async def run() -> None:
        clock, dead = FakeClock(), list[int]()
        fake = Unsteady(Random(seed), clock, hostile=hostile)

        def callback(record: TerminalRecord[Any]) -> None:
            assert record.entry == entry_of(record.record_number)
            dead.append(record.record_number)

        config = AsyncSinkConfig(
            max_batch_size=batch,
            max_in_flight_requests=in_flight,
            max_buffered_requests=batch + 5,
            max_batch_size_in_bytes=150,
            max_record_size_in_bytes=60,
            max_buffered_bytes=250,
            ordering=ordering,
            max_attempts=max_attempts,
            time_to_live=None if time_to_live is None else timedelta(seconds=time_to_live),
        )
        shards = PerShardRateLimitingStrategy(records_per_second=40)
        writer = FakeKinesisWriter(
            fake.submit,
            config,
            clock=clock,
            random=Random(seed).random,
            terminal=CallbackHandler(callback) if handled else None,
            strategy=All(aimd_strategy(config), shards) if sharded else None,
        )
        ledgers: list[Ledger] = []

        async def write() -> None:
            async with writer:
                for count, as_columns, listening in batches:
                    first = writer.records_written
                    listener = listening(first, count) if listening else None
                    ledgers.extend([listener] if listener else [])
                    if as_columns:
                        await writer.write_many(rows(first, count), listener=listener)
                    else:
                        elements = [entry_of(number) for number in range(first, first + count)]
                        await writer.write_many(elements, listener=listener)

        writing = asyncio.create_task(write())
        for turn in range(5_000):
            if turn == ends_after:
                await writer.close()
            await clock.advance(0.05)
            if writing.done():
                break
        assert writing.done(), "the writer hangs"
        error = writing.exception()
        if error is not None and ends_after is None:
            assert isinstance(error, RecordsRejectedError), error
        elif error is not None:
            assert isinstance(error, SinkError), error
            assert isinstance(error, RecordsRejectedError) or error.code == "WRITER_CLOSED", error

        kept = [number_of(entry) for state in writer.snapshot_state() for entry, _ in state.entries]
        accepted = [number_of(entry) for entry in fake.accepted]
        rejected = [number for ledger in ledgers for number in ledger.refused]
        assert kept == sorted(kept)
        assert sorted([*accepted, *dead, *rejected, *kept]) == list(range(writer.records_written))
        assert fake.accepted == [entry_of(number) for number in accepted]
        assert writer.metrics.records_out == len(accepted)
        assert writer.metrics.bytes_out == sum(map(writer.get_size_in_bytes, fake.accepted))
        heard = sorted(number for ledger in ledgers for number in ledger.heard)
        assert heard == sorted(number for number in accepted if any(number in ledger.numbers for ledger in ledgers))
        for request in fake.requests:
            assert len(request.entries) <= batch
            assert sum(map(writer.get_size_in_bytes, request.entries)) <= config.max_batch_size_in_bytes
        if ordering is Ordering.STRICT:
            assert accepted == sorted(accepted)
        if ordering is Ordering.PER_KEY:
            by_key = defaultdict(list)
            for entry in fake.accepted:
                by_key[entry.partition_key].append(number_of(entry))
            assert all(numbers == sorted(numbers) for numbers in by_key.values())

    asyncio.run(run())
