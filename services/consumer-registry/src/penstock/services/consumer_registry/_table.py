"""Consumers and orphans as tables for people, or as JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from penstock.registration import Consumer, Orphan

_CONSUMER_HEADINGS: Final = (
    "STREAM",
    "CONSUMER",
    "STATE",
    "OWNER",
    "HELD",
    "TOKEN",
    "ENDS IN",
    "REGISTRATION",
    "AGE",
    "USD/H",
)
_ORPHAN_HEADINGS: Final = ("STREAM", "CONSUMER", "STATE", "USD/H", "FATE", "WHY")
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


def consumer_table(consumers: Iterable[Consumer]) -> str:
    """One line per consumer under a line of headings, columns aligned. What is not known is `?`, what is not, `-`."""
    return _table(_CONSUMER_HEADINGS, map(_consumer_row, consumers))


def orphan_table(orphans: Iterable[Orphan]) -> str:
    """One line per orphan, and what becomes of it."""
    return _table(_ORPHAN_HEADINGS, map(_orphan_row, orphans))


def json_lines(things: Iterable[Consumer | Orphan]) -> str:
    """One JSON object per consumer or orphan and line, with all fields."""
    return "".join(json.dumps(asdict(thing)) + "\n" for thing in things)


def _consumer_row(consumer: Consumer) -> tuple[str, ...]:
    lease = consumer.lease
    held = ("-", "-", "-", "-")
    if lease is not None:
        held = (lease.job_id, age(consumer.held_seconds), str(lease.fencing_token), age(lease.time_to_live_seconds))
    registration = "ours" if consumer.registration_is_ours else "not ours"
    state, cost = _state(consumer), _cost(consumer)
    return (consumer.stream_name, consumer.consumer_name, state, *held, registration, age(consumer.age_seconds), cost)


def _orphan_row(orphan: Orphan) -> tuple[str, ...]:
    consumer = orphan.consumer
    state, cost = _state(consumer), _cost(consumer)
    return (consumer.stream_name, consumer.consumer_name, state, cost, orphan.fate.value, orphan.reason)


def _state(consumer: Consumer) -> str:
    return "?" if consumer.state is None else consumer.state.value


def _cost(consumer: Consumer) -> str:
    return "?" if consumer.cost_per_hour_usd is None else f"{consumer.cost_per_hour_usd:.3f}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "".join(line.rstrip() + "\n" for line in padded)
