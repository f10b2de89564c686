"""A lease belongs to the ARN of its stream, however the stream is named. Earlier stores are read."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from registry_homes import Home, known

from penstock.registration import (
    AcquireRequest,
    ConsumerRecord,
    DynamoDbLeaseStore,
    Holding,
    Lease,
    LeaseStore,
    LocalConsumerRegistry,
    RegistrationPhase,
    SqliteLeaseStore,
    StreamConsumerRegistrar,
)
from penstock.registration.errors import ConsumerHeldError, LeaseLostError, RegistrationOptionError
from penstock.registration.testing import DynamoDbClients, FakeKinesis, InMemoryLeaseStore, ManualClock

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"
WEATHER = "arn:aws:kinesis:eu-west-1:123456789012:stream/weather"
ENDPOINT = "https://kinesis.eu-west-1.amazonaws.com"
DATA = Path(__file__).parents[1] / "data"


def open_registry(
    store: LeaseStore, kinesis: FakeKinesis, clock: ManualClock | None = None, **options: Any
) -> LocalConsumerRegistry:
    clock = clock or ManualClock()
    registrar = StreamConsumerRegistrar(kinesis, sleep=clock.sleep, clock=clock)
    return LocalConsumerRegistry(registrar, store, clock=clock, wall_clock=clock, sleep=clock.sleep, **options)


def request_for(
    stream_name: str = "flights", job_id: str = "job", consumer_name: str = "delays", **options: Any
) -> AcquireRequest:
    return AcquireRequest(stream_name=stream_name, consumer_name=consumer_name, job_id=job_id, **options)


async def test_a_stream_by_name_and_by_arn_is_one_stream(home: Home) -> None:
    """One lease, one holder at a time; the first to leave by either does not take the other's consumer along."""
    await home.acquire("by-name")
    await home.watch(1)
    for options in ({"stream_name": STREAM}, {"stream_arn": STREAM}):
        with pytest.raises(ConsumerHeldError, match="'by-name'"):
            await home.acquire("by-arn", **options)
    by_name = await home.acquire("by-name")
    by_arn = await home.acquire("by-name", stream_name=STREAM)
    assert (by_name.stream_name, by_arn.stream_name) == ("flights", STREAM)
    assert by_name.stream_arn == by_arn.stream_arn == STREAM
    assert by_arn.fencing_token == by_name.fencing_token + 1
    assert await home.registry.release(by_name) is False
    assert (await home.registry.heartbeat(by_arn)).held
    assert home.kinesis.names() == {"delays"}


@pytest.mark.parametrize("other", [{"account_id": "999999999999"}, {"region": "us-east-1"}])
async def test_streams_of_one_name_elsewhere_are_others(other: dict[str, Any]) -> None:
    """In another account or region: no request is refused, and each consumer is deregistered where it is."""
    store, here, there = InMemoryLeaseStore(), FakeKinesis(), FakeKinesis(**other)
    one, two = open_registry(store, here), open_registry(store, there)
    first = await one.acquire(request_for(job_id="first"))
    second = await two.acquire(request_for(job_id="second"))
    assert first.stream_arn != second.stream_arn
    assert {each.stream_arn for each in await one.list_consumers("flights")} == {first.stream_arn, second.stream_arn}
    with pytest.raises(RegistrationOptionError, match=f"{second.stream_arn}.*give its ARN"):
        await one.force_release("flights", "delays")
    assert known(await two.force_release(second.stream_arn, "delays")).job_id == "second"
    assert (here.names(), there.names()) == ({"delays"}, set())
    assert await one.release(first) is True
    assert here.names() == set()


async def test_many_requests_by_name_ask_for_the_arn_once(home: Home) -> None:
    """DescribeStreamSummary is limited per account."""
    await asyncio.gather(*(home.acquire() for _ in range(100)))
    assert home.kinesis.calls.count("describe_stream_summary") == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stream_arn": "arn:aws:kinesis:eu-west-1:1:stream/flights"}, "stream_arn"),
        ({"stream_arn": WEATHER}, "stream_arn"),
        ({"stream_name": STREAM, "stream_arn": STREAM.replace("1234", "4321")}, "stream_arn"),
        ({"stream_name": "arn:flights"}, "stream_name"),
        ({"strategy": "none", "consumer_arn": f"{WEATHER}/consumer/delays:1"}, "consumer_arn"),
    ],
)
def test_names_and_arns_that_contradict_each_other_are_refused(options: Any, field: str) -> None:
    """Before anything is leased on a stream that is not meant."""
    with pytest.raises(RegistrationOptionError) as raised:
        request_for(**{"stream_name": "flights", **options})
    assert raised.value.option == field


