"""Consumers of one name: which one reads, may save, and releases the stream consumer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.aws import AwsConnectionError, AwsOptions, AwsSession, BackoffPolicy
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    CheckpointClaim,
    CheckpointError,
    CheckpointStore,
    CheckpointTakenOverError,
    Consumer,
    ConsumerBatch,
    DynamoDbCheckpointStore,
    EfoConsumerConfigError,
    ReaderConfig,
    RecordPublisherConfig,
    S3CheckpointStore,
    ShardPosition,
    SqliteCheckpointStore,
    StreamPositions,
)
from penstock.efo_consumer.errors import SubscriptionTakenOverError
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import (
    SERVICE_NAME,
    AcquireRequest,
    ConsumerRegistryServicer,
    LeaseSettings,
    open_local_registry,
)
from penstock.registration.errors import AcquireTimeoutError, ConsumerDeregisteredError
from penstock.rpc import GrpcServer, ServerSettings

OLD_POSITIONS = (
    '{"version": 2, "streams": {"orders": {"shardId-000000000000": {"type": "AFTER_SEQUENCE_NUMBER", "value": '
    '"49119935681253987564531497349563101380414584315778695170", "arrived": 1795419230978, "caughtUp": 1795419230006, '
    '"first": "49119935681253987564531497349485730127959248048597499906"}}, "returns": {"shardId-000000000000": '
    '{"type": "TRIM_HORIZON", "caughtUp": 1795419230007}}}, "created": {"orders": 1795419230000, "returns": '
    "1795419230000}}"
)
OLD_CLAIMS = (
    '{"orders": {"number": 6, "owner": "host-a/17/1", "at": 1795419232.5}, '
    '"returns": {"number": 1, "owner": "host-a/17/1", "at": 1795419232.5}}'
)
OLD_FILE = f"""
CREATE TABLE checkpoint (name TEXT PRIMARY KEY, positions TEXT NOT NULL, at REAL NOT NULL);
INSERT INTO "checkpoint" VALUES('billing','{OLD_POSITIONS}',1795419232.5);
"""
"""The file of the first release, dumped. Later ones have a second table."""
OLD_FILE_CLAIMS = f"""
CREATE TABLE claims (name TEXT PRIMARY KEY, claims TEXT NOT NULL);
INSERT INTO "claims" VALUES('billing','{OLD_CLAIMS}');
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningEmulator]:
    delays: dict[str, Any] = {"consumer_creation_delay": timedelta(0), "consumer_deletion_delay": timedelta(0)}
    with running_emulator(enforce_limits=False, companions=("dynamodb", "s3"), **delays) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", running.endpoints["dynamodb"])
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", running.endpoints["s3"])
        running.client().create_stream(StreamName="orders", ShardCount=1)
        yield running


def aws(emulator: RunningEmulator) -> AwsOptions:
    return emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))


def put(emulator: RunningEmulator, *data: bytes) -> None:
    for row in data:
        emulator.client().put_record(StreamName="orders", Data=row, PartitionKey="k")


def consumers(emulator: RunningEmulator) -> list[dict[str, Any]]:
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    return [dict(one) for one in client.list_stream_consumers(StreamARN=arn)["Consumers"]]


def states(emulator: RunningEmulator) -> list[str]:
    return [one["ConsumerStatus"] for one in consumers(emulator)]


def consumer_arns(emulator: RunningEmulator) -> list[str]:
    return [one["ConsumerARN"] for one in consumers(emulator)]


def at(number: int) -> StreamPositions:
    return StreamPositions({"orders": {"shardId-000000000000": ShardPosition.after(str(number))}})


def bucket_of(emulator: RunningEmulator) -> str:
    """The URL of a folder in a new bucket."""
    bucket = f"checkpoints-{uuid.uuid4().hex}"
    emulator.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/of consumers"


def store_of(kind: str, emulator: RunningEmulator, folder: Path) -> CheckpointStore:
    if kind == "sqlite":
        return SqliteCheckpointStore(folder / "billing.db")
    session = AwsSession(emulator_options(emulator.endpoint_url))
    if kind == "s3":
        return S3CheckpointStore(session, bucket_of(emulator))
    table = f"checkpoints-{uuid.uuid4().hex}"
    emulator.client("dynamodb").create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return DynamoDbCheckpointStore(session, table)


