"""Readers: inside drivers, on executors, and those of shard-reader services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.services.console._sources.history import lag_seconds
from penstock.services.console._values import name_of

if TYPE_CHECKING:
    from penstock.efo_consumer import ShardStats
    from penstock.services.console._values import DriverReader
    from penstock.services.console._views.view import View


@dataclass(frozen=True, kw_only=True)
class RunningReader:
    """A reader of a query.

    Attributes:
        query: what its query, or its session at a service, is called.
        place: where it runs: inside its query's `driver`, on an `executor` or at a `service`.
        address: `host:port`.
        owner: host and process of the driver; empty if unknown.
        streams: names of what it reads.
        shards: that it follows, or has followed; of one on an executor, those of this query.
        troubled: shards that it cannot read at the moment.
        lag: the largest, in seconds; None when unknown.
        condition: of the shard with the most trouble, in words.
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
    reason: str
    seconds: float


def running_readers(view: View) -> list[RunningReader]:
    """Those in trouble first, then those that lag most."""
    rows = [_of_driver(one) for answer in view.snapshot.drivers for one in answer.value or ()]
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
            reason="",
            seconds=session.idle_seconds,
        )
        for answer in view.snapshot.readers
        for session in answer.value or ()
    ]
    return sorted(
        rows, key=lambda row: (-row.troubled, -1.0 if row.lag is None else -1.0 - row.lag, row.query, row.address)
    )


def _of_driver(reader: DriverReader) -> RunningReader:
    # Of one on an executor they are a part.
    shards = [] if reader.on_executor else [one for session in reader.sessions for one in session.shards]
    return RunningReader(
        query=reader.query or reader.job_id,
        place="executor" if reader.on_executor else "driver",
        address=reader.address,
        owner=reader.owner,
        streams=sorted({name_of(one) for one in reader.stream_names}),
        shards=len(shards) or reader.shards,
        troubled=sum(one.condition.is_troubled for one in shards) if shards else reader.troubled_shards,
        lag=_lag(shards) if shards else lag_seconds(reader.millis_behind_latest),
        condition=_condition(shards) if shards else reader.condition,
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
