"""Reading without Spark, over the emulator's sockets."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.aws import AwsOptions, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    CheckpointError,
    Consumer,
    DynamoDbCheckpointStore,
    EfoConsumerConfigError,
    ReaderConfig,
    ShardPosition,
    SqliteCheckpointStore,
    StreamPositions,
)
from penstock.emulator import SystemClock
from penstock.emulator.testing import RunningEmulator, running_emulator

README = Path(__file__).parents[2] / "README.md"


class MovedClock(SystemClock):
    """Real time, and what a test adds to it."""

    moved_seconds = 0.0

    def time(self) -> float:
        """See `SystemClock`."""
        return super().time() + self.moved_seconds


CLOCK = MovedClock()


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(clock=CLOCK) as running:
        for stream in ("orders", "returns"):
            running.client().create_stream(StreamName=stream, ShardCount=2)
        yield running


def aws(emulator: RunningEmulator) -> AwsOptions:
    return emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))


def put(emulator: RunningEmulator, stream: str, first: int, count: int) -> None:
    client = emulator.client()
    for number in range(first, first + count):
        name = f"{stream}-{number}"
        client.put_record(StreamName=stream, Data=name.encode(), PartitionKey=name)


async def take(consumer: Consumer, count: int, *, checkpoint: bool = False) -> list[str]:
    rows: list[str] = []
    async with asyncio.timeout(120):
        async for batch in consumer:
            assert batch.records.num_rows
            rows += [value.decode() for value in batch.records.column("data").to_pylist()]
            if checkpoint:
                await consumer.checkpoint(batch)
            if len(rows) >= count:
                break
    return rows


def names(stream: str, first: int, count: int) -> list[str]:
    return [f"{stream}-{number}" for number in range(first, first + count)]


@pytest.mark.parametrize("efo", [None, "billing"])
async def test_a_restart_goes_on_behind_the_last_checkpoint(
    emulator: RunningEmulator, efo: str | None, tmp_path: Path
) -> None:
    """Two streams, read by polling or enhanced fan-out, with checkpoints in a file; the consumer is released."""
    put(emulator, "orders", 0, 20)
    put(emulator, "returns", 0, 20)

    def consumer() -> Consumer:
        return Consumer(
            ["orders", "returns"],
            efo=efo,
            start="TRIM_HORIZON",
            checkpoints=tmp_path / "checkpoints.db",
            aws=aws(emulator),
            max_records=7,
            registry=None if efo is None else tmp_path / "registry.db",
        )

    async with consumer() as first:
        rows = await take(first, 25, checkpoint=True)
        assert sum(shard.records for shard in await first.stats()) >= 25
        if efo is not None:
            arn = emulator.client().describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
            found = emulator.client().list_stream_consumers(StreamARN=arn["StreamARN"])["Consumers"]
            assert [one["ConsumerName"] for one in found] == ["billing"]
    put(emulator, "orders", 20, 5)
    async with consumer() as second:
        rows += await take(second, 45 - len(rows), checkpoint=True)
    assert sorted(rows) == sorted(names("orders", 0, 25) + names("returns", 0, 20))
    if efo is not None:
        found = emulator.client().list_stream_consumers(StreamARN=arn["StreamARN"])["Consumers"]
        assert [one for one in found if one["ConsumerStatus"] == "ACTIVE"] == []


async def test_positions_are_json_that_a_caller_may_keep_itself(emulator: RunningEmulator) -> None:
    """Without a place for checkpoints the batch's positions are the next start; LATEST skips what is there."""
    put(emulator, "orders", 0, 5)
    # LATEST may include the last two seconds: the service's time is known to a second, and arrival times are near it.
    CLOCK.moved_seconds += 5
    async with Consumer("orders", aws=aws(emulator)) as consumer:
        put(emulator, "orders", 5, 5)
        batches = aiter(consumer)
        rows: list[str] = []
        batch = None
        while len(rows) < 5:
            batch = await asyncio.wait_for(anext(batches), 30)
            rows += [value.decode() for value in batch.records.column("data").to_pylist()]
            await consumer.commit(batch)
        assert sorted(rows) == names("orders", 5, 5)
        assert batch is not None
        assert consumer.positions == batch.positions
        with pytest.raises(EfoConsumerConfigError, match="name"):
            await consumer.checkpoint(batch)
        kept = json.dumps(batch.positions.to_json())
    put(emulator, "orders", 10, 3)
    start = StreamPositions.from_json(json.loads(kept))
    async with Consumer("orders", aws=aws(emulator), start=start) as consumer:
        assert sorted(await take(consumer, 3)) == names("orders", 10, 3)
    with pytest.raises(EfoConsumerConfigError, match="returns"):
        async with Consumer(["orders", "returns"], aws=aws(emulator), start=start):
            pass


