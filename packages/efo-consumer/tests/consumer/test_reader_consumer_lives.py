"""The consumer's comforts, over the emulator's sockets: starts, ends, checkpoints that nobody has to ask for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.aws import AwsOptions, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    Consumer,
    DynamoDbCheckpointStore,
    EfoConsumerConfigError,
    ShardPosition,
    SqliteCheckpointStore,
    StreamPositions,
)
from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator


@pytest.fixture
def clock() -> OtherClock:
    return OtherClock(0.0)


@pytest.fixture
def emulator(clock: OtherClock) -> Iterator[RunningEmulator]:
    with running_emulator(clock=clock, enforce_limits=False) as running:
        for stream in ("orders", "returns"):
            running.client().create_stream(StreamName=stream, ShardCount=1)
        yield running


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def aws(emulator: RunningEmulator) -> AwsOptions:
    return emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))


def put(emulator: RunningEmulator, stream: str, *data: bytes) -> None:
    for row in data:
        emulator.client().put_record(StreamName=stream, Data=row, PartitionKey="k")


async def take(consumer: Consumer, count: int, interval: timedelta | None = None) -> list[bytes]:
    """The first records; the next is never asked for, so that the last is not done."""
    taken: list[bytes] = []
    async with asyncio.timeout(120):
        async for record in consumer.records(checkpoint_interval=interval):
            taken.append(record.data)
            if len(taken) == count:
                break
    return taken


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(hours=1)])
async def test_records_are_checkpointed_behind_what_the_caller_is_done_with(
    emulator: RunningEmulator, interval: timedelta
) -> None:
    """By the interval or at the end of the context; of the batch in hand nothing is passed over."""
    put(emulator, "orders", *(b"%d" % number for number in range(6)))

    def consumer() -> Consumer:
        return Consumer("orders", name="billing", start="TRIM_HORIZON", aws=aws(emulator), max_records=2)

    async with consumer() as first:
        assert await take(first, 3, interval) == [b"0", b"1", b"2"]
    async with consumer() as second:
        again = await take(second, 4, interval)
    # The service may cut its answers as it likes: 2 is the first of its batch, or comes behind 1.
    assert again in ([b"1", b"2", b"3", b"4"], [b"2", b"3", b"4", b"5"])


async def test_a_stop_ends_the_iteration_behind_the_batch_in_hand(emulator: RunningEmulator) -> None:
    """As from a signal handler, while nothing comes; the checkpoint is written on the way out."""
    put(emulator, "orders", b"a", b"b")
    seen: list[tuple[str, bytes]] = []
    async with Consumer("orders", name="billing", start="TRIM_HORIZON", aws=aws(emulator)) as consumer:
        async with asyncio.timeout(120):
            async for record in consumer.records(checkpoint_interval=timedelta(hours=1)):
                seen.append((record.partition_key, record.data))
                if record.data == b"b":
                    asyncio.get_running_loop().call_soon(consumer.stop)
    assert seen == [("k", b"a"), ("k", b"b")]
    put(emulator, "orders", b"c")
    async with Consumer("orders", name="billing", start="TRIM_HORIZON", aws=aws(emulator)) as consumer:
        assert await take(consumer, 1) == [b"c"]


async def test_checkpoints_that_have_no_place_are_told_before_the_first_record(emulator: RunningEmulator) -> None:
    """Not when the interval is over: by then records would have been handled."""
    put(emulator, "orders", b"a")
    for kept, option in ((True, "name"), (None, "checkpoints")):
        async with Consumer("orders", start="TRIM_HORIZON", aws=aws(emulator), checkpoints=kept) as consumer:
            with pytest.raises(EfoConsumerConfigError, match=option):
                await take(consumer, 1, timedelta(hours=1))


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb"])
async def test_a_name_that_is_used_for_other_streams_too_loses_no_checkpoint(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers of one name, each of another stream, write to one place in turns: each finds its own again."""
    table = f"checkpoints-{uuid.uuid4().hex}"  # moto keeps tables for as long as the process lives
    with running_emulator(companions=("dynamodb",) if kind == "dynamodb" else ()) as running:
        if kind == "dynamodb":
            monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", running.endpoints["dynamodb"])
            running.client("dynamodb").create_table(
                TableName=table,
                KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        session = AwsSession(emulator_options(running.endpoint_url))
        stores = {
            stream: SqliteCheckpointStore(tmp_path / "all.db")
            if kind == "sqlite"
            else DynamoDbCheckpointStore(session, table)
            for stream in ("orders", "returns")
        }
        claims = {stream: await store.claim("billing", [stream], stream) for stream, store in stores.items()}
        for number in ("1", "2", "3"):
            for stream, store in stores.items():
                await store.save(claims[stream], StreamPositions({stream: {"shard": ShardPosition.after(number)}}))
        for store in stores.values():
            found = await store.load("billing")
            assert found is not None
            assert found.streams == {stream: {"shard": ShardPosition.after("3")} for stream in ("orders", "returns")}
            await store.close()


async def test_the_default_file_keeps_endpoints_apart_and_looking_makes_no_file(tmp_path: Path) -> None:
    """Names are those of the endpoint; a place that is only looked at stays as it is."""
    one, two = SqliteCheckpointStore(namespace="https://one"), SqliteCheckpointStore(namespace="https://two")
    assert (await one.load("billing"), await one.names()) == (None, [])
    assert not (tmp_path / "state").exists()
    positions = StreamPositions({"orders": {"shard": ShardPosition.after("1")}})
    await one.save(await one.claim("billing", ["orders"], "me"), positions)
    assert (await one.load("billing"), await one.names()) == (positions, ["billing"])
    assert (await two.load("billing"), await two.names()) == (None, [])
