"""What writing many costs, and what it keeps in memory."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink import (
    AsyncSinkConfig,
    EntryFailure,
    KinesisRequestEntry,
    ResultHandler,
)
from penstock.async_sink._core.runs import EntryRows, EntryRun
from penstock.async_sink._destinations.kinesis import rows as kinesis_rows
from penstock.async_sink.errors import RecordError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeKinesisWriter, FakeWriter, settle


class RowsWriter(FakeKinesisWriter):
    """Keeps the requests that it gets, unseen, and answers as `answer` says."""

    def __init__(self, answer: Callable[[Sequence[Any], ResultHandler[Any]], Any], **options: Any) -> None:
        self.clock = FakeClock()
        config = AsyncSinkConfig(**{"max_batch_size": 10, **options})
        super().__init__(answer, config, clock=self.clock, random=lambda: 0.5)


def rows(count: int, size: int = 1) -> pa.RecordBatch:
    return pa.record_batch(
        {"data": pa.array([b"x" * size] * count, pa.binary()), "partitionKey": [f"{i}" for i in range(count)]}
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Partition keys of entries that were made of rows, in the order of their making."""
    keys: list[str] = []

    def make(*fields: Any) -> KinesisRequestEntry:
        keys.append(fields[1])
        return KinesisRequestEntry(*fields)

    monkeypatch.setattr(kinesis_rows, "KinesisRequestEntry", make)
    return keys


async def test_a_destination_that_asks_for_their_number_makes_no_entries(made: list[str]) -> None:
    """From the record batch to the acknowledgement no entry is created unless code reads one."""
    sizes: list[int] = []

    def accept(entries: Sequence[object], handler: ResultHandler[Any]) -> None:
        sizes.append(len(entries))
        handler.complete()

    async with RowsWriter(accept) as writer:
        await writer.write_many(rows(25))
    assert (sizes, made, writer.metrics.records_out) == ([10, 10, 5], [], 25)


async def test_a_failed_entry_does_not_keep_its_neighbours(made: list[str]) -> None:
    """A failed entry becomes a separate object, and the rows of its request are freed."""
    answers = iter([[EntryFailure(4, throttled=False)], []])
    # Rows that other tests left in cycles.
    gc.collect()

    async with RowsWriter(lambda entries, handler: handler.retry_failures(next(answers))) as writer:
        await writer.write_many(rows(10))
        await settle()
        assert (made, writer.metrics.records_out, writer.buffered_entries) == ([f"{i}" for i in range(10)], 9, 1)
        assert not [each for each in gc.get_objects() if isinstance(each, kinesis_rows.KinesisRows)]
        await writer.clock.advance(1.0)
    assert writer.metrics.attempts == {1: 9, 2: 1}


async def test_what_waits_does_not_keep_the_record_batch() -> None:
    """Waiting rows are copies, so Arrow's memory is free when the call returns."""
    before = pa.total_allocated_bytes()
    async with RowsWriter(lambda entries, handler: handler.complete()) as writer:
        await writer.write_many(rows(15, 100_000))
        assert writer.buffered_entries == 5
        await settle()
        assert pa.total_allocated_bytes() - before < 100_000


async def test_an_entry_of_a_list_that_is_too_large_stops_it_there() -> None:
    """Entries before it are written; the error has its number."""
    fake = FakeDestination()
    config = AsyncSinkConfig(max_batch_size=10, max_record_size_in_bytes=5, max_batch_size_in_bytes=50)
    async with FakeWriter(fake, config) as writer:
        await writer.write("a")
        with pytest.raises(RecordError) as caught:
            await writer.write_many([*"b" * 14, "too large", "c"])
        assert caught.value.record_number == 15
        assert writer.records_written == 15
    assert fake.accepted == ["a", *"b" * 14]


class OneByOne:
    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        self.told.append((entry_index, attempts))

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        raise AssertionError

    def abandoned(self, error: BaseException) -> None:
        raise AssertionError


class ByRange(OneByOne):
    def acknowledged_many(self, first_index: int, count: int, attempts: int) -> None:
        self.told.append((first_index, count))


@pytest.mark.parametrize(
    ("kind", "told"),
    [(OneByOne, [(i, 1) for i in range(15)]), (ByRange, [(0, 9), (9, 6)])],
)
async def test_a_listener_gets_one_call_for_consecutive_entries(kind: type[OneByOne], told: list[Any]) -> None:
    """A listener without `acknowledged_many` gets a call for each entry."""
    listener = kind()
    async with RowsWriter(lambda entries, handler: handler.complete()) as writer:
        await writer.write(KinesisRequestEntry(b"", "first"))
        await writer.write_many(rows(15), listener=listener)
    assert listener.told == told


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.data())
def test_a_run_falls_apart_into_its_entries_however_it_was_split(sizes: list[int], data: st.DataObject) -> None:
    """Numbers, indices and sizes of each entry stay the same."""
    rest = EntryRun(EntryRows.of([f"e{i}" for i in range(len(sizes))], sizes), number=100, index=7, written_at=3.0)
    whole, parts = rest.wrappers(), list[EntryRun[str]]()
    while rest.count > 1 and data.draw(st.booleans()):
        parts.append(rest.split(data.draw(st.integers(1, rest.count - 1))))
    parts.append(rest)
    assert [wrapper for part in parts for wrapper in part.wrappers()] == whole
    assert [(each.entry, each.number, each.index, each.size_in_bytes, each.written_at) for each in whole] == [
        (f"e{i}", 100 + i, 7 + i, size, 3.0) for i, size in enumerate(sizes)
    ]
    assert sum(part.size_in_bytes for part in parts) == sum(sizes)