async def test_a_checkpoint_that_cannot_be_read_is_told_with_its_name(tmp_path: Path) -> None:
    """A damaged file, or one that cannot be made, stops the start instead of reading everything again."""
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"not a database, and longer than its header would be" * 100)
    with pytest.raises(CheckpointError) as raised:
        await SqliteCheckpointStore(damaged).load("billing")
    assert raised.value.name == "billing"
    with pytest.raises(CheckpointError):
        await SqliteCheckpointStore(tmp_path / "missing" / "file.db").claim("billing", ["s"], "me")
    store = SqliteCheckpointStore(tmp_path / "new.db")
    assert await store.load("billing") is None
    await store.save(await store.claim("billing", ["s"], "me"), StreamPositions({"s": {}}))
    assert await store.load("billing") == StreamPositions({"s": {}})
    for streams in ([], 5, ["s", 5]):
        with pytest.raises(EfoConsumerConfigError, match="streams"):
            Consumer(streams)  # type: ignore[arg-type]  # the mistake
    assert Consumer("s", config=ReaderConfig()).name == "default"


async def test_checkpoint_in_dynamodb_that_cannot_be_read_is_an_error_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The item is damaged, or the table does not exist."""
    with running_emulator(companions=("dynamodb",)) as running:
        # moto keeps tables for as long as the process lives.
        client, table = running.client("dynamodb"), f"checkpoints-{uuid.uuid4().hex}"
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", running.endpoints["dynamodb"])
        client.put_item(TableName=table, Item={"name": {"S": "odd"}, "positions": {"S": "{}"}})
        for name, where in (("odd", table), ("billing", "nothing")):
            store = DynamoDbCheckpointStore(AwsSession(emulator_options(running.endpoint_url)), where)
            with pytest.raises(CheckpointError) as raised:
                await store.load(name)
            assert raised.value.name == name
            await store.close()


async def test_checkpoints_that_have_no_place_are_told_before_the_first_record(emulator: RunningEmulator) -> None:
    """Not when the interval is over: by then records would have been handled."""
    put(emulator, "orders", 0, 1)
    for kept, option in ((True, "name"), (None, "checkpoints")):
        async with Consumer("orders", start="TRIM_HORIZON", aws=aws(emulator), checkpoints=kept) as consumer:
            with pytest.raises(EfoConsumerConfigError, match=option):
                await anext(consumer.records(checkpoint_interval=timedelta(hours=1)))


async def test_default_file_keeps_endpoints_apart_and_looking_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each endpoint has its own names, and looking does not make a file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one, two = SqliteCheckpointStore(namespace="https://one"), SqliteCheckpointStore(namespace="https://two")
    assert (await one.load("billing"), await one.names()) == (None, [])
    assert not (tmp_path / "state").exists()
    positions = StreamPositions({"orders": {"shard": ShardPosition.after("1")}})
    await one.save(await one.claim("billing", ["orders"], "me"), positions)
    assert (await one.load("billing"), await one.names()) == (positions, ["billing"])
    assert (await two.load("billing"), await two.names()) == (None, [])


async def test_the_consumer_of_the_readme_runs(
    emulator: RunningEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example, as it stands, prints what is written and keeps a checkpoint."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (example, _) = [block for block in blocks if "async with Consumer(" in block]
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": emulator.tls_endpoint_url,
        "AWS_CA_BUNDLE": str(emulator.ca_file),
        "XDG_STATE_HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    space: dict[str, object] = {"__name__": "example"}
    exec(compile(example, str(README), "exec"), space)
    main = space["main"]
    assert callable(main)
    running = asyncio.ensure_future(main())
    store = SqliteCheckpointStore(tmp_path / "billing.db")
    async with asyncio.timeout(120):
        written = 0
        while not running.done() and "AFTER_SEQUENCE_NUMBER" not in str(await store.load("billing")):
            await asyncio.to_thread(put, emulator, "orders", written, 1)
            written += 1
            await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "orders" in capsys.readouterr().out
