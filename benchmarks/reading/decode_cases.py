"""The cases of `hatch run bench decode`: how many records a second become rows, by the size of a record.

Rates are records per second of one core: other processes of the machine do not count. The cases `of-floor` hold the
same rate against that of the floor: CRC, the scan of the JSON and base64, each alone, one after the other.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks._harness import Case, interleave
from benchmarks.reading import decode

_BYTES_PER_ROUND = 20_000_000
_SIZES = (("100B", 100), ("1kB", 1_000), ("25kB", 25_000))
_PARTS = ("crc", "scan", "base64")


def _rate(decoder: Callable[[Sequence[bytes]], int], chunks: Sequence[bytes], records: int) -> float:
    start = time.process_time()
    rows = decoder(chunks)
    seconds = time.process_time() - start
    if rows != records:
        raise RuntimeError(f"{decoder.__name__} gave {rows} rows of {records}")
    return rows / seconds


def _seconds(part: Callable[[], None]) -> float:
    start = time.process_time()
    part()
    return time.process_time() - start


class _Floor:
    """Measures the parts, and keeps the nanoseconds a record of each."""

    def __init__(self, chunks: Sequence[bytes], records: int) -> None:
        self._input = decode.FloorInput.of(chunks)
        self._records = records
        self.nanos: dict[str, list[float]] = {part: [] for part in _PARTS}

    def rate(self) -> float:
        """Records a second, if these were all that a decoder does."""
        given = self._input
        # Whichever way of scanning is the faster one for the size.
        scan = min(_seconds(given.scan), _seconds(given.cut_and_scan))
        seconds = {"crc": _seconds(given.crc), "scan": scan, "base64": _seconds(given.base64)}
        for part in _PARTS:
            self.nanos[part].append(1e9 * seconds[part] / self._records)
        return self._records / sum(seconds.values())


def run(rounds: int) -> Iterator[Case]:
    """Two cases per size of a record: against botocore, and as a share of the floor."""
    table = Table(title="the floor of decoding, nanoseconds per record; then our decoder")
    for column in ("record", *_PARTS, "floor", "ours"):
        table.add_column(column, justify="left" if column == "record" else "right")
    for name, record_bytes in _SIZES:
        records = min(40_000, _BYTES_PER_ROUND // record_bytes)
        chunks = decode.make_chunks(record_bytes, records)

        def ours(chunks: Sequence[bytes] = chunks, records: int = records) -> float:
            return _rate(decode.penstock, chunks, records)

        def botocore(chunks: Sequence[bytes] = chunks, records: int = records) -> float:
            return _rate(decode.botocore_eventstream, chunks, records)

        floor = _Floor(chunks, records)
        yield interleave(name, ours, botocore, peer_name="botocore", unit="records/s", rounds=rounds)
        of_floor = interleave(
            f"{name}-of-floor", ours, floor.rate, peer_name="crc+scan+base64", unit="records/s", rounds=rounds
        )
        parts = [statistics.median(floor.nanos[part]) for part in _PARTS]
        whole = (1e9 / statistics.median(rates) for rates in (of_floor.peers, of_floor.ours))
        table.add_row(name, *(f"{one:,.0f}" for one in (*parts, *whole)))
        yield of_floor
    Console().print(table)
