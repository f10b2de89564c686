"""What readers count, as an application's SDK sees it."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import asyncio, json
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from penstock.efo_consumer import LocalShardReader, OpenRequest, ReaderConfig, ranges_between
from penstock.efo_consumer.testing import FakeKinesis

sdk = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([sdk]))


def values():
    found = {}
    for resource in sdk.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = sum(point.value for point in metric.data.data_points if hasattr(point, "value"))
    return found


async def main():
    kinesis = FakeKinesis(event_records=1)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    kinesis.put("s", shard, 10, size=100_000)
    config = ReaderConfig(buffer_bytes_per_shard=250_000, buffer_bytes=250_000)
    async with LocalShardReader(kinesis, config) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        while kinesis.events_taken < 3:
            await asyncio.sleep(0.01)
        full = values()
        position, rows = start, 0
        while rows < 10:
            found = await reader.positions("q", epoch, position, wait_seconds=5)
            async for batch in reader.read_range("q", ranges_between(position, found.positions)):
                rows += batch.num_rows
            position = found.positions
            await reader.commit("q", epoch, position)
        print(json.dumps([full, values()]))


asyncio.run(main())
"""


def test_memory_and_back_pressure_are_told() -> None:
    """The gauge shows a full buffer, and an empty one after the commit; the time without room is counted."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    # The SDK writes names in lower case.
    full, empty = json.loads(done.stdout)
    assert full["bufferedbytes"] >= 200_000
    assert empty["bufferedbytes"] == 0
    assert empty["backpressureseconds"] > 0
