"""Makes the pictures of the documentation: `python services/console/tests/console_pictures.py docs/pages/assets`.

The services say made-up numbers; the tree of shards is that of an emulator whose stream was split and merged.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from console_browser import Page, browser_page
from console_world import END

from penstock.aws import AwsOptions
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    LocalStageScheduler,
    StageFailed,
    StageFinished,
    StageStarted,
)
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink
from penstock.services.console.testing import FakeServices, fake_services, running_console, session, shard_stats

POINTS = 120
PAGES = {"console-stream": "stream?name=flights", "console-sinks": "sinks", "console-job": "job?id=delays-2024-11"}


def reshard(emulator: RunningEmulator) -> None:
    """Four shards; the first is split twice, the next two are merged."""
    kinesis = emulator.client()

    def done() -> None:
        while True:
            stream = kinesis.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]
            if stream["StreamStatus"] == "ACTIVE":
                return
            time.sleep(0.05)

    kinesis.create_stream(StreamName="flights", ShardCount=4)
    done()
    for shard, at in ((0, 2**125), (4, 2**124)):
        kinesis.split_shard(StreamName="flights", ShardToSplit=f"shardId-{shard:012d}", NewStartingHashKey=str(at))
        done()
    kinesis.merge_shards(
        StreamName="flights", ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    done()


def graph() -> JobGraph:
    """Two tables that are made once, and a live join with them."""
    graph = JobGraph("delays with weather")
    for table, kept in (("weather.csv", "weather per day"), ("airports.csv", "airport names")):
        graph.add_source(table, boundedness=Boundedness.BOUNDED, call_site="delays.py:12")
        graph.add_operator(kept, table, keyed=True, window=END, call_site="delays.py:17")
    graph.add_operator(
        "weather by name", "weather per day", "airport names", keyed=True, window=END, call_site="delays.py:24"
    )
    graph.add_source("flights", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("join", "flights", "weather by name")
    graph.add_sink("delays", "join")
    return graph


async def play(stages: LocalStageScheduler) -> None:
    """One of the first two stages is committed, the other has failed for the last time."""
    job = await stages.submit("delays-2024-11", graph(), slots=4)
    first, second = job.deployable[:2]
    await stages.report("delays-2024-11", StageStarted(stage_id=first))
    await asyncio.sleep(1.2)
    await stages.report("delays-2024-11", StageFinished(stage_id=first, rows=26_115, size_bytes=1_240_000))
    await stages.report("delays-2024-11", StageStarted(stage_id=second))
    await asyncio.sleep(0.4)
    error = "FileNotFoundError: s3a://lake/weather/2024-11-20/part-00003.parquet"
    await stages.report("delays-2024-11", StageFailed(stage_id=second, error=error, retryable=False))


async def move(services: FakeServices) -> None:
    """Numbers that change as over a day."""
    tick = 0
    while True:
        tick += 1
        lags = {0: 0, 1: 0, 2: 0, 3: 900 + 700 * math.sin(tick / 5), 4: 0, 5: 400 + 300 * math.cos(tick / 9)}
        lags |= {6: max(0.0, 42_000 * math.sin(tick / 40)), 7: 300 + 250 * math.sin(tick / 3), 8: 1_200.0}
        shards = [
            shard_stats(
                "flights",
                shard,
                millis_behind_latest=int(lag),
                records=(9 - shard) * 41_017 + tick * 90,
                buffered_bytes=int(lag) * 900,
            )
            for shard, lag in lags.items()
        ]
        services.reader.open_sessions = [session("delays-2024-11", shards), session("alerts", shards[3:6])]
        limit = 1_000 + abs(20 * (tick % 40) - 100)
        services.sink.destinations = [
            sink.DestinationStats(
                kind="kinesis",
                destination="delays",
                clients=8,
                limit_messages=limit,
                in_flight_messages=limit - 130,
                buffered_entries=4_200 + tick % 7 * 100,
                records_out=tick * 410,
                bytes_out=int(tick * 280_000 + 300_000 * math.sin(tick / 6)),
                throttled=tick // 40 * 190 + max(0, tick % 40 - 35) * 38,
                dead_lettered=3,
                last_failure="ProvisionedThroughputExceededException: Rate exceeded for shard shardId-000000000000",
            ),
            sink.DestinationStats(
                kind="firehose",
                destination="archive",
                clients=2,
                limit_messages=2_500,
                in_flight_messages=480,
                records_out=tick * 150,
                bytes_out=int(tick * 90_000 + 60_000 * math.cos(tick / 8)),
            ),
        ]
        await asyncio.sleep(0.2)


async def shoot(page: Page, url: str, folder: Path) -> None:
    """Each page in light and dark, as high as it is."""
    for scheme in ("light", "dark"):
        for name, path in PAGES.items():
            await page.look(width=1280, height=600, scheme=scheme)
            await page.go(url + path)
            await page.until("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
            await page.eval("document.querySelector('.status').style.display = 'none'")
            height = await page.eval("Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)")
            await page.look(width=1280, height=height - 24, scheme=scheme)
            found = await page.call("Page.captureScreenshot", format="webp", quality=85)
            await asyncio.to_thread((folder / f"{name}-{scheme}.webp").write_bytes, base64.b64decode(found["data"]))


async def main(folder: Path) -> None:
    """Make the pictures."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    with running_emulator() as emulator:
        await asyncio.to_thread(reshard, emulator)
        options: dict[str, Any] = {
            "aws": AwsOptions(region="us-east-1", endpoint_url=emulator.endpoint_url),
        }
        async with fake_services() as services, running_console(services.endpoints(), **options) as running:
            for consumer, job in (("alerts-job", "alerts"), ("delays-job", "delays-2024-11")):
                await services.acquire("flights", consumer, job)
            moving = asyncio.create_task(move(services))
            await play(services.stages)
            async with browser_page() as page:
                # Until the lines are as long as they get.
                await asyncio.sleep(0.2 * POINTS)
                await shoot(page, running.url, folder)
            moving.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
