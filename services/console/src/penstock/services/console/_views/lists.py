"""The rows of the pages on consumers, readers and sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.registration import ConsumerState
from penstock.services.console._values import lag_seconds, name_of, sink_series
from penstock.services.console._views.streams import Untaken, untaken

if TYPE_CHECKING:
    from penstock.efo_consumer import ShardStats
    from penstock.registration import Consumer
    from penstock.services.console._values import DriverReader, SinkDestination
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
        """Whether it costs money and no job reads by it."""
        return self.consumer.lease is None and self.consumer.state in (None, ConsumerState.ACTIVE)


def consumer_rows(view: View) -> list[ConsumerRow]:
    """One entry per consumer, ordered by stream and name."""
    return [_consumer_row(view, consumer) for consumer in view.snapshot.consumers]


def total_per_hour(rows: list[ConsumerRow]) -> float | None:
    """US dollars an hour of those whose cost is known; None where none is."""
    known = [row.cost_per_hour for row in rows if row.cost_per_hour is not None]
    return sum(known) if known else None


def _consumer_row(view: View, consumer: Consumer) -> ConsumerRow:
    price = view.settings.consumer_shard_hour_usd
    listed = view.snapshot.listed(consumer.stream_name)
    shards = None if listed is None else sum(shard.is_open for shard in listed)
    per_hour = consumer.cost_per_hour_usd if shards is None else shards * price
    hours = None if shards is None else consumer.age_seconds / 3_600 * shards
    so_far = None if per_hour is None else per_hour * consumer.age_seconds / 3_600
    return ConsumerRow(consumer=consumer, shards=shards, cost_per_hour=per_hour, shard_hours=hours, cost_so_far=so_far)


@dataclass(frozen=True, kw_only=True)
class RunningReader:
    """A reader of a query.

    Attributes:
        query: what its query, or its session at a service, is called.
        place: where it runs: inside its query's `driver`, on an `executor` or at a `service`.
        address: `host:port`.
        owner: host and process of the driver; empty if unknown.
        streams: names of what it reads.
        shards: how many it follows, or has followed; on an executor, for this query.
        troubled: shards that it cannot read at the moment.
        lag: the largest, in seconds; None when unknown.
        condition: text about the shard with the most trouble.
        untaken: how far the query is behind the reader.
        is_partial: whether the reader has more to say than was looked at; lag and sums are at least what is said here.
        strange_shards: shards that it reports of streams that it did not announce; they are shown nowhere.
        reason: why it does not report more of itself; empty where it does.
        seconds: since it was first announced, or since a service's session was last called.
    """

    query: str
    place: Literal["driver", "executor", "service"]
    address: str
    owner: str
    streams: Sequence[str]
    shards: int
    troubled: int
    lag: float | None
    condition: str
    untaken: Untaken
    is_partial: bool
    strange_shards: int
    reason: str
    seconds: float


def running_readers(view: View) -> list[RunningReader]:
    """Those in trouble first, then those that lag most."""
    rows = [_of_driver(view, one) for answer in view.snapshot.drivers for one in answer.value or ()]
    rows += [
        RunningReader(
            query=session.session_id,
            place="service",
            address=answer.endpoint,
            owner=session.owner,
            streams=sorted({name_of(one.stream_name) for one in session.shards}),
            shards=session.shard_count,
            troubled=sum(one.condition.is_troubled for one in session.shards),
            lag=_lag(session.shards),
            condition=_condition(session.shards),
            untaken=untaken(view, view.snapshot.readings_of(answer.endpoint, [session])),
            is_partial=session.shard_count > len(session.shards),
            strange_shards=0,
            reason="",
            seconds=session.idle_seconds,
        )
        for answer in view.snapshot.readers
        for session in answer.value or ()
    ]
    return sorted(
        rows, key=lambda row: (-row.troubled, -1.0 if row.lag is None else -1.0 - row.lag, row.query, row.address)
    )


def _of_driver(view: View, reader: DriverReader) -> RunningReader:
    # For a reader on an executor they are a part.
    shards = [] if reader.on_executor else [one for session in reader.sessions for one in session.shards]
    return RunningReader(
        query=reader.query or reader.job_id,
        place="executor" if reader.on_executor else "driver",
        address=reader.address,
        owner=reader.owner,
        streams=sorted({name_of(one) for one in reader.stream_names}),
        shards=sum(one.shard_count for one in reader.sessions) if shards else reader.shards,
        troubled=sum(one.condition.is_troubled for one in shards) if shards else reader.troubled_shards,
        lag=_lag(shards) if shards else lag_seconds(reader.millis_behind_latest),
        condition=_condition(shards) if shards else reader.condition,
        untaken=untaken(view, view.snapshot.readings_of(reader.address, reader.sessions)),
        is_partial=reader.left_out > 0 or any(one.shard_count > len(one.shards) for one in reader.sessions),
        strange_shards=reader.strange_shards,
        reason=reader.reason,
        seconds=reader.age_seconds,
    )


def _lag(shards: Sequence[ShardStats]) -> float | None:
    lags = [lag_seconds(one.millis_behind_latest) for one in shards]
    return max((one for one in lags if one is not None), default=None)


def _condition(shards: Sequence[ShardStats]) -> str:
    worst = min(
        (one.condition for one in shards if one.condition.is_troubled), key=lambda c: c.since_millis, default=None
    )
    if worst is not None:
        return str(worst)
    return ", ".join(sorted({one.condition.state.value for one in shards}))


@dataclass(frozen=True, kw_only=True)
class SinkRow:
    """A destination of a gateway; rates are None where not known."""

    endpoint: str
    sink: SinkDestination
    records_per_second: float | None
    bytes_per_second: float | None
    throttled_per_second: float | None
    lost_per_second: float | None


def sink_rows(view: View) -> list[SinkRow]:
    """One entry per gateway and destination, in the order of the gateways."""
    return [_sink_row(view, answer.endpoint, sink) for answer in view.snapshot.sinks for sink in answer.value or ()]


def _sink_row(view: View, endpoint: str, sink: SinkDestination) -> SinkRow:
    def series(what: str) -> tuple[str, ...]:
        return sink_series(endpoint, sink, what)

    rates = view.snapshot.rates
    return SinkRow(
        endpoint=endpoint,
        sink=sink,
        records_per_second=rates.get(series("records")),
        bytes_per_second=rates.get(series("bytes")),
        throttled_per_second=rates.get(series("throttled")),
        lost_per_second=rates.get(series("lost")),
    )
