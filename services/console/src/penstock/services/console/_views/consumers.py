"""Consumers and leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.registration import ConsumerState
from penstock.services.console._values import name_of

if TYPE_CHECKING:
    from penstock.registration import Consumer
    from penstock.services.console._views.view import View


@dataclass(frozen=True, kw_only=True)
class ConsumerRow:
    """A consumer, its lease and what it costs.

    Attributes:
        consumer: as the registry reports it.
        shards: open shards of its stream; None where not known.
        cost_per_hour: US dollars; None where not known.
        shard_hours: consumer-shard-hours since it came to the registry, as if the stream always had as many shards.
        cost_so_far: US dollars for those.
        lease_words: who holds it.
    """

    consumer: Consumer
    shards: int | None
    cost_per_hour: float | None
    shard_hours: float | None
    cost_so_far: float | None

    @property
    def stream(self) -> str:
        """The name of its stream, which may go by its ARN."""
        return name_of(self.consumer.stream_name)

    @property
    def state(self) -> str:
        """With Kinesis, in lower case; `unknown` where it was not asked."""
        return "unknown" if self.consumer.state is None else self.consumer.state.value.lower()

    @property
    def is_idle(self) -> bool:
        """Whether it costs money and nobody reads by it."""
        return self.consumer.lease is None and self.consumer.state in (None, ConsumerState.ACTIVE)


def consumer_rows(view: View) -> list[ConsumerRow]:
    """One entry per consumer, ordered by stream and name."""
    return [_row(view, consumer) for consumer in view.snapshot.consumers]


def total_per_hour(rows: list[ConsumerRow]) -> float | None:
    """US dollars an hour of those whose cost is known; None where none is."""
    known = [row.cost_per_hour for row in rows if row.cost_per_hour is not None]
    return sum(known) if known else None


def _row(view: View, consumer: Consumer) -> ConsumerRow:
    price = view.settings.consumer_shard_hour_usd
    listed = view.snapshot.listed(consumer.stream_name)
    shards = None if listed is None else sum(shard.is_open for shard in listed)
    per_hour = consumer.cost_per_hour_usd if shards is None else shards * price
    hours = None if shards is None else consumer.age_seconds / 3_600 * shards
    so_far = None if per_hour is None else per_hour * consumer.age_seconds / 3_600
    return ConsumerRow(consumer=consumer, shards=shards, cost_per_hour=per_hour, shard_hours=hours, cost_so_far=so_far)
