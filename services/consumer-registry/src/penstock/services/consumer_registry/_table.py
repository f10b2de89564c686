"""Consumers and orphans as rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from penstock.registration import Consumer, Orphan
from penstock.terminal import Cell, Column, Row, Table, age

_CONSUMER_COLUMNS: Final = (
    *map(Column, ("STREAM", "CONSUMER", "STATE", "OWNER", "HELD", "TOKEN", "ENDS IN", "REGISTRATION", "AGE")),
    Column("USD/H", justify="right"),
    Column("USD/MONTH", justify="right"),
)
_ORPHAN_COLUMNS: Final = (
    *map(Column, ("STREAM", "CONSUMER", "STATE")),
    Column("USD/H", justify="right"),
    *map(Column, ("FATE", "WHY")),
)
_STATES: Final = {"ACTIVE": "green", "CREATING": "cyan", "DELETING": "yellow"}
_FATES: Final = {"ended": "green", "due": "yellow", "failed": "red"}
MONTH_HOURS: Final = 730
"""As AWS's own price lists count."""


def consumer_table(consumers: Iterable[Consumer]) -> Table:
    """One row per consumer. What is not known is `?`, what is not, `-`."""
    consumers = list(consumers)
    rows = [_consumer_row(consumer, _stream_of(consumer, consumers)) for consumer in consumers]
    return Table(columns=_CONSUMER_COLUMNS, rows=rows, empty="no consumers")


def orphan_table(orphans: Iterable[Orphan]) -> Table:
    """One row per orphan, and what becomes of it."""
    orphans = list(orphans)
    consumers = [orphan.consumer for orphan in orphans]
    rows = [_orphan_row(orphan, _stream_of(orphan.consumer, consumers)) for orphan in orphans]
    return Table(columns=_ORPHAN_COLUMNS, rows=rows, empty="no consumer without a lease")


def _stream_of(consumer: Consumer, consumers: Iterable[Consumer]) -> str:
    """The stream's name; its ARN where another stream of the table has the same name."""
    arns = {one.stream_arn for one in consumers if one.stream_name == consumer.stream_name}
    return consumer.stream_name if len(arns) == 1 else consumer.stream_arn


def _consumer_row(consumer: Consumer, stream: str) -> Row:
    lease = consumer.lease
    held: tuple[Cell | str, ...] = (Cell("-", style="dim"),) * 4
    if lease is not None:
        held = (lease.job_id, age(consumer.held_seconds), str(lease.fencing_token), age(lease.time_to_live_seconds))
    registration = "ours" if consumer.registration_is_ours else "not ours"
    cells: list[Cell | str] = [
        stream,
        consumer.consumer_name,
        _state(consumer),
        *held,
        registration,
        age(consumer.age_seconds),
        _cost(consumer, 1, 3),
        # Paid for as long as it is registered, also by nobody: seen per month, it is worth a look.
        _cost(consumer, MONTH_HOURS, 2),
    ]
    return Row(cells, {**asdict(consumer), "cost_per_month_usd": _per_month(consumer)})


def _orphan_row(orphan: Orphan, stream: str) -> Row:
    consumer = orphan.consumer
    fate = Cell(orphan.fate.value, style=_FATES.get(orphan.fate.value, ""))
    cells: list[Cell | str] = [
        stream,
        consumer.consumer_name,
        _state(consumer),
        _cost(consumer, 1, 3),
        fate,
        orphan.reason,
    ]
    return Row(cells, asdict(orphan))


def _state(consumer: Consumer) -> Cell:
    if consumer.state is None:
        return Cell("?", style="dim")
    return Cell(consumer.state.value, style=_STATES.get(consumer.state.value, ""))


def _cost(consumer: Consumer, hours: int, digits: int) -> Cell:
    cost = consumer.cost_per_hour_usd
    return Cell("?", style="dim") if cost is None else Cell(f"{cost * hours:.{digits}f}")


def _per_month(consumer: Consumer) -> float | None:
    return None if consumer.cost_per_hour_usd is None else round(consumer.cost_per_hour_usd * MONTH_HOURS, 2)
