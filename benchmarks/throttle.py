"""Goodput against a stream's real limits: eight shards, offered more than they take.

The emulator enforces 1,000 records/s and 1 MiB/s per shard, in a process of its own. A writer is offered three times
the limit, as far as it takes it; what the stream accepted and refused is counted after a warm-up.
"""

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness import Case
from penstock.async_sink import (
    AsyncSinkConfig,
    KinesisRequestEntry,
    KinesisStreamsSink,
    RateLimitingStrategy,
    aimd_strategy,
    kinesis_strategy,
)
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import kinesis_client

SHARDS = 8
LIMIT = SHARDS * 1_000
_OFFERED = 3 * LIMIT
_WARM_UP_SECONDS = 5.0
_SECONDS = 60.0
_RECORD = b"x" * 100
_ASYNC_KINESIS = "3.0.1"
_PEER = Path(__file__).with_name("async_kinesis_load.py")
Strategy = Callable[[AsyncSinkConfig], RateLimitingStrategy]


@dataclass(frozen=True)
class Load:
    """What a stream did in the seconds that count."""

    accepted_per_second: float
    throttled_share: float
    """Of the records that were sent."""
    written: int
    acknowledged: int


@contextmanager
def stream_with_limits(shards: int = SHARDS) -> Iterator[str]:
    """The endpoint of an emulator in a process of its own, with a stream `load`."""
    command = [sys.executable, "-m", "penstock.emulator", "--no-tls", "--exit-with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = str(json.loads(process.stdout.readline())["endpoint_url"])
        try:
            client = kinesis_client(endpoint)
            client.create_stream(StreamName="load", ShardCount=shards)
            while (
                client.describe_stream_summary(StreamName="load")["StreamDescriptionSummary"]["StreamStatus"]
                != "ACTIVE"
            ):
                time.sleep(0.05)
            yield endpoint
        finally:
            process.kill()


async def measure(endpoint: str, strategy: Strategy, seconds: float) -> Load:
    """Write for the warm-up and the seconds that count, at three times the limit."""
    sink = KinesisStreamsSink(emulator_options(endpoint), "load", strategy=strategy)
    async with sink.create_writer() as writer:
        metrics = writer.metrics
        keys = itertools.count()
        began = time.monotonic()
        before = (0.0, 0, 0, 0)

        async def write() -> None:
            while True:
                ahead = writer.records_written - (time.monotonic() - began) * _OFFERED
                if ahead > 0:
                    await asyncio.sleep(ahead / _OFFERED + 0.005)
                await writer.write_many([KinesisRequestEntry(_RECORD, f"key-{next(keys)}") for _ in range(100)])

        writing = asyncio.create_task(write(), name="write")
        try:
            await asyncio.sleep(_WARM_UP_SECONDS)
            before = (time.monotonic(), metrics.records_out, metrics.throttled, metrics.submitted)
            await asyncio.sleep(seconds)
            after = (time.monotonic(), metrics.records_out, metrics.throttled, metrics.submitted)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        await writer.flush(end_of_input=True)
    elapsed, accepted, throttled, sent = (b - a for a, b in zip(before, after, strict=True))
    return Load(accepted / elapsed, throttled / max(1, sent), writer.records_written, metrics.records_out)


def measure_async_kinesis(endpoint: str, seconds: float) -> Load:
    """The same by async-kinesis's Producer, in an environment of its own; it says nothing of single records."""
    uv = shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv is needed to run async-kinesis in an environment of its own")
    command = [uv, "run", "--quiet", "--no-project", "--with", f"async-kinesis=={_ASYNC_KINESIS}", "python"]
    command += [str(_PEER), endpoint, str(_WARM_UP_SECONDS), str(seconds)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 120).stdout
    return Load(**json.loads(answer), written=0, acknowledged=0)


def run(rounds: int) -> Iterator[Case]:
    """Goodput over the limit, and the share of records that were throttled, in turn with the peers."""
    loads: dict[str, list[Load]] = {"penstock": [], "AIMD x0.5": [], "async-kinesis": []}
    for _ in range(rounds):
        for name, strategy in (("penstock", kinesis_strategy), ("AIMD x0.5", aimd_strategy)):
            with stream_with_limits() as endpoint:
                load = asyncio.run(measure(endpoint, strategy, _SECONDS))
            if load.acknowledged != load.written:
                raise RuntimeError(f"{name}: {load.written} records written, {load.acknowledged} acknowledged")
            loads[name].append(load)
        with stream_with_limits() as endpoint:
            loads["async-kinesis"].append(measure_async_kinesis(endpoint, _SECONDS))
    goodput = {name: [load.accepted_per_second / LIMIT for load in each] for name, each in loads.items()}
    throttled = [load.throttled_share for load in loads["penstock"]]
    ours, ones = goodput["penstock"], [1.0] * rounds
    yield Case(name="goodput-over-limit", peer_name="the limit", unit="", ours=ours, peers=ones)
    yield Case(name="throttled-share", peer_name="all records sent", unit="", ours=throttled, peers=ones)
    for name, slug in (("AIMD x0.5", "aimd-half"), ("async-kinesis", "async-kinesis")):
        yield Case(name=f"goodput-over-{slug}", peer_name=name, unit="of the limit", ours=ours, peers=goodput[name])
        shares = [load.throttled_share for load in loads[name]]
        yield Case(name=f"throttled-share-of-{slug}", peer_name="all records sent", unit="", ours=shares, peers=ones)
