"""Consumers as a table for people, or as JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from penstock.registration import Consumer

_HEADINGS: Final = ("STREAM", "CONSUMER", "OWNER", "AGE", "TOKEN", "ENDS IN", "REGISTRATION")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def age(seconds: float) -> str:
    """The two largest units: `3d 4h`, `5m 10s`, `0s`."""
    rest = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def _row(consumer: Consumer) -> tuple[str, ...]:
    lease = consumer.lease
    held = ("-", "-", "-")
    if lease is not None:
        held = (lease.job_id, str(lease.fencing_token), age(lease.time_to_live_seconds))
    owner, token, ends_in = held
    registration = "ours" if consumer.registration_is_ours else "not ours"
    return (
        consumer.stream_name,
        consumer.consumer_name,
        owner,
        age(consumer.age_seconds),
        token,
        ends_in,
        registration,
    )


def table(consumers: Iterable[Consumer]) -> str:
    """One line per consumer under a line of headings, columns aligned."""
    rows = [_HEADINGS, *map(_row, consumers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(line.rstrip() + "\n" for line in lines)


def json_lines(consumers: Iterable[Consumer]) -> str:
    """One JSON object per consumer and line, with all fields."""
    return "".join(json.dumps(asdict(consumer)) + "\n" for consumer in consumers)
