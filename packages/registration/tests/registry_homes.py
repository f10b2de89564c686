"""Registries of both homes, over a Kinesis in memory and a SQLite file."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.registration import (
    SERVICE_NAME,
    AcquireRequest,
    Consumer,
    ConsumerRegistryServicer,
    DynamoDbLeaseStore,
    Heartbeat,
    Lease,
    LeaseSettings,
    LeaseStore,
    LocalConsumerRegistry,
    RegistrarConfig,
    RemoteConsumerRegistry,
    SqliteLeaseStore,
    StreamConsumerRegistrar,
)
from penstock.registration.testing import (
    DynamoDbClients,
    FakeKinesis,
    InMemoryLeaseStore,
    ManualClock,
    running_dynamodb,
)
from penstock.rpc import GrpcServer, ServerSecurity, ServerSettings

Known = TypeVar("Known")
Parts = Callable[..., "Home"]
OpenHome = Callable[..., AbstractAsyncContextManager["Home"]]
OpenParts = Callable[["Home"], LocalConsumerRegistry]
OpenStore = Callable[..., LeaseStore]
Serving = Callable[..., AbstractAsyncContextManager[GrpcServer]]


class Unasked:
    """A registry of which nothing is asked: a base for those that answer some of it."""

    async def acquire(self, request: AcquireRequest) -> Lease:
        raise AssertionError(request)

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        raise AssertionError(lease)

    async def release(self, lease: Lease, *, disown: bool = False) -> bool:
        raise AssertionError(lease, disown)

    async def list_consumers(self, stream_name: str | None = None, *, with_state: bool = False) -> list[Consumer]:
        raise AssertionError(stream_name, with_state)

    async def close(self) -> None:
        raise AssertionError


def known(value: Known | None) -> Known:
    """What is there, as the test says."""
    assert value is not None
    return value


class Home:
    """A registry of one home, and what is behind it."""

    def __init__(
        self,
        registry: LocalConsumerRegistry | RemoteConsumerRegistry,
        local: LocalConsumerRegistry,
        kinesis: FakeKinesis,
        clock: ManualClock,
        store: LeaseStore,
    ) -> None:
        self.registry = registry
        self.local = local
        self.kinesis = kinesis
        self.clock = clock
        self.store = store

    async def watch(self, seconds: float) -> list[tuple[str, str]]:
        """Let time pass while the registry sweeps, as a service does. Returns what was ended."""
        ended: list[tuple[str, str]] = []
        for _ in range(round(seconds)):
            self.clock.advance(1)
            ended += await self.local.sweep()
        return ended

    async def acquire(self, job_id: str = "job", **options: Any) -> Lease:
        options = {"stream_name": "flights", "consumer_name": "delays", **options}
        return await self.registry.acquire(AcquireRequest(job_id=job_id, **options))


def make_local(
    path: Path, kinesis: FakeKinesis, clock: ManualClock, grace: timedelta = timedelta(0), **settings: Any
) -> tuple[LocalConsumerRegistry, SqliteLeaseStore]:
    async def sleep(seconds: float) -> None:
        # Time moves by what is slept, and others get their turn.
        clock.advance(seconds)
        await asyncio.sleep(0)

    registrar = StreamConsumerRegistrar(kinesis, RegistrarConfig(), sleep=sleep, clock=clock)
    store = SqliteLeaseStore(path)
    lease_settings = LeaseSettings(grace_period=grace, **settings)
    return LocalConsumerRegistry(
        registrar, store, settings=lease_settings, clock=clock, wall_clock=clock, sleep=sleep
    ), store


@asynccontextmanager
async def _serving(
    registry: LocalConsumerRegistry, security: ServerSecurity | None = None, *, drain: bool = True, **settings: Any
) -> AsyncIterator[GrpcServer]:
    servicer = ConsumerRegistryServicer(registry)
    given = ServerSettings(security=security or ServerSecurity(), **settings)
    async with GrpcServer(given, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server:
        try:
            yield server
        finally:
            if drain:
                servicer.drain()


@pytest.fixture(params=["local", "remote"])
def open_home(request: pytest.FixtureRequest, tmp_path: Path) -> OpenHome:
    """Opens a registry of the home; several calls open several registries over one store."""

    @asynccontextmanager
    async def open_it(
        kinesis: FakeKinesis | None = None, clock: ManualClock | None = None, **settings: Any
    ) -> AsyncIterator[Home]:
        kinesis, clock = kinesis or FakeKinesis(), clock or ManualClock()
        local, store = make_local(tmp_path / "leases.db", kinesis, clock, **settings)
        if request.param == "local":
            yield Home(local, local, kinesis, clock, store)
        else:
            async with _serving(local) as server, RemoteConsumerRegistry(server.address) as remote:
                yield Home(remote, local, kinesis, clock, store)
        await local.close()

    return open_it


@pytest.fixture
async def home(open_home: OpenHome) -> AsyncIterator[Home]:
    async with open_home() as opened:
        yield opened


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    kinesis, clock = FakeKinesis(), ManualClock()
    registries = []

    def make(**settings: Any) -> Home:
        registry, store = make_local(tmp_path / "leases.db", kinesis, clock, **settings)
        registries.append(registry)
        return Home(registry, registry, kinesis, clock, store)

    yield make
    for registry in registries:
        await registry.close()


@pytest.fixture(scope="session")
def dynamodb() -> Iterator[str]:
    with running_dynamodb() as endpoint_url:
        yield endpoint_url


@pytest.fixture
async def open_store(request: pytest.FixtureRequest, tmp_path: Path, dynamodb_table: str) -> AsyncIterator[OpenStore]:
    """Opens a store by kind; several calls of a kind open several stores over the same records."""
    stores: list[LeaseStore] = []
    in_memory = InMemoryLeaseStore()

    def open_it(kind: str, **options: Any) -> LeaseStore:
        match kind:
            case "memory":
                return in_memory
            case "sqlite":
                store: LeaseStore = SqliteLeaseStore(tmp_path / "leases.db", **options)
            case _:
                endpoint_url = request.getfixturevalue("dynamodb")
                store = DynamoDbLeaseStore(DynamoDbClients(endpoint_url), dynamodb_table, **options)
        stores.append(store)
        return store

    yield open_it
    for store in stores:
        await store.close()


@pytest.fixture
def dynamodb_table() -> str:
    """A name that no other test uses."""
    return f"leases-{uuid.uuid4()}"


@pytest.fixture
def serving() -> Serving:
    """`async with serving(registry) as server`: the registry over gRPC."""
    return _serving


@pytest.fixture
def open_parts(tmp_path: Path) -> OpenParts:
    """Another registry on the store of `home`, as another process would have it."""
    return lambda home: make_local(tmp_path / "leases.db", home.kinesis, home.clock)[0]