def put_old(store: CheckpointStore, emulator: RunningEmulator, *, has_claims: bool) -> None:
    """What earlier releases left in a store, byte for byte."""
    if isinstance(store, SqliteCheckpointStore):
        with contextlib.closing(sqlite3.connect(store._path)) as connection:
            connection.executescript(OLD_FILE + (OLD_FILE_CLAIMS if has_claims else ""))
    elif isinstance(store, S3CheckpointStore):
        body = json.dumps({"positions": OLD_POSITIONS, "claims": OLD_CLAIMS}).encode()
        bucket, key = store._place("billing").removeprefix("s3://").split("/", 1)
        emulator.client("s3").put_object(Bucket=bucket, Key=key, Body=body)
    elif isinstance(store, DynamoDbCheckpointStore):
        item = {"name": {"S": "billing"}, "positions": {"S": OLD_POSITIONS}}
        item |= {"claims": {"S": OLD_CLAIMS}} if has_claims else {}
        emulator.client("dynamodb").put_item(TableName=store._table_name, Item=item)


@pytest.mark.parametrize(
    ("kind", "number"), [("sqlite", 0), ("dynamodb", 0), ("sqlite", 6), ("dynamodb", 6), ("s3", 6)]
)
async def test_checkpoints_of_earlier_releases_are_read_and_claimed(
    kind: str, number: int, emulator: RunningEmulator, tmp_path: Path
) -> None:
    """With a number that is greater than theirs, if they have one. From then on only the newest claim saves it."""
    store = store_of(kind, emulator, tmp_path)
    put_old(store, emulator, has_claims=number > 0)
    old = StreamPositions.from_json(json.loads(OLD_POSITIONS))
    assert await store.load("billing") == old
    claim = await store.claim("billing", ["orders"], "new code")
    assert claim.positions == old
    assert claim.numbers == {"orders": number + 1}
    await store.save(claim, at(9))
    loaded = await store.load("billing")
    assert loaded is not None
    assert loaded.streams == {"orders": at(9).streams["orders"], "returns": old.streams["returns"]}
    if number:
        with pytest.raises(CheckpointTakenOverError, match="new code"):
            await store.save(CheckpointClaim("billing", "host-a/17/1", {"orders": number}), at(7))
    await store.close()


