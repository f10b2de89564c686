"""Reads a shard and writes what it reads, a round for each line of its standard input.

Run as a program of its own, with the `OTEL_*` variables that it is to be measured with: it answers each line with the
records and the seconds, of all of its threads' processor time and on the clock, until all spans are delivered.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing

from opentelemetry import trace

from benchmarks.reading._frame_clients import CONSUMER_ARN
from penstock.async_sink import KinesisStreamsSink
from penstock.aws import AwsOptions, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    ShardPosition,
    StreamIdentity,
)
from penstock.telemetry import Telemetry, configure


async def copy(source: AwsSession, sink: KinesisStreamsSink, shard_id: str, telemetry: Telemetry) -> str:
    """Once from the shard's begin to its end."""
    config = RecordPublisherConfig(record_publisher=RecordPublisherType.EFO)
    publisher = RecordPublisherFactory().build_record_publisher(config, source, {"flights": CONSUMER_ARN})
    rows = 0
    processor, wall = time.process_time(), time.perf_counter()
    with trace.get_tracer("bench").start_as_current_span("copy"):
        async with sink.create_writer() as writer:
            events = publisher.publish(StreamIdentity("flights"), shard_id, ShardPosition.trim_horizon())
            async with aclosing(events):
                async for event in events:
                    await writer.write_many(event.records.select(["data", "partitionKey"]))
                    rows += event.records.num_rows
            await writer.flush(end_of_input=True)
            if writer.metrics.records_out != rows:
                raise RuntimeError(f"{writer.metrics.records_out} of {rows} records are out")
        await publisher.close()
    telemetry.flush()
    return f"{rows} {time.process_time() - processor} {time.perf_counter() - wall}"


def main(source_endpoint: str, ca_file: str, sink_endpoint: str, shard_id: str) -> None:
    """Go on until standard input ends."""
    telemetry = configure("bench")
    source = AwsSession(emulator_options(source_endpoint, ca_file))
    aws = AwsOptions(region="us-east-1", endpoint_url=sink_endpoint, access_key_id="test", secret_access_key="test")
    sink = KinesisStreamsSink(aws, "s", wire_format="cbor")
    for _ in sys.stdin:
        print(asyncio.run(copy(source, sink, shard_id, telemetry)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
