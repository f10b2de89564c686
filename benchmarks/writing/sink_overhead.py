"""What the writer itself costs: a destination that does nothing, seconds of one core's time."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pyarrow as pa

from benchmarks._harness import Case
from penstock.async_sink import AsyncSinkWriter, KinesisRequestEntry, ResultHandler
from penstock.async_sink.testing import FakeKinesisWriter

_RECORDS = 100_000


class NoOpWriter(AsyncSinkWriter[bytes, bytes]):
    """Accepts everything at once."""

    async def submit_request_entries(self, entries: Sequence[bytes], result_handler: ResultHandler[bytes]) -> None:
        """Say yes."""
        result_handler.complete()

    def get_size_in_bytes(self, entry: bytes) -> int:
        """Its length."""
        return len(entry)


async def _accept(entries: Sequence[KinesisRequestEntry], handler: ResultHandler[KinesisRequestEntry]) -> None:
    handler.complete()


async def _read(entries: Sequence[KinesisRequestEntry], handler: ResultHandler[KinesisRequestEntry]) -> None:
    for _ in entries:
        pass
    handler.complete()


async def _one_by_one() -> float:
    entry = b"x" * 100
    async with NoOpWriter() as writer:
        start = time.process_time()
        for _ in range(_RECORDS):
            await writer.write(entry)
        await writer.flush(end_of_input=True)
        seconds = time.process_time() - start
    return _RECORDS / seconds


async def _list() -> float:
    entries = [b"x" * 100 for _ in range(_RECORDS)]
    async with NoOpWriter() as writer:
        start = time.process_time()
        await writer.write_many(entries)
        await writer.flush(end_of_input=True)
        seconds = time.process_time() - start
    return _RECORDS / seconds


def _arrow(
    submit: Callable[[Sequence[KinesisRequestEntry], ResultHandler[KinesisRequestEntry]], Coroutine[Any, Any, None]],
) -> Callable[[], Coroutine[Any, Any, float]]:
    batch = pa.record_batch(
        {"data": [b"x" * 100] * _RECORDS, "partitionKey": [f"key-{number}" for number in range(_RECORDS)]}
    )

    async def measure() -> float:
        async with FakeKinesisWriter(submit) as writer:
            start = time.process_time()
            await writer.write_many(batch)
            await writer.flush(end_of_input=True)
            seconds = time.process_time() - start
        return _RECORDS / seconds

    return measure


def run(rounds: int) -> Iterator[Case]:
    """Records a second: one by one, from Arrow, from Arrow by a destination that looks at the entries, from a list."""
    for name, measure in (
        ("records-per-second-write", _one_by_one),
        ("records-per-second-write-many", _arrow(_accept)),
        ("records-per-second-write-many-read", _arrow(_read)),
        ("records-per-second-write-many-list", _list),
    ):
        asyncio.run(measure())
        rates = [asyncio.run(measure()) for _ in range(rounds)]
        yield Case(name=name, peer_name="none", unit="records/s", ours=rates, peers=[1.0] * rounds)
