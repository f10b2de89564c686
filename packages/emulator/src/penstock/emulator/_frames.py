"""Frames of the event stream that several subscribers need."""

from __future__ import annotations

from typing import TypeAlias

Built: TypeAlias = tuple[bytes, int, int]
"""The first part of a frame, the CRC up to there, and the length of the payload that is still to come."""

# Of up to 1.5 MB each, for each shard with two subscribers or more.
_KEPT = 4


class FrameCache:
    """The frames that the subscribers of one shard need again: those of the last few batches."""

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
