"""Which records of several shards are taken within limits, in the order of their arrival times: pure.

Within a shard records stay in sequence order: one that claims to have arrived before its predecessor counts as having
arrived with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._buffer.segment import Part, arrived_micros
from penstock.efo_consumer._reader.api import ProfilePoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


MOST_POINTS = 1024
"""Most points of a profile. A profile with fewer has all arrival times."""


def within(parts: Sequence[list[Part]], max_rows: int | None, max_bytes: int | None) -> list[list[Part]]:
    """Give the parts of each shard that arrived first and fit into the limits; the last of a shard may be cut.

    At least one record is taken. An evicted part, which cannot be cut, is taken as a whole or not at all, and exceeds
    the limits if it comes first.
    """
    rows = sum(part.rows for some in parts for part in some)
    nbytes = sum(part.nbytes for some in parts for part in some)
    if (max_rows is None or rows <= max_rows) and (max_bytes is None or nbytes <= max_bytes):
        return list(parts)
    units = _units(parts)
    whole, candidates = _decided(units, max_rows, max_bytes)
    rows_left = None if max_rows is None else max_rows - sum(unit.part.rows for unit in whole)
    bytes_left = None if max_bytes is None else max_bytes - sum(unit.part.nbytes for unit in whole)
    merged = _Merged(candidates, with_bytes=max_bytes is not None)
    counts = merged.fitting(rows_left, bytes_left, at_least_one=not whole)
    taken: list[list[Part]] = [[] for _ in parts]
    for unit in whole:
        taken[unit.shard].append(unit.part)
    for unit in candidates:
        left = counts.get(unit.shard, 0)
        counts[unit.shard] = left - min(left, unit.entries)
        if left >= unit.entries:
            taken[unit.shard].append(unit.part)
        elif left:
            taken[unit.shard].append(unit.part.first(left))
    return taken


def profile(parts: Sequence[list[Part]]) -> tuple[ProfilePoint, ...]:
    """Count records by their arrival times, at up to a thousand of these, the first and the last among them."""
    units = _units(parts)
    return _Merged(units, with_bytes=True).profile() if units else ()


@dataclass(frozen=True, slots=True)
class _Unit:
    """A part of a shard, with arrival times that never go back within the shard."""

    shard: int
    part: Part
    first_micros: int
    latest_micros: int

    @property
    def entries(self) -> int:
        """Into how many pieces it can be cut."""
        return 1 if self.part.is_evicted else self.part.rows


def _units(parts: Iterable[list[Part]]) -> list[_Unit]:
    found = []
    for shard, some in enumerate(parts):
        latest = 0
        for part in some:
            first, latest = max(latest, part.first_micros), max(latest, part.latest_micros)
            found.append(_Unit(shard, part, first, latest))
    return found


def _decided(units: list[_Unit], max_rows: int | None, max_bytes: int | None) -> tuple[list[_Unit], list[_Unit]]:
    """Give the units that are sure to fit, and the units of which only some records may fit.

    Looking at single records is for the few units that the limits cut.
    """
    too_late = _first_beyond(units, max_rows, max_bytes, lambda unit: unit.latest_micros)
    units = [unit for unit in units if too_late is None or unit.first_micros <= too_late]
    sure_before = _first_beyond(units, max_rows, max_bytes, lambda unit: unit.first_micros)
    whole = [unit for unit in units if sure_before is None or unit.latest_micros < sure_before]
    return whole, [unit for unit in units if sure_before is not None and unit.latest_micros >= sure_before]


def _first_beyond(
    units: list[_Unit], max_rows: int | None, max_bytes: int | None, key: Callable[[_Unit], int]
) -> int | None:
    """Give the time of the first unit, in the order of these times, with which the limits are exceeded."""
    ordered = sorted(units, key=key)
    rows = accumulate(unit.part.rows for unit in ordered)
    nbytes = accumulate(unit.part.nbytes for unit in ordered)
    for unit, count, size in zip(ordered, rows, nbytes, strict=True):
        if (max_rows is not None and count > max_rows) or (max_bytes is not None and size > max_bytes):
            return key(unit)
    return None


class _Merged:
    """The records of units, of which there is one, in the order of their arrival times.

    Each record is an entry; an evicted unit is one as a whole.
    """

    def __init__(self, units: list[_Unit], *, with_bytes: bool) -> None:
        times, sizes = [], []
        for unit in units:
            records = unit.part.records
            if records is None:
                times.append(pa.array([unit.first_micros], pa.int64()))
                sizes.append(pa.array([unit.part.nbytes], pa.int64()))
                continue
            # Not before what comes before it in its shard.
            times.append(pc.cumulative_max(arrived_micros(records), start=pa.scalar(unit.first_micros, pa.int64())))
            if with_bytes:
                lengths = [pc.binary_length(records.column(name)) for name in ("data", "partitionKey")]
                sizes.append(pc.add(*lengths).cast(pa.int64()))
        merged = pa.concat_arrays(times)
        # A stable sort: entries of the same time stay in the order of shards, and within a shard in theirs.
        order = pc.array_sort_indices(merged)
        ends = pa.array(accumulate(unit.entries for unit in units), pa.int32())

        def of_units(values: list[int]) -> pa.Int64Array:
            runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, pa.int64()))
            return pc.run_end_decode(runs).take(order)

        self._times = merged.take(order)
        self._shards = of_units([unit.shard for unit in units])
        self._rows = pc.cumulative_sum(of_units([unit.part.rows if unit.part.is_evicted else 1 for unit in units]))
        # Computing sizes takes most of the time, and only a limit in bytes needs them.
        self._bytes = (
            pc.cumulative_sum(pa.concat_arrays(sizes).take(order)) if with_bytes else pa.nulls(len(order), pa.int64())
        )

    def fitting(self, max_rows: int | None, max_bytes: int | None, *, at_least_one: bool) -> dict[int, int]:
        """Give how many entries of each shard fit into the limits."""
        counts = [
            pc.sum(pc.less_equal(sums, limit)).as_py()
            for sums, limit in ((self._rows, max_rows), (self._bytes, max_bytes))
            if limit is not None
        ]
        taken = self._shards.slice(0, max(min(counts), int(at_least_one)))
        return {one["values"].as_py(): one["counts"].as_py() for one in pc.value_counts(taken)}

    def profile(self) -> tuple[ProfilePoint, ...]:
        """See `profile`."""
        following = pa.concat_arrays([self._times.slice(1), pa.array([None], pa.int64())])
        # The last entry of each millisecond: what comes with it counts, too.
        millis, next_millis = pc.divide(self._times, 1000), pc.divide(following, 1000)
        last = pc.indices_nonzero(pc.fill_null(pc.not_equal(millis, next_millis), True))
        step = -(-len(last) // MOST_POINTS)
        # The first one is exact: nothing arrived before it.
        places = sorted({*range(0, len(last) - 1, step), len(last) - 1})
        chosen = last.take(pa.array(places, pa.int64()))
        found = zip(*(column.take(chosen).to_pylist() for column in (millis, self._rows, self._bytes)), strict=True)
        return tuple(ProfilePoint(*one) for one in found)
