"""What may come between a job and its consumer, against the emulator over real sockets and real gRPC."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from registry_homes import Serving

from penstock.aws import AwsSession, BackoffPolicy
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import (
    AcquireRequest,
    ConsumerState,
    DynamoDbLeaseStore,
    LeaseSettings,
    LeaseStore,
    OrphanFate,
    RemoteConsumerRegistry,
    SqliteLeaseStore,
    open_local_registry,
)
from penstock.registration import _registrar as registrar
from penstock.registration.errors import (
    ConsumerNotFoundError,
    RegistrationError,
)
from penstock.registration.testing import DynamoDbClients, Wire, running_wire

OpenRemote = Callable[..., AbstractAsyncContextManager[RemoteConsumerRegistry]]

LIMIT = 4
# Longer than any test: on a busy machine a lease of 30 s runs out between two calls, and is another job's by right.
LIFE = timedelta(hours=1)


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(
        consumer_creation_delay=timedelta(seconds=0.3),
        consumer_deletion_delay=timedelta(seconds=1),
        consumers_per_stream=LIMIT,
    ) as running:
        yield running


@pytest.fixture
def stream(emulator: RunningEmulator, request: pytest.FixtureRequest) -> str:
    """A stream of this try of the test, and its name."""
    name = f"{request.node.name.partition('[')[0][-60:]}-{uuid.uuid4().hex[:8]}"
    emulator.client().create_stream(StreamName=name, ShardCount=2)
    return name


@pytest.fixture
def outside(emulator: RunningEmulator, stream: str) -> "Outside":
    """What somebody else does with the stream's consumers."""
    # Kinesis's limits hold for tests, too.
    config = Config(retries={"mode": "standard", "total_max_attempts": 10})
    return Outside(emulator.client(config=config), stream)


class Outside:
    def __init__(self, client: Any, stream: str) -> None:
        self.client = client
        self.arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]

    def register(self, name: str) -> str:
        return str(
            self.client.register_stream_consumer(StreamARN=self.arn, ConsumerName=name)["Consumer"]["ConsumerARN"]
        )

    def deregister(self, name: str) -> None:
        self.client.deregister_stream_consumer(StreamARN=self.arn, ConsumerName=name)

    def states(self) -> dict[str, str]:
        consumers = self.client.list_stream_consumers(StreamARN=self.arn)["Consumers"]
        return {each["ConsumerName"]: each["ConsumerStatus"] for each in consumers}

    async def until(self, states: dict[str, str]) -> None:
        async with asyncio.timeout(20):
            while await asyncio.to_thread(self.states) != states:  # noqa: ASYNC110  # Kinesis sends no events
                await asyncio.sleep(0.25)


@pytest.fixture
def wire(emulator: RunningEmulator) -> Iterator[Wire]:
    with running_wire(emulator.endpoint_url) as laid:
        yield laid


