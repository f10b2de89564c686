"""The cases of `hatch run bench decode`: how many records a second become rows, by the size of a record."""

import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks import decode
from benchmarks._harness import Case, interleave

_BYTES_PER_ROUND = 20_000_000


def _rate(decoder: Callable[[Sequence[bytes]], int], payloads: Sequence[bytes], records: int) -> float:
    start = time.perf_counter()
    rows = decoder(payloads)
    seconds = time.perf_counter() - start
    if rows != records:
        raise RuntimeError(f"{decoder.__name__} gave {rows} rows of {records}")
    return rows / seconds


def run(rounds: int) -> Iterator[Case]:
    """One case per size of a record."""
    for record_bytes in (100, 1_000, 10_000):
        records = min(40_000, _BYTES_PER_ROUND // record_bytes)
        payloads = decode.make_payloads(record_bytes, records)
        yield interleave(
            f"records-of-{record_bytes}-bytes",
            lambda: _rate(decode.penstock, payloads, records),  # noqa: B023  # called before the next round
            lambda: _rate(decode.botocore_eventstream, payloads, records),  # noqa: B023
            peer_name="botocore",
            unit="records/s",
            rounds=rounds,
        )
