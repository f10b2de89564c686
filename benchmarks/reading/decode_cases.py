"""The cases of `hatch run bench decode`: how many records a second become rows, by the size of a record.

Rates are records per second of one core: other processes of the machine do not count.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks._harness import Case, interleave
from benchmarks.reading import decode

_BYTES_PER_ROUND = 20_000_000


def _rate(decoder: Callable[[Sequence[bytes]], int], chunks: Sequence[bytes], records: int) -> float:
    start = time.process_time()
    rows = decoder(chunks)
    seconds = time.process_time() - start
    if rows != records:
        raise RuntimeError(f"{decoder.__name__} gave {rows} rows of {records}")
    return rows / seconds


def run(rounds: int) -> Iterator[Case]:
    """One case per size of a record."""
    for name, record_bytes in (("100B", 100), ("1kB", 1_000), ("25kB", 25_000)):
        records = min(40_000, _BYTES_PER_ROUND // record_bytes)
        chunks = decode.make_chunks(record_bytes, records)
        yield interleave(
            name,
            lambda: _rate(decode.penstock, chunks, records),  # noqa: B023  # called before the next round
            lambda: _rate(decode.botocore_eventstream, chunks, records),  # noqa: B023
            peer_name="botocore",
            unit="records/s",
            rounds=rounds,
        )
