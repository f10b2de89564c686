"""Whether metrics tell shards apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from penstock.efo_consumer import WIRE_SCHEMA, PublisherMetrics, ShardCondition, ShardEvent, ShardState
from penstock.efo_consumer._model.shards import PER_SHARD, per_shard
from penstock.efo_consumer._publish.metrics import watched


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    per_shard.cache_clear()
    yield
    per_shard.cache_clear()


@dataclass
class Followed:
    """A shard as metrics see it."""

    millis_behind_latest: int | None
    condition: ShardCondition


def gauges(stream: str) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """The metrics of a stream with two followed shards, one of them throttled, and one that is gone."""
    reader = InMemoryMetricReader()
    PublisherMetrics(MeterProvider([reader]).get_meter("test"))
    well, throttled = ShardCondition(ShardState.CAUGHT_UP), ShardCondition(ShardState.THROTTLED)
    with ExitStack() as followed:
        for shard_id, millis, condition in (("a", 700, throttled), ("b", 20, well), ("c", None, well)):
            followed.enter_context(watched(Followed(millis, condition), stream=stream, shard_id=shard_id))
        with watched(Followed(9000, well), stream=stream, shard_id="d"):
            pass
        data = reader.get_metrics_data()
    assert data is not None
    found = data.resource_metrics[0].scope_metrics[0].metrics
    return {
        one.name: [
            (dict(point.attributes or {}), getattr(point, "value", 0))
            for point in one.data.data_points
            if (point.attributes or {}).get("stream") == stream
        ]
        for one in found
    }


def reads(stream: str) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """The metrics of three events of two shards, which two publishers read in threads of their own."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    batch = pa.RecordBatch.from_pylist([{"data": b"12345"}, {"data": b"67890"}], schema=WIRE_SCHEMA)

    def read(shard_id: str, events: int) -> None:
        metrics = PublisherMetrics(meter)
        for _ in range(events):
            metrics.event_read(ShardEvent(batch, "1", 0, (), 10), stream=stream, shard_id=shard_id)

    threads = [threading.Thread(target=read, args=arguments) for arguments in (("a", 1), ("b", 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = reader.get_metrics_data()
    assert data is not None
    found = data.resource_metrics[0].scope_metrics[0].metrics
    return {
        one.name: sorted(
            ((dict(point.attributes or {}), getattr(point, "value", getattr(point, "sum", 0))) for point in points),
            key=str,
        )
        for one in found
        if (points := one.data.data_points)
    }


def test_what_was_read_is_counted_by_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, whichever publisher reads; another provider's meter starts at nothing."""
    monkeypatch.delenv(PER_SHARD, raising=False)
    whole = {"stream": "counted"}
    for _ in range(2):
        assert reads("counted") == {
            "bytesread": [(whole, 30)], "recordsread": [(whole, 6)], "bytesperread": [(whole, 30)],
            "recordsperread": [(whole, 6)],
        }  # fmt: skip


def test_shards_are_counted_by_what_they_are_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One time series per state, also for those that no shard is in."""
    monkeypatch.delenv(PER_SHARD, raising=False)
    found = {one["condition"]: value for one, value in gauges("by condition")["shardsbycondition"]}
    assert found == {
        "reading": 0, "caught up": 2, "throttled": 1, "refused": 0, "resubscribing": 0, "starved": 0,
        "waiting for slower shards": 0, "stuck at its end": 0,
    }  # fmt: skip


def test_shards_are_told_apart_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a variable of the environment, which Spark's processes have too."""
    monkeypatch.setenv(PER_SHARD, "true")
    assert gauges("by shard")["millisbehindlatest"] == [
        ({"stream": "by shard", "shard": "a"}, 700),
        ({"stream": "by shard", "shard": "b"}, 20),
    ]