async def test_a_lease_without_a_stream_arn_is_found_by_the_stream_name(home: Home) -> None:
    lease = await home.acquire()
    message = {name: getattr(lease, name) for name in type(lease).__dataclass_fields__ if name != "stream_arn"}
    old = type(lease)(**message)
    assert old.stream_arn == ""
    assert (await home.registry.heartbeat(old)).held
    assert await home.registry.release(old) is True


def stored_file(folder: Path, schema: int) -> Path:
    """A file as earlier code wrote it."""
    path = folder / "registry.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((DATA / f"leases_schema_{schema}.sql").read_text())
    connection.close()
    return path


@pytest.fixture
def first_release(tmp_path: Path) -> Path:
    """A file with schema 1."""
    return stored_file(tmp_path, 1)


@pytest.fixture(params=["sqlite", "dynamodb"])
async def old_store(
    request: pytest.FixtureRequest, first_release: Path, dynamodb_table: str
) -> AsyncIterator[LeaseStore]:
    """The records of the first release, in either store."""
    old = SqliteLeaseStore(first_release, namespace=ENDPOINT, read_only=True)
    records = await old.list()
    await old.close()
    if request.param == "sqlite":
        store: LeaseStore = SqliteLeaseStore(first_release, namespace=ENDPOINT)
    else:
        clients = DynamoDbClients(request.getfixturevalue("dynamodb"))
        store = DynamoDbLeaseStore(clients, dynamodb_table, namespace=ENDPOINT)
        await store.write(ConsumerRecord(stream_arn="any", consumer_name="any", created_at=0.0))
        for record in records:
            await put_as_of_the_first_release(clients, dynamodb_table, record)
    yield store
    await store.close()


async def put_as_of_the_first_release(clients: DynamoDbClients, table: str, record: ConsumerRecord) -> None:
    """Item by item, as its code wrote them: with names for streams, and without what came later."""
    item = {
        "stream": {"S": f"{record.stream_arn} {ENDPOINT}"},
        "consumer_name": {"S": record.consumer_name},
        "namespace": {"S": ENDPOINT},
        "stream_name": {"S": record.stream_arn},
        "version": {"N": str(record.version)},
        "write_id": {"S": "any"},
        "fencing_token": {"N": str(record.fencing_token)},
        "created_at": {"N": repr(record.created_at)},
        "phase": {"S": record.phase.value},
        "consumer_arn": {"S": record.consumer_arn},
        "registration_is_ours": {"BOOL": record.registration_is_ours},
        "registering_token": {"N": str(record.registering_token)},
    }
    if record.holding is not None:
        item |= {
            "job_id": {"S": record.holding.job_id},
            "holding_token": {"N": str(record.holding.fencing_token)},
            "acquired_at": {"N": repr(record.holding.acquired_at)},
            "renewed_at": {"N": repr(record.holding.renewed_at)},
            "time_to_live_seconds": {"N": repr(record.holding.time_to_live_seconds)},
        }
    if record.idle_since is not None:
        item["idle_since"] = {"N": repr(record.idle_since)}
    async with clients.aio_client("dynamodb") as client:
        await client.call("put_item", TableName=table, Item=item)


def kinesis_of_then() -> FakeKinesis:
    """What Kinesis had when the first release wrote its store: the stream `gone` is gone since."""
    kinesis = FakeKinesis(streams=("flights", "weather"))
    for stream, name in (("flights", "delays"), ("flights", "idle"), ("weather", "by-hand"), ("weather", "by-arn")):
        kinesis.register_outside(stream, name)
    kinesis.register_outside("flights", "begun")
    return kinesis