@pytest.fixture
def open_remote(wire: Wire, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRemote:
    """Opens a registry behind gRPC; the registries of one test share a store."""
    monkeypatch.setattr(registrar, "_RETRIES", BackoffPolicy(max_attempts=3))

    @asynccontextmanager
    async def open_it(store: LeaseStore | None = None, **settings: Any) -> AsyncIterator[RemoteConsumerRegistry]:
        local = open_local_registry(
            AwsSession(emulator_options(wire.url)),
            store=store or SqliteLeaseStore(tmp_path / "leases.db"),
            settings=LeaseSettings(default_time_to_live=LIFE, longest_time_to_live=LIFE, **settings),
        )
        async with serving(local) as server, RemoteConsumerRegistry(server.address) as remote:
            yield remote
        await local.close()

    return open_it


@pytest.fixture
async def registry(open_remote: OpenRemote) -> AsyncIterator[RemoteConsumerRegistry]:
    async with open_remote(grace_period=timedelta(0)) as opened:
        yield opened


def request_for(stream: str, job_id: str = "job", consumer_name: str = "delays", **options: Any) -> AcquireRequest:
    return AcquireRequest(stream_name=stream, consumer_name=consumer_name, job_id=job_id, **options)


async def test_200_tasks_at_once_ask_for_one_registration_per_stream(
    registry: RemoteConsumerRegistry, emulator: RunningEmulator, wire: Wire
) -> None:
    """Lazily, over twelve streams: one RegisterStreamConsumer each, and at most five in CREATING.

    That they are sent at five a second is shown beside a clock that the test moves: calls of a busy machine arrive in
    bunches, however they were sent.
    """
    client = emulator.client()
    streams = [f"many-{uuid.uuid4().hex[:8]}-{number}" for number in range(12)]
    for name in streams:
        client.create_stream(StreamName=name, ShardCount=1)
    tasks = [registry.acquire(request_for(streams[number % 12], streams[number % 12])) for number in range(200)]
    leases = await asyncio.gather(*tasks)
    assert len({lease.consumer_arn for lease in leases}) == 12
    assert all(lease.registration_is_ours for lease in leases)
    registrations = [call for call in wire.calls if call.operation == "RegisterStreamConsumer"]
    # On a slow machine calls bunch up, and one may be throttled and made again.
    heard = [call for call in registrations if "LimitExceededException" not in str(call.answer)]
    assert set(Counter(call.parameters["StreamARN"] for call in heard).values()) == {1}
    creating, most_creating = set(), 0
    for call in wire.calls:
        if call.operation == "RegisterStreamConsumer":
            creating |= {consumer["ConsumerARN"] for consumer in [call.answer.get("Consumer")] if consumer}
        elif call.answer.get("ConsumerDescription", {}).get("ConsumerStatus") == "ACTIVE":
            creating.discard(call.answer["ConsumerDescription"]["ConsumerARN"])
        most_creating = max(most_creating, len(creating))
    assert most_creating <= 5


async def test_a_full_stream_is_reported_with_our_idle_consumers(
    open_remote: OpenRemote, outside: Outside, stream: str
) -> None:
    """And garbage collection makes room, touching nothing that is held or not ours."""
    await asyncio.to_thread(outside.register, "theirs")
    async with open_remote(grace_period=timedelta(hours=1)) as registry:
        await registry.acquire(request_for(stream, consumer_name="held"))
        for name in ("idle-1", "idle-2"):
            assert await registry.release(await registry.acquire(request_for(stream, consumer_name=name)))
        with pytest.raises(RegistrationError) as raised:
            await registry.acquire(request_for(stream, consumer_name="new"))
        assert raised.value.code == "CONSUMER_LIMIT"
        facts: Any = raised.value.facts
        assert sorted(facts["existing"]) == ["held", "idle-1", "idle-2", "theirs"]
        assert facts["ours_and_idle"] == ["idle-1", "idle-2"]
        await registry.collect_garbage(stream)
        await registry.acquire(request_for(stream, consumer_name="new"))
        assert set(outside.states()) == {"theirs", "held", "new"}


async def test_a_consumer_deleted_outside_is_registered_again_for_the_next_lease(
    registry: RemoteConsumerRegistry, outside: Outside, stream: str
) -> None:
    """Under another ARN, which is ours; until then the list says that it is absent."""
    first = await registry.acquire(request_for(stream))
    await asyncio.to_thread(outside.deregister, "delays")
    await outside.until({})
    (consumer,) = await registry.list_consumers(stream, with_state=True)
    assert (consumer.state, consumer.cost_per_hour_usd) == (ConsumerState.ABSENT, 0.0)
    second = await registry.acquire(request_for(stream))
    assert second.consumer_arn != first.consumer_arn
    assert second.registration_is_ours
    assert await registry.release(second) is True
    await outside.until({})


@pytest.fixture(params=["sqlite", "dynamodb"])
def open_replica(
    request: pytest.FixtureRequest, open_remote: OpenRemote, tmp_path: Path, dynamodb_table: str
) -> OpenRemote:
    """Opens one of several registries on one store."""

    def open_it(**settings: Any) -> AbstractAsyncContextManager[RemoteConsumerRegistry]:
        if request.param == "sqlite":
            return open_remote(SqliteLeaseStore(tmp_path / "leases.db"), **settings)
        clients = DynamoDbClients(request.getfixturevalue("dynamodb"))
        return open_remote(DynamoDbLeaseStore(clients, dynamodb_table), **settings)

    return open_it


async def test_two_registries_on_one_store_register_once_and_give_one_lease(
    open_replica: OpenRemote, stream: str, wire: Wire
) -> None:
    """Forty jobs ask both at once: one is given the consumer, by one RegisterStreamConsumer."""
    async with open_replica() as one, open_replica() as other:
        asked = [(one, other)[number % 2].acquire(request_for(stream, f"job-{number}")) for number in range(40)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        kinds = Counter(type(outcome).__name__ for outcome in outcomes)
        assert kinds == {"Lease": 1, "ConsumerHeldError": 39}
        assert wire.count("RegisterStreamConsumer") == 1


async def test_consumers_are_listed_with_state_owner_and_cost(
    registry: RemoteConsumerRegistry, outside: Outside, stream: str
) -> None:
    """Two shards at the list price; what was asked without the state is known without it."""
    lease = await registry.acquire(request_for(stream, "delays-prod"))
    (consumer,) = await registry.list_consumers(stream, with_state=True)
    assert consumer.state is ConsumerState.ACTIVE
    assert consumer.cost_per_hour_usd == pytest.approx(0.03)
    assert consumer.lease is not None
    assert (consumer.lease.job_id, consumer.consumer_arn) == ("delays-prod", lease.consumer_arn)
    assert 0 <= consumer.held_seconds <= consumer.age_seconds + 1
    (consumer,) = await registry.list_consumers(stream)
    assert (consumer.state, consumer.cost_per_hour_usd) == (None, None)


async def test_a_release_by_force_ends_the_lease_and_the_registration(
    registry: RemoteConsumerRegistry, outside: Outside, stream: str
) -> None:
    """The holder's next heartbeat says so; a second time there is no lease to end."""
    lease = await registry.acquire(request_for(stream, "stuck"))
    released = await registry.force_release(stream, "delays")
    assert released is not None
    assert (released.job_id, released.fencing_token) == ("stuck", lease.fencing_token)
    assert not (await registry.heartbeat(lease)).held
    await outside.until({})
    assert await registry.force_release(stream, "delays") is None
    with pytest.raises(ConsumerNotFoundError, match="unheard-of"):
        await registry.force_release(stream, "unheard-of")


async def test_garbage_collection_lists_and_ends_orphans(
    open_remote: OpenRemote, outside: Outside, stream: str
) -> None:
    """A dry run changes nothing; what is not ours stays until it is adopted."""
    await asyncio.to_thread(outside.register, "theirs")
    async with open_remote(grace_period=timedelta(hours=1)) as registry:
        await registry.acquire(request_for(stream, consumer_name="held"))
        await registry.release(await registry.acquire(request_for(stream, consumer_name="orphan")))
        await outside.until(dict.fromkeys(("held", "orphan", "theirs"), "ACTIVE"))
        for fate, dry_run in ((OrphanFate.DUE, True), (OrphanFate.ENDED, False)):
            orphan, theirs = await registry.collect_garbage(stream, dry_run=dry_run)
            assert (orphan.consumer.consumer_name, orphan.fate) == ("orphan", fate)
            assert orphan.consumer.cost_per_hour_usd == pytest.approx(0.03)
            assert (theirs.consumer.consumer_name, theirs.fate) == ("theirs", OrphanFate.KEPT)
            assert ("orphan" in outside.states()) == dry_run
        await registry.adopt(stream, "theirs")
        (ended,) = await registry.collect_garbage()
        assert (ended.consumer.consumer_name, ended.fate) == ("theirs", OrphanFate.ENDED)
        assert outside.states() == {"held": "ACTIVE"}
