"""Faults of one client or destination do not affect others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sink_scripted_service import Body, ScriptedService

from penstock.async_sink import (
    SERVICE_NAME,
    AsyncSinkBase,
    AsyncSinkConfig,
    DynamoDbRequestEntry,
    DynamoDbSink,
    KinesisRequestEntry,
    RemoteSink,
    SharedDestinations,
    SinkGatewayServicer,
    dynamodb_config,
)
from penstock.async_sink.errors import GatewayError, RecordError, RecordsRejectedError
from penstock.async_sink.testing import FakeDestination, FakeWriter, wait_until
from penstock.aws.testing import emulator_options
from penstock.rpc import GrpcServer, ServerSettings

CONFIG = AsyncSinkConfig(max_time_in_buffer=timedelta(milliseconds=5), retry_backoff_base=timedelta(0))
SECONDS = 10.0


class ParticularWriter(FakeWriter):
    """Knows of its destination what no client can: as a table's key."""

    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        if entry.data == b"keyless":
            raise RecordError(self.records_written, "its item has no 'id', which the table's key has")
        if entry.data == b"unforeseen":
            raise ZeroDivisionError("of a destination's own")
        return len(entry.data) + len(entry.partition_key)


class FakeSink(AsyncSinkBase[Any, Any]):
    def __init__(self, fake: FakeDestination) -> None:
        self.fake = fake

    def create_writer(self) -> Any:
        return ParticularWriter(self.fake, CONFIG)

    def restore_writer(self, states: Any) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def running_gateway(fake: FakeDestination) -> AsyncIterator[tuple[str, SharedDestinations]]:
    destinations = SharedDestinations(lambda _: FakeSink(fake))
    async with serving(destinations) as address:
        yield address, destinations


@asynccontextmanager
async def serving(destinations: SharedDestinations) -> AsyncIterator[str]:
    servicer = SinkGatewayServicer(destinations)
    server = GrpcServer(ServerSettings(drain_seconds=0.2), register=[servicer.add_to], service_names=[SERVICE_NAME])
    async with server:
        yield server.address
    await destinations.close(1.0)


def remote(address: str, **options: Any) -> RemoteSink:
    return RemoteSink(address, destination="flights", config=CONFIG, **options)


def entry(data: str) -> KinesisRequestEntry:
    return KinesisRequestEntry(data.encode(), "k")


def accepted(fake: FakeDestination) -> list[str]:
    return [each.data.decode() for each in fake.accepted]


async def test_a_record_that_only_the_writer_can_refuse_fails_alone() -> None:
    """Its client gets the record number; the records around it are written, and other clients are not affected."""
    fake = FakeDestination()
    async with running_gateway(fake) as (address, _), remote(address).create_writer() as other:
        await other.write(entry("other 1"))
        await other.flush(end_of_input=True)
        async with remote(address).create_writer() as writer:
            await writer.write_many([entry("1"), entry("keyless"), entry("2")])
            with pytest.raises(RecordsRejectedError, match="has no 'id'") as caught:
                await asyncio.wait_for(writer.flush(end_of_input=True), SECONDS)
        assert [record.record_number for record in caught.value.records] == [1]
        await other.write(entry("other 2"))
        await asyncio.wait_for(other.flush(end_of_input=True), SECONDS)
    assert sorted(accepted(fake)) == ["1", "2", "other 1", "other 2"]


async def test_an_unexpected_error_reaches_every_waiting_client() -> None:
    """Including a client whose batch is in flight, which the reopened destination would not know."""
    fake = FakeDestination()
    fake.script = [fake.hold()]
    async with running_gateway(fake) as (address, _):
        writers = [remote(address).create_writer() for _ in range(2)]
        for writer in writers:
            await writer.__aenter__()
        await writers[0].write(entry("1"))
        await wait_until(lambda: bool(fake.requests))
        await writers[1].write(entry("unforeseen"))
        for writer in writers:
            with pytest.raises(GatewayError):
                await asyncio.wait_for(writer.flush(end_of_input=True), SECONDS)
            await writer.close()
        async with remote(address).create_writer() as writer:
            await writer.write(entry("2"))
            await asyncio.wait_for(writer.flush(end_of_input=True), SECONDS)
    assert accepted(fake) == ["2"]


class SlowWriter(ParticularWriter):
    opened: asyncio.Event

    async def open_destination(self) -> None:
        await self.opened.wait()


async def test_a_destination_that_is_slow_to_open_holds_up_no_other() -> None:
    """A look-up without an answer takes a minute: clients of other destinations do not wait for it."""
    fake, opened = FakeDestination(), asyncio.Event()

    class SlowSink(FakeSink):
        def create_writer(self) -> Any:
            writer = SlowWriter(self.fake, CONFIG)
            writer.opened = opened
            return writer

    destinations = SharedDestinations(lambda name: SlowSink(fake) if name == "slow" else FakeSink(fake))
    slow = [asyncio.create_task(destinations.get("kinesis", "slow")) for _ in range(2)]
    assert (await asyncio.wait_for(destinations.get("kinesis", "fast"), SECONDS)).name == "fast"
    assert not any(task.done() for task in slow)
    opened.set()
    first, second = await asyncio.gather(*slow)
    assert first is second
    await destinations.close(1.0)


async def test_an_entry_that_spoils_a_request_fails_alone(service: ScriptedService) -> None:
    """The service names no entry, and refuses a whole request with entries of several clients."""

    def answer(body: Body) -> tuple[int, Body]:
        if any("N" in write["PutRequest"]["Item"]["id"] for write in body["RequestItems"]["flights"]):
            return 400, {"__type": "ValidationException", "message": "the key does not match the schema"}
        written.update(write["PutRequest"]["Item"]["id"]["S"] for write in body["RequestItems"]["flights"])
        return 200, {"UnprocessedItems": {}}

    written = set[str]()
    service.script = [answer] * 100
    aws = emulator_options(service.url)
    config = dynamodb_config(max_time_in_buffer=timedelta(milliseconds=200))
    destinations = SharedDestinations(
        lambda _: FakeSink(FakeDestination()),
        {"dynamodb": lambda name: DynamoDbSink(aws, name, key_names=["id"], config=config)},
    )
    async with serving(destinations) as address:
        good, bad = (RemoteSink(address, destination="flights", kind="dynamodb").create_writer() for _ in range(2))
        async with good, bad:
            await good.write_many([DynamoDbRequestEntry.put({"id": f"g{number}"}) for number in range(8)])
            await bad.write_many([DynamoDbRequestEntry.put({"id": each}) for each in ("b", 7)])
            await asyncio.wait_for(good.flush(end_of_input=True), SECONDS)
            with pytest.raises(RecordsRejectedError, match="does not match the schema") as caught:
                await asyncio.wait_for(bad.flush(end_of_input=True), SECONDS)
            assert [record.record_number for record in caught.value.records] == [1]
    assert written == {"b", *(f"g{number}" for number in range(8))}
