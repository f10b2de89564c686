"""Whether metrics tell shards apart."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from penstock.efo_consumer import WIRE_SCHEMA, PublisherMetrics, Shard, ShardEvent
from penstock.efo_consumer._model.metric_attributes import PER_SHARD, per_shard


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    per_shard.cache_clear()
    yield
    per_shard.cache_clear()


def event(millis: int, *, is_end: bool = False) -> ShardEvent:
    children = (Shard("child", ("c",), "0", "9"),) if is_end else ()
    return ShardEvent(pa.RecordBatch.from_pylist([], schema=WIRE_SCHEMA), "1", millis, children, 0)


def lags(stream: str) -> list[tuple[dict[str, Any], float]]:
    """What is told of a stream after two shards were read, one of them further behind, and a third one ended."""
    reader = InMemoryMetricReader()
    metrics = PublisherMetrics(MeterProvider([reader]).get_meter("test"))
    for shard_id, millis in {"a": 700, "b": 20, "c": 9000}.items():
        metrics.event_read(event(millis), stream=stream, shard_id=shard_id)
    metrics.event_read(event(9000, is_end=True), stream=stream, shard_id="c")
    data = reader.get_metrics_data()
    assert data is not None
    (found,) = data.resource_metrics[0].scope_metrics[0].metrics
    points = [(dict(one.attributes or {}), one.value) for one in found.data.data_points]
    for shard_id in "ab":
        metrics.shard_left(stream=stream, shard_id=shard_id)
    return [one for one in points if one[0]["stream"] == stream]


def reads(stream: str) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """What is told of three events of two shards, which two publishers have read in threads of their own."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    batch = pa.RecordBatch.from_pylist([{"data": b"12345"}, {"data": b"67890"}], schema=WIRE_SCHEMA)

    def read(shard_id: str, events: int) -> None:
        metrics = PublisherMetrics(meter)
        for _ in range(events):
            metrics.event_read(ShardEvent(batch, "1", 0, (), 10), stream=stream, shard_id=shard_id)
        metrics.shard_left(stream=stream, shard_id=shard_id)

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


def test_what_was_read_is_counted_by_shard_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the lag is."""
    monkeypatch.setenv(PER_SHARD, "true")
    found = reads("counted")
    assert found["recordsread"] == [({"stream": "counted", "shard": "a"}, 2), ({"stream": "counted", "shard": "b"}, 4)]
    assert found["bytesread"] == [({"stream": "counted", "shard": "a"}, 10), ({"stream": "counted", "shard": "b"}, 20)]


def test_a_stream_is_one_time_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lag is the largest of the shards that are followed, not the last one that was told."""
    monkeypatch.delenv(PER_SHARD, raising=False)
    assert lags("one series") == [({"stream": "one series"}, 700)]


def test_shards_are_told_apart_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a variable of the environment, which Spark's processes have too."""
    monkeypatch.setenv(PER_SHARD, "true")
    assert lags("by shard") == [
        ({"stream": "by shard", "shard": "a"}, 700),
        ({"stream": "by shard", "shard": "b"}, 20),
    ]


def test_a_forked_child_counts_although_its_parent_was_counting() -> None:
    """A thread that is not there any more cannot hold the child's reading up."""
    code = (
        "import os\nfrom penstock.efo_consumer._publish import metrics as counting\ncounting._lock.acquire()\n"
        "if os.fork() == 0:\n    os._exit(0 if counting._lock.acquire(timeout=5) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