@pytest.mark.parametrize(("kind", "write"), [("dynamodb", "put_item"), ("s3", "put_object")])
async def test_a_checkpoint_whose_answer_was_lost_is_written_once(
    kind: str, write: str, emulator: RunningEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each first answer is lost after the write, so that the second attempt finds its own value in its way."""
    store: Any = store_of(kind, emulator, tmp_path)
    call = store._client.call
    lost: set[str] = set()

    async def lose(operation: str, **parameters: Any) -> Any:
        answer = await call(operation, **parameters)
        if operation == write and str(parameters) not in lost:
            lost.add(str(parameters))
            raise AwsConnectionError(operation=operation, endpoint="here", reason="cut")
        return answer

    monkeypatch.setattr(store._client, "call", lose)
    claim = await store.claim("billing", ["orders"], "host-a/1/1")
    assert claim.numbers == {"orders": 1}
    await store.save(claim, at(5))
    assert await store.load("billing") == at(5)
    assert lost
    await store.close()


async def test_claims_of_one_file_at_the_same_time_get_different_numbers(tmp_path: Path) -> None:
    stores = [SqliteCheckpointStore(tmp_path / "billing.db") for _ in range(8)]
    claims = await asyncio.gather(*(store.claim("billing", ["orders"], str(i)) for i, store in enumerate(stores)))
    assert sorted(claim.numbers["orders"] for claim in claims) == list(range(1, 9))


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb"])
async def test_only_the_newest_claim_of_a_stream_saves(kind: str, emulator: RunningEmulator, tmp_path: Path) -> None:
    """Also before the first save since then; a consumer that claimed other streams of the name is not disturbed."""
    store = store_of(kind, emulator, tmp_path)
    first = await store.claim("billing", ["orders"], "host-a/1/1")
    other = await store.claim("billing", ["returns"], "host-c/3/1")
    await store.save(first, at(1))
    second = await store.claim("billing", ["orders"], "host-b/2/1")
    assert second.positions == at(1)
    assert second.numbers["orders"] > first.numbers["orders"]
    with pytest.raises(CheckpointTakenOverError, match="host-b/2/1") as raised:
        await store.save(first, at(2))
    assert (raised.value.stream, raised.value.owner) == ("orders", "host-b/2/1")
    assert await store.load("billing") == at(1)
    await store.save(second, at(3))
    await store.save(other, StreamPositions({"returns": {}}))
    loaded = await store.load("billing")
    assert loaded is not None
    assert loaded.streams == {**at(3).streams, "returns": {}}
    await store.close()


async def first_batch(consumer: Consumer) -> ConsumerBatch:
    async with asyncio.timeout(120):
        async for batch in consumer:
            return batch
    raise AssertionError("the consumer ended")


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb", "s3"])
async def test_a_paused_consumer_saves_nothing_over_its_successor(
    kind: str, emulator: RunningEmulator, tmp_path: Path
) -> None:
    """By polling, where no lease separates the two: the older one's error names the newer one, also at its end."""
    put(emulator, b"a", b"b")
    stores = [store_of(kind, emulator, tmp_path)] * 2
    if kind == "sqlite":
        stores = [SqliteCheckpointStore(tmp_path / "billing.db") for _ in range(2)]
    elif kind == "s3":  # each with what it has seen itself
        session, url = AwsSession(emulator_options(emulator.endpoint_url)), bucket_of(emulator)
        stores = [S3CheckpointStore(session, url) for _ in range(2)]

    def consumer(store: CheckpointStore) -> Consumer:
        return Consumer(
            "orders", name="billing", start="TRIM_HORIZON", checkpoints=store, aws=aws(emulator), max_records=1
        )

    async with consumer(stores[0]) as paused:
        batch = await first_batch(paused)
        async with consumer(stores[1]) as successor:
            rows = []
            async with asyncio.timeout(120):
                async for later in successor:
                    rows += later.records.column("data").to_pylist()
                    await successor.checkpoint(later)
                    if len(rows) == 2:
                        break
        saved = await stores[1].load("billing")
        with pytest.raises(CheckpointTakenOverError, match=rf"/{os.getpid()}/\d+ took orders over"):
            await paused.checkpoint(batch)
    assert await stores[1].load("billing") == saved


LONG_LEASES = LeaseSettings(default_time_to_live=timedelta(minutes=5))


@asynccontextmanager
async def registry_of(
    kind: str, emulator: RunningEmulator, folder: Path, settings: LeaseSettings | None = None
) -> AsyncIterator[Path | str]:
    """A registry that several machines share, as a `Consumer` takes it."""
    if kind == "file":
        yield folder / "registry.db"
    else:
        local = open_local_registry(AwsSession(aws(emulator)), folder / "service.db", settings=settings)
        servicer = ConsumerRegistryServicer(local)
        try:
            async with GrpcServer(
                ServerSettings(port=0), register=[servicer.add_to], service_names=[SERVICE_NAME]
            ) as server:
                yield server.address
                servicer.drain()
        finally:
            await local.close()


@pytest.mark.parametrize("kind", ["service"])
async def test_with_one_registry_one_consumer_reads_and_the_other_stands_by(
    kind: str, emulator: RunningEmulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs which one reads, continues from its checkpoint when that one has stopped, or fails with its name."""
    put(emulator, b"a", b"b")
    async with registry_of(kind, emulator, tmp_path) as registry:

        def consumer(lease_timeout: timedelta | None) -> Consumer:
            return Consumer(
                "orders",
                efo="billing",
                start="TRIM_HORIZON",
                checkpoints=tmp_path / "billing.db",
                aws=aws(emulator),
                registry=registry,
                lease_timeout=lease_timeout,
                max_records=1,
            )

        async with consumer(None) as first:
            batch = await first_batch(first)
            await first.checkpoint(batch)
            with pytest.raises(AcquireTimeoutError, match="held by job 'billing@"):
                async with consumer(timedelta(0)):
                    pass
            waiting = asyncio.ensure_future((second := consumer(None)).__aenter__())
            async with asyncio.timeout(120):
                while "which 'billing@" not in caplog.text:  # noqa: ASYNC110  # a log record has no event
                    await asyncio.sleep(0.05)
            assert not waiting.done()
            # Saved while the other one waits, which has claimed nothing.
            await first.checkpoint(batch)
        try:
            await asyncio.wait_for(waiting, 30)
            assert (await first_batch(second)).records.column("data").to_pylist() == [b"b"]
        finally:
            await second.__aexit__(None, None, None)
    assert states(emulator) == []


async def test_consumers_with_registries_of_their_own_are_told_of_the_theft(
    emulator: RunningEmulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them fails by it, naming the consumer, and leaves it registered for the other, which reads on."""
    caplog.set_level(logging.WARNING, logger="penstock.efo_consumer")
    # The service's own 5 s apart are not part of this.
    soon = timedelta(milliseconds=50)
    retries = BackoffPolicy(base=soon, maximum=soon, max_attempts=None)
    config = ReaderConfig(publisher=RecordPublisherConfig(resubscribe_interval=soon, subscribe_to_shard=retries))

    def consumer(machine: str, registry: Path | str) -> Consumer:
        return Consumer(
            "orders",
            efo="billing",
            start="TRIM_HORIZON",
            checkpoints=tmp_path / f"{machine}.db",
            aws=aws(emulator),
            config=config,
            registry=registry,
        )

    async def read(one: Consumer) -> SubscriptionTakenOverError:
        try:
            async for _ in one:
                pass
        except SubscriptionTakenOverError as error:
            return error
        raise AssertionError("the consumer ended")

    async with asyncio.timeout(120):
        # The one that registers the consumer, and would deregister it.
        first, second = consumer("first", tmp_path / "registry.db"), consumer("second", tmp_path / "own.db")
        await first.__aenter__()
        async with second:
            tasks = {asyncio.ensure_future(read(one)): one for one in (first, second)}
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = done.pop().result()
            assert "consumer/billing" in error.consumer_arn
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)
            await first.__aexit__(type(error), error, None)
            assert "it is left registered for that one" in caplog.text
            assert states(emulator) == ["ACTIVE"]


async def test_a_stream_consumer_that_a_job_of_another_registry_deregisters_is_registered_again(
    emulator: RunningEmulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader warns and reads on, each record once; but three times an hour, so that two do not fight for ever."""
    put(emulator, b"0")
    first = open_local_registry(AwsSession(emulator_options(emulator.endpoint_url)), tmp_path / "first.db")
    request = AcquireRequest(stream_name="orders", consumer_name="billing", job_id="first")
    lease = await first.acquire(request)
    own = tmp_path / "own.db"
    one = Consumer("orders", efo="billing", start="TRIM_HORIZON", checkpoints=None, aws=aws(emulator), registry=own)
    async with asyncio.timeout(120), one:
        records = one.records()
        assert (await anext(records)).data == b"0"
        await first.release(lease)
        await first.close()
        for row in (b"1", b"2", b"3"):
            await asyncio.to_thread(put, emulator, row)
            assert (await anext(records)).data == row
            (arn,) = consumer_arns(emulator)
            assert arn != lease.consumer_arn
            assert f"registered again, as {arn}" in caplog.text
            emulator.client().deregister_stream_consumer(ConsumerARN=arn)
        with pytest.raises(ConsumerDeregisteredError, match="'billing' of stream 'orders' was deregistered 4 times"):
            await anext(records)
    assert consumer_arns(emulator) == []


READER = """
import asyncio, sys
from pathlib import Path
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import Consumer

async def main(url, ca_file, registry):
    async with Consumer(
        "orders", efo="billing", checkpoints=None, aws=emulator_options(url, ca_file), registry=eval(registry)
    ):
        print("reads", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["file"])
async def test_a_consumer_that_waits_takes_the_lease_of_a_killed_holder_over(
    kind: str, emulator: RunningEmulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows that a process of this machine is dead, and does not wait until that one's lease has run out."""
    async with registry_of(kind, emulator, tmp_path, LONG_LEASES) as registry:
        place = f"Path({str(registry)!r})" if isinstance(registry, Path) else repr(registry)
        arguments = (sys.executable, "-c", READER, emulator.tls_endpoint_url, str(emulator.ca_file), place)
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"reads\n"
        # By other names than the holder's they are other jobs, at once.
        standing_by = [
            Consumer(
                "orders",
                efo="billing",
                name=name,
                checkpoints=None,
                aws=aws(emulator),
                registry=registry,
                lease_timeout=None,
            )
            for name in ("billing", "other")
        ]
        waiting = {asyncio.ensure_future(one.__aenter__()): one for one in standing_by}
        async with asyncio.timeout(120):
            while caplog.text.count("which 'billing@") < 2:  # noqa: ASYNC110  # a log record has no event
                await asyncio.sleep(0.05)
        assert not any(one.done() for one in waiting)
        process.kill()
        await process.wait()
        for _ in standing_by:
            done, _ = await asyncio.wait(waiting, timeout=120, return_when=asyncio.FIRST_COMPLETED)
            (one,) = done
            await one
            assert states(emulator) == ["ACTIVE"]
            await waiting.pop(one).__aexit__(None, None, None)
        assert "whose process on this machine is dead" in caplog.text
    assert states(emulator) == []


@pytest.mark.parametrize("registry", ["registry", "http://registry:7070", "leases.db", "sqs://leases"])
def test_what_is_no_registry_is_refused(registry: str) -> None:
    """Before anything is asked; a path is a `Path`."""
    with pytest.raises(EfoConsumerConfigError, match="registry"):
        Consumer("orders", efo="billing", registry=registry)


KILLED = """
import asyncio, sys
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import Consumer

async def main(url, ca_file, checkpoints):
    aws = emulator_options(url, ca_file)
    options = {"start": "TRIM_HORIZON", "checkpoints": checkpoints, "aws": aws, "max_records": 1}
    async with Consumer("orders", name="billing", **options) as one:
        number = 0
        async for batch in one:
            number += 1
            if number == 3:
                print("in the middle", flush=True)
                await asyncio.Event().wait()
            await one.checkpoint(batch)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_killed_consumer_goes_on_from_its_checkpoint_on_s3(emulator: RunningEmulator) -> None:
    """By the URL alone; and the object that it left is one that no older claim replaces."""
    put(emulator, b"0", b"1", b"2", b"3")
    url = bucket_of(emulator)
    arguments = (sys.executable, "-c", KILLED, emulator.tls_endpoint_url, str(emulator.ca_file), url)
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(120):
        assert await process.stdout.readline() == b"in the middle\n"
    process.kill()
    await process.wait()
    rows: list[bytes] = []
    async with Consumer("orders", name="billing", checkpoints=url, aws=aws(emulator), max_records=1) as consumer:
        async with asyncio.timeout(120):
            async for batch in consumer:
                rows += batch.records.column("data").to_pylist()
                await consumer.checkpoint(batch)
                if len(rows) == 2:
                    break
    assert rows == [b"2", b"3"]
    bucket = url.split("/")[2]
    keys = [one["Key"] for one in emulator.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["of consumers/.conditions", "of consumers/billing.json"]


async def test_a_service_that_ignores_conditions_keeps_no_checkpoints(
    emulator: RunningEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two consumers would overwrite each other there; nothing is written by the name."""
    url = bucket_of(emulator)
    store = S3CheckpointStore(AwsSession(emulator_options(emulator.endpoint_url)), url)
    call = store._client.call

    async def ignore(operation: str, **parameters: Any) -> Any:
        parameters.pop("IfNoneMatch", None)
        return await call(operation, **parameters)

    monkeypatch.setattr(store._client, "call", ignore)
    with pytest.raises(CheckpointError) as raised:
        await store.claim("billing", ["orders"], "me")
    assert raised.value.reason == (
        f"{url}/billing.json: this service ignores If-None-Match, by which S3 refuses to overwrite an object"
    )
    assert await store.load("billing") is None
    await store.close()
