"""A stream has one writer in a gateway, and so one rate, whether clients give its name or its ARN."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from penstock.async_sink import AsyncSinkConfig, KinesisStreamsSink
from penstock.async_sink._gateway import destinations as gateway_destinations
from penstock.async_sink.errors import DestinationError, GatewayRefusedError
from penstock.async_sink.gateway import SharedDestinations, SinkGatewayServicer
from penstock.async_sink.testing import wait_until
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
    """It counts as one destination, in the statistics too."""
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


async def test_the_second_name_of_a_stream_needs_no_place(emulator: RunningEmulator) -> None:
    """Also where as many destinations are needed as may be open; another stream has none."""
    destinations = serving(emulator, max_destinations=1)
    first = await destinations.get("kinesis", "flights")
    with first.client("c"):
        assert await destinations.get("kinesis", arn_of(emulator)) is first
        with pytest.raises(GatewayRefusedError):
            await destinations.get("kinesis", "trains")
    assert (await destinations.get("kinesis", "trains")).name == "trains"
    assert len(destinations.all()) == 1
    await destinations.close(1.0)


async def test_a_stream_that_failed_is_opened_anew_for_both(emulator: RunningEmulator) -> None:
    """Neither name keeps the writer that has ended."""
    destinations, names = serving(emulator), ("flights", arn_of(emulator))
    failed, _ = [await destinations.get("kinesis", name) for name in names]
    failed.writer.fail(DestinationError("flights", "AccessDeniedException", "no"))
    first, second = [await destinations.get("kinesis", name) for name in names]
    assert first is second
    assert first.failure is None
    await destinations.close(1.0)


async def test_a_stream_that_is_idle_is_closed_under_both_names(
    emulator: RunningEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names it next, either way, gets one that is open."""
    monkeypatch.setattr(gateway_destinations, "_IDLE_CHECK_SECONDS", 0.02)
    destinations, names = serving(emulator, idle_seconds=0.05), ("flights", arn_of(emulator))
    closed, _ = [await destinations.get("kinesis", name) for name in names]
    destinations.expire_idle()
    await wait_until(lambda: not destinations.all())
    opened = await destinations.get("kinesis", names[1])
    assert opened is not closed
    assert opened.failure is None
    await destinations.close(1.0)
