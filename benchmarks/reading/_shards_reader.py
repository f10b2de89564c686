"""One reader process for `shards`: subscribes to shards of the frame server, and says what that costs."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import aclosing
from pathlib import Path

from benchmarks.reading._frame_clients import CONSUMER_ARN
from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    RecordPublisher,
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    ShardPosition,
    StreamIdentity,
    SubscribeTransportType,
)

_STREAM = StreamIdentity("flights")


class Counts:
    """What all shards brought."""

    def __init__(self) -> None:
        self.rows = 0
        self.begun: set[str] = set()


async def _follow(publisher: RecordPublisher, shard_id: str, counts: Counts) -> None:
    async with aclosing(publisher.publish(_STREAM, shard_id, ShardPosition.trim_horizon())) as events:
        async for event in events:
            counts.rows += event.records.num_rows
            counts.begun.add(shard_id)


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


async def _measure(session: AwsSession, shards: int, seconds: float) -> dict[str, float]:
    config = RecordPublisherConfig(
        record_publisher=RecordPublisherType.EFO, subscribe_transport=SubscribeTransportType.HTTP2
    )
    publisher = RecordPublisherFactory().build_record_publisher(config, session, {"flights": CONSUMER_ARN})
    counts = Counts()
    # The first subscription brings what every process needs: TLS, a connection, the decoder.
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(120):
        followers = [tasks.create_task(_follow(publisher, "shardId-000000000000", counts), name="follow 0")]
        while not counts.begun:  # noqa: ASYNC110  # a measurement, not a program
            await asyncio.sleep(0.1)
        first_bytes, began = _resident_bytes(), time.perf_counter()
        for index in range(1, shards):
            shard_id = f"shardId-000000{index:06}"
            followers.append(tasks.create_task(_follow(publisher, shard_id, counts), name=f"follow {index}"))
        while len(counts.begun) < shards:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        begin_seconds = time.perf_counter() - began
        rows, cpu, wall = counts.rows, time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        cpu, wall, rows = time.process_time() - cpu, time.perf_counter() - wall, counts.rows - rows
        grown_bytes = _resident_bytes() - first_bytes
        for follower in followers:
            follower.cancel()
    await publisher.close()
    return {
        "cores": cpu / wall,
        "records_per_second": rows / wall,
        "cpu_per_record": cpu / rows if rows else 0.0,
        "begin_seconds": begin_seconds,
        "bytes_per_shard": grown_bytes / max(1, shards - 1),
        "resident_bytes": float(_resident_bytes()),
    }


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("ca_file")
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    session = AwsSession(emulator_options(arguments.endpoint, arguments.ca_file))
    print(json.dumps(asyncio.run(_measure(session, arguments.shards, arguments.seconds))))


if __name__ == "__main__":
    main()
