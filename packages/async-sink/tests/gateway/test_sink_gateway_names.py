"""A stream has one writer in a gateway, and so one rate, whether clients give its name or its ARN."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from penstock.async_sink import AsyncSinkConfig, KinesisStreamsSink, SharedDestinations, SinkGatewayServicer
from penstock.async_sink.errors import DestinationError
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

CONFIG = AsyncSinkConfig(max_time_in_buffer=timedelta(milliseconds=5))


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        for name in ("flights", "trains"):
            client.create_stream(StreamName=name, ShardCount=1)
            client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        yield emulator


def arn_of(emulator: RunningEmulator) -> str:
    described = emulator.client().describe_stream_summary(StreamName="flights")
    return str(described["StreamDescriptionSummary"]["StreamARN"])


def serving(emulator: RunningEmulator, **options: float) -> SharedDestinations:
    aws = emulator_options(emulator.endpoint_url)

    def sink(name: str) -> KinesisStreamsSink:
        if name.startswith("arn:"):
            return KinesisStreamsSink(aws, stream_arn=name, config=CONFIG)
        return KinesisStreamsSink(aws, name, config=CONFIG)

    return SharedDestinations(sink, **options)  # type: ignore[arg-type]  # seconds


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_stream_is_opened_once_by_its_name_and_its_arn(emulator: RunningEmulator, at_once: bool) -> None:
    """It counts as one destination, also in the statistics."""
    destinations, names = serving(emulator), ("flights", arn_of(emulator))
    if at_once:
        first, second = await asyncio.gather(*(destinations.get("kinesis", name) for name in names))
    else:
        first, second = [await destinations.get("kinesis", name) for name in names]
    assert first is second
    assert await destinations.get("kinesis", "trains") is not first
    stats = await SinkGatewayServicer(destinations).Stats(pb.StatsRequest(), None)
    assert len(stats.destinations) == 2
    await destinations.close(1.0)


async def test_a_failed_stream_is_opened_again_for_both_names(emulator: RunningEmulator) -> None:
    """Neither name keeps the writer that has ended."""
    destinations, names = serving(emulator), ("flights", arn_of(emulator))
    failed, _ = [await destinations.get("kinesis", name) for name in names]
    failed.writer.fail(DestinationError("flights", "AccessDeniedException", "no"))
    first, second = [await destinations.get("kinesis", name) for name in names]
    assert first is second
    assert first.failure is None
    await destinations.close(1.0)