async def test_a_store_of_the_first_release_is_taken_over(old_store: LeaseStore) -> None:
    """Holders keep their leases, by name and by ARN; what was ours is ours; tokens go on."""
    kinesis, clock = kinesis_of_then(), ManualClock()
    registry = open_registry(old_store, kinesis, clock)
    held = Holding(job_id="delays-prod", fencing_token=3, acquired_at=0.0, renewed_at=0.0, time_to_live_seconds=30.0)
    await registry.reconcile()
    records = {record.key: record for record in await old_store.list() if not record.is_by_name}
    delays = records[STREAM, "delays"]
    assert delays.holding is not None
    assert (delays.holding.job_id, delays.holding.fencing_token) == (held.job_id, held.fencing_token)
    assert (delays.consumer_arn, delays.registration_is_ours) == (f"{STREAM}/consumer/delays:1700000001", True)
    assert records[STREAM, "idle"].registration_is_ours
    assert not records[WEATHER, "by-hand"].registration_is_ours
    assert known(records[WEATHER, "by-arn"].holding).job_id == "arn-job"
    # Begun by a registry that was killed: Kinesis has it under the stream of this name.
    assert (records[STREAM, "begun"].phase, records[STREAM, "begun"].registration_is_ours) == ("registered", True)
    again = await registry.acquire(request_for(job_id="delays-prod"))
    assert (again.fencing_token, again.consumer_arn) == (4, delays.consumer_arn)
    assert (await registry.acquire(request_for("weather", "new", "ended"))).fencing_token == 3


@pytest.mark.parametrize("kills_after", [1, 2, 3, 4, 5])
async def test_taking_over_may_be_killed_at_any_moment_and_repeated(
    old_store: LeaseStore, kills_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, nothing is doubled."""
    kinesis, write, written = kinesis_of_then(), old_store.write, []

    class Killed(BaseException):
        pass

    async def write_and_die(record: ConsumerRecord) -> bool:
        answer = await write(record)
        written.append(record)
        if len(written) == kills_after:
            raise Killed
        return answer

    monkeypatch.setattr(old_store, "write", write_and_die)
    with pytest.raises(Killed):
        await open_registry(old_store, kinesis).reconcile()
    monkeypatch.setattr(old_store, "write", write)
    registry = open_registry(old_store, kinesis)
    await registry.reconcile()
    found = [record for record in await old_store.list() if record.phase is not RegistrationPhase.ABSENT]
    assert sorted(one.key for one in found if not one.is_by_name) == [
        (STREAM, "begun"),
        (STREAM, "delays"),
        (STREAM, "idle"),
        (WEATHER, "by-arn"),
        (WEATHER, "by-hand"),
    ]
    assert [one.stream_arn for one in found if one.is_by_name] == ["gone"]


async def test_holders_keep_their_leases_and_tokens_continue_in_a_file_with_schema_2(tmp_path: Path) -> None:
    kinesis = FakeKinesis(streams=("flights", "weather"))
    for stream, name in (("flights", "delays"), ("flights", "idle"), ("weather", "by-hand"), ("weather", "ended")):
        kinesis.register_outside(stream, name)
    store = SqliteLeaseStore(stored_file(tmp_path, 2), namespace=ENDPOINT)
    registry = open_registry(store, kinesis)
    idle = known(await store.get(STREAM, "idle"))
    assert (idle.holding, idle.registration_is_ours) == (None, True)
    holding = known(known(await store.get(WEATHER, "by-hand")).holding)
    assert (holding.job_id, holding.fencing_token) == ("weather-job", 1)
    held = Lease(
        stream_name="flights",
        stream_arn=STREAM,
        consumer_name="delays",
        job_id="delays-prod",
        consumer_arn=f"{STREAM}/consumer/delays:1700000001",
        fencing_token=3,
        time_to_live_seconds=30.0,
        registration_is_ours=True,
    )
    assert (await registry.heartbeat(held)).held
    with pytest.raises(ConsumerHeldError):
        await registry.acquire(request_for(job_id="other"))
    again = await registry.acquire(request_for(job_id="delays-prod"))
    assert (again.fencing_token, again.consumer_arn) == (4, held.consumer_arn)
    # An operator ended this lease.
    with pytest.raises(LeaseLostError):
        await registry.acquire(request_for("weather", "weather-job", "ended", after_fencing_token=1))
    assert (await registry.acquire(request_for("weather", "weather-job", "ended"))).fencing_token == 2
    await registry.close()


@pytest.mark.parametrize(
    ("schema", "names"),
    [(1, ["delays", "idle", "by-arn", "by-hand"]), (2, ["delays", "idle", "by-hand", "ended"])],
)
async def test_a_read_only_store_lists_an_earlier_file_and_leaves_it_unchanged(
    tmp_path: Path, schema: int, names: list[str]
) -> None:
    path = stored_file(tmp_path, schema)
    before = path.read_bytes()
    registry = open_registry(SqliteLeaseStore(path, namespace=ENDPOINT, read_only=True), FakeKinesis())
    consumers = await registry.list_consumers()
    await registry.close()
    assert sorted(one.consumer_name for one in consumers) == sorted(names)
    assert {one.stream_arn for one in consumers} == {STREAM, WEATHER}
    assert path.read_bytes() == before
