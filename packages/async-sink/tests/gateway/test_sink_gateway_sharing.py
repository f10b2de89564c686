"""Kinds of destinations, and fair turns of clients, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock.async_sink import (
    SERVICE_NAME,
    AsyncSinkBase,
    AsyncSinkConfig,
    CreditWindow,
    DynamoDbRequestEntry,
    FirehoseRequestEntry,
    KinesisRequestEntry,
    LaneObservation,
    RemoteSink,
    RequestInfo,
    ResultInfo,
    SharedDestinations,
    SinkGatewayServicer,
    SqsRequestEntry,
)
from penstock.async_sink.testing import FakeDestination, FakeWriter, wait_until
from penstock.rpc import GrpcServer, ServerSettings


class AnyWriter(FakeWriter):
    def get_size_in_bytes(self, entry: Any) -> int:
        return 10


class AnySink(AsyncSinkBase[Any, Any]):
    def __init__(self, fake: FakeDestination, config: AsyncSinkConfig, strategy: Any = None) -> None:
        self.fake = fake
        self.config = config
        self.strategy = strategy

    def create_writer(self) -> Any:
        return AnyWriter(self.fake, self.config, strategy=self.strategy)

    def restore_writer(self, states: Any) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def running_gateway(
    fake: FakeDestination, strategy: Any = None, **config: Any
) -> AsyncIterator[tuple[str, SharedDestinations]]:
    given = {"max_time_in_buffer": timedelta(milliseconds=5), "retry_backoff_base": timedelta(0), **config}

    def make(name: str) -> AnySink:
        return AnySink(fake, AsyncSinkConfig(**given), strategy)

    others = dict.fromkeys(("firehose", "dynamodb", "sqs"), make)
    destinations = SharedDestinations(make, others)
    batch = given.get("max_batch_size", 500)
    servicer = SinkGatewayServicer(destinations, CreditWindow(largest_batch_entries=batch))
    server = GrpcServer(ServerSettings(drain_seconds=0.2), register=[servicer.add_to], service_names=[SERVICE_NAME])
    async with server:
        yield server.address, destinations
    await destinations.close(1.0)


def remote(address: str, **options: Any) -> RemoteSink:
    options.setdefault("destination", "flights")
    options.setdefault("config", AsyncSinkConfig(max_time_in_buffer=timedelta(milliseconds=5)))
    return RemoteSink(address, **options)


def entries(count: int, key: str = "k") -> list[KinesisRequestEntry]:
    return [KinesisRequestEntry(b"%d" % number, key) for number in range(count)]


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("kinesis", KinesisRequestEntry(bytearray(b"\x00\xff"), "ключ", "7")),
        ("firehose", FirehoseRequestEntry(b"\x00\xff")),
        ("firehose", FirehoseRequestEntry(bytearray(b"\x00"))),
        ("sqs", SqsRequestEntry("рейс", "g", "d", 0)),
        ("sqs", SqsRequestEntry("рейс")),
        (
            "sqs",
            SqsRequestEntry("x", attributes={"s": "ж", "i": 10**30, "f": -0.5, "d": Decimal("1.50"), "b": b"\xff"}),
        ),
        ("dynamodb", DynamoDbRequestEntry({"id": {"S": "ключ"}, "legs": {"L": [{"N": "1"}]}})),
        ("dynamodb", DynamoDbRequestEntry({"id": {"S": "a"}}, delete=True)),
        ("dynamodb", DynamoDbRequestEntry({"id": {"B": b"\xff\x00"}}, delete=True)),
        ("dynamodb", DynamoDbRequestEntry.put({"ж": [{b"\xff"}, {"s"}, {Decimal("1.0")}, {"m": None}, True, b""]})),
    ],
)
async def test_entries_of_every_kind_cross_unchanged(kind: str, entry: Any) -> None:
    """Through the contract."""
    fake = FakeDestination()
    async with running_gateway(fake) as (address, _):
        async with RemoteSink(address, destination="flights", kind=kind).create_writer() as writer:
            await writer.write(entry)
        await wait_until(lambda: bool(fake.accepted))
    assert fake.accepted == [entry]


async def test_a_greedy_client_does_not_delay_the_others() -> None:
    """Two clients at their limit get shares of the writes by their weights, from the start."""
    fake = FakeDestination()
    fake.script = [fake.hold() for _ in range(3_000)]
    config: Any = {"max_batch_size": 20, "max_buffered_requests": 100, "max_in_flight_requests": 1}
    async with (
        running_gateway(fake, **config) as (address, destinations),
        remote(address, client_id="greedy").create_writer() as greedy,
        remote(address, client_id="modest", weight=3).create_writer() as modest,
    ):
        await greedy.write_many(entries(3_000, "greedy"))
        await wait_until(lambda: greedy.in_flight_messages >= 2_900)
        await modest.write_many(entries(1_200, "modest"))
        shared = await destinations.get("kinesis", "flights")
        await wait_until(lambda: shared.feeder.queued_entries >= 3_900)
        seen = len(fake.requests)
        while len(fake.accepted) < 900:
            request = fake.requests[seen - 1]
            await wait_until(lambda: len(fake.requests) >= seen)  # noqa: B023
            request.answer.set()
            seen += 1
            await wait_until(lambda: len(fake.requests) >= seen or not shared.writer.in_flight_requests)  # noqa: B023
        keys = [entry.partition_key for entry in fake.accepted[100:900]]
        share = keys.count("modest") / len(keys)
        fake.script.clear()
        for request in fake.requests:
            request.answer.set()
    assert 0.68 <= share <= 0.82
    assert len(fake.accepted) == 4_200


class OneClosedLane:
    """A strategy whose lanes are partition keys. `hot` has no room until it is opened."""

    active = True

    def __init__(self) -> None:
        self.is_open = False

    @property
    def lane_limiter(self) -> "OneClosedLane":
        return self

    def lane_of(self, entry: KinesisRequestEntry) -> str:
        return entry.partition_key

    def take(self, lane: str, size_in_bytes: int, now: float) -> bool:
        return self.is_open or lane != "hot"

    def give_back(self, lane: str, size_in_bytes: int) -> None: ...

    def ready_at(self, lane: str, now: float) -> float:
        return now + 0.01

    def observe(self, observations: Sequence[LaneObservation], submitted_at: float, now: float) -> None: ...

    def register_in_flight_request(self, request: RequestInfo) -> None: ...

    def register_completed_request(self, result: ResultInfo) -> None: ...

    def should_block(self, request: RequestInfo) -> bool:
        return False

    def get_max_batch_size(self) -> int:
        return 20


async def test_a_client_of_a_full_shard_does_not_delay_clients_of_others() -> None:
    """It waits while its shard has no room; other clients' entries pass, and its own order is kept."""
    fake, lanes = FakeDestination(), OneClosedLane()
    config: Any = {"max_batch_size": 20, "max_buffered_requests": 300}
    async with (
        running_gateway(fake, lanes, **config) as (address, destinations),
        remote(address, client_id="hot").create_writer() as hot,
        remote(address, client_id="cold").create_writer() as cold,
    ):
        await hot.write_many(entries(1_000, "hot"))
        await wait_until(lambda: hot.in_flight_messages == 1_000)
        shared = await destinations.get("kinesis", "flights")
        await wait_until(lambda: shared.feeder.queued_entries == 800)
        for _ in range(5):
            await cold.write_many(entries(200, "cold"))
            await asyncio.wait_for(cold.flush(end_of_input=True), 10)
        assert [entry.partition_key for entry in fake.accepted] == ["cold"] * 1_000
        assert shared.writer.buffered_entries <= 300
        lanes.is_open = True
        await asyncio.wait_for(hot.flush(end_of_input=True), 10)
    assert fake.accepted[1_000:] == entries(1_000, "hot")
