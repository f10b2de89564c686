"""The time inside a sequence number."""

from __future__ import annotations

_BITS = 186
_ARRIVAL_SHIFT = 36
_ARRIVAL_MASK = (1 << 36) - 1
_EARLIEST = 1_300_000_000
_LATEST = 1 << 33


def arrival_seconds(sequence_number: str) -> int | None:
    """Give the second, since the epoch, at which a sequence number was drawn; None when it does not look like it.

    Sequence numbers of the present version have 186 bits and carry that second in bits 36 to 71. That is seen in all of
    them, but promised nowhere: use it to warn, never to decide what is read.
    """
    number = int(sequence_number)
    seconds = (number >> _ARRIVAL_SHIFT) & _ARRIVAL_MASK
    return seconds if number.bit_length() == _BITS and _EARLIEST < seconds < _LATEST else None
