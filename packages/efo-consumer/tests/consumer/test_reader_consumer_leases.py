"""A consumer's stream consumers are made side by side, and are released whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import Consumer
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator

STREAMS = ("orders", "returns", "visits")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def emulator(clock: ManualClock) -> Iterator[RunningEmulator]:
    delays = {"consumer_creation_delay": timedelta(hours=1), "consumer_deletion_delay": timedelta(0)}
    with running_emulator(clock=clock, enforce_limits=False, **delays) as running:
        for stream in STREAMS:
            running.client().create_stream(StreamName=stream, ShardCount=1)
        yield running


def states(emulator: RunningEmulator) -> list[str]:
    client = emulator.client()
    arns = [
        client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"] for name in STREAMS
    ]
    consumers = [one for arn in arns for one in client.list_stream_consumers(StreamARN=arn)["Consumers"]]
    return [one["ConsumerStatus"] for one in consumers]


async def until_all_are(emulator: RunningEmulator, state: str) -> None:
    async with asyncio.timeout(120):
        while await asyncio.to_thread(states, emulator) != [state] * len(STREAMS):  # noqa: ASYNC110  # the service has no event
            await asyncio.sleep(0.05)


def consumer(emulator: RunningEmulator, folder: Path) -> Consumer:
    aws = emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))
    return Consumer(STREAMS, efo="billing", aws=aws, checkpoints=None, registry=folder / "registry.db")


async def test_consumers_of_several_streams_are_made_side_by_side(
    emulator: RunningEmulator, clock: ManualClock, tmp_path: Path
) -> None:
    """All are CREATING at once: a start waits for the slowest, not for the sum."""
    reading = consumer(emulator, tmp_path)
    entering = asyncio.ensure_future(reading.__aenter__())
    await until_all_are(emulator, "CREATING")
    clock.advance(3601)
    async with asyncio.timeout(120):
        await entering
        await reading.__aexit__(None, None, None)


async def test_a_start_that_is_cancelled_lets_go_of_what_it_made(
    emulator: RunningEmulator, clock: ManualClock, tmp_path: Path
) -> None:
    """As by a signal while a consumer is CREATING: none is left to be paid for."""
    entering = asyncio.ensure_future(consumer(emulator, tmp_path).__aenter__())
    await until_all_are(emulator, "CREATING")
    entering.cancel()
    clock.advance(3601)
    async with asyncio.timeout(120):
        with pytest.raises(asyncio.CancelledError):
            await entering
    assert "ACTIVE" not in states(emulator)
