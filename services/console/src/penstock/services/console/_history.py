"""The last values of many series, in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Mapping

Series = tuple[str, ...]


class History:
    """A ring of values per series. The series that got no value for longest is forgotten when there are too many.

    Args:
        points: values that a series keeps.
        max_series: series that are kept: each takes 8 bytes a point.
    """

    def __init__(self, *, points: int = 120, max_series: int = 10_000) -> None:
        self.points = points
        self._max_series = max_series
        self._rings: OrderedDict[Series, _Ring] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rings)

    def add(self, values: Mapping[Series, float | None]) -> None:
        """Add a value to each of the series; None where it is not known."""
        for series, value in values.items():
            ring = self._rings.get(series)
            if ring is None:
                ring = self._rings[series] = _Ring(self.points)
            ring.add(math.nan if value is None else value)
            self._rings.move_to_end(series)
        while len(self._rings) > self._max_series:
            self._rings.popitem(last=False)

    def gap(self, *begin: str) -> None:
        """Add to each series whose name begins so that its value is not known."""
        for series, ring in self._rings.items():
            if series[: len(begin)] == begin:
                ring.add(math.nan)

    def values(self, series: Series) -> list[float | None]:
        """The values, oldest first, None where one is not known; none for a series that is not known."""
        ring = self._rings.get(series)
        return [] if ring is None else [None if math.isnan(value) else value for value in ring.values()]


class _Ring:
    __slots__ = ("_at", "_values")

    def __init__(self, points: int) -> None:
        self._values = array("d")
        # Where the oldest is, in a ring that is full. Below 0: places that are still free.
        self._at = -points

    def add(self, value: float) -> None:
        if self._at < 0:
            self._values.append(value)
            self._at += 1
            return
        self._values[self._at] = value
        self._at = (self._at + 1) % len(self._values)

    def values(self) -> array[float]:
        at = max(0, self._at)
        return self._values[at:] + self._values[:at]
