"""What the tests of pages share: something like a browser, and services with something to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from console_world import World, session, shard_stats, submit

from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink

TOKEN = "a-long-secret-of-the-console-with-32-characters"


@asynccontextmanager
async def browsing(url: str, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Something like a browser."""
    async with aiohttp.ClientSession(url, headers={"Accept": "text/html"}, **options) as http:
        yield http


async def page(http: aiohttp.ClientSession, path: str) -> str:
    async with http.get(f"/{path}") as answer:
        assert answer.status == 200, (path, await answer.text())
        return await answer.text()


async def shown(http: aiohttp.ClientSession, path: str, words: str) -> str:
    """The page, once it has these words."""
    async with asyncio.timeout(20):
        while True:
            async with http.get(f"/{path}") as answer:
                text = await answer.text()
                if answer.status == 200 and words in text:
                    return text
            await asyncio.sleep(0.05)


async def fill(services: World, stream: str = "flights") -> None:
    await services.acquire(stream, "delays-job", "job-1")
    await submit(services, "report")
    shards = [shard_stats(stream, 0, millis_behind_latest=1_500, records=10), shard_stats(stream, 1, losses=3)]
    services.reader.open_sessions = [session("query-1", shards)]
    services.sink.destinations = [
        sink.DestinationStats(
            kind="kinesis",
            destination="delays",
            limit_messages=2_500,
            in_flight_messages=1_800,
            throttled=12,
            dead_lettered=4,
            rejected=1,
            last_failure="ValidationException: too long",
            held_seconds=42.0,
            held_attempts=17,
            held_reason="back_off",
            held_error_code="InternalFailure",
        )
    ]
