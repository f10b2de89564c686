"""Registries of both homes, over a Kinesis in memory and a SQLite file."""

import asyncio
import uuid
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from penstock.registration import (
    SERVICE_NAME,
    AcquireRequest,
    ConsumerRegistryServicer,
    DynamoDbLeaseStore,
    LeaseSettings,
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


class Home:
    """A registry of one home, and what is behind it."""

    def __init__(self, registry, local, kinesis, clock, store):
        self.registry = registry
        self.local = local
        self.kinesis = kinesis
        self.clock = clock
        self.store = store

    async def watch(self, seconds):
        """Let time pass while the registry sweeps, as a service does. Returns what was ended."""
        ended = []
        for _ in range(round(seconds)):
            self.clock.advance(1)
            ended += await self.local.sweep()
        return ended

    async def acquire(self, job_id="job", **options):
        options = {"stream_name": "flights", "consumer_name": "delays", **options}
        return await self.registry.acquire(AcquireRequest(job_id=job_id, **options))


def make_local(path, kinesis, clock, grace=timedelta(0), **settings):
    async def sleep(seconds):
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
async def _serving(registry, security=None, *, drain=True, **settings):
    servicer = ConsumerRegistryServicer(registry)
    settings = ServerSettings(security=security or ServerSecurity(), **settings)
    async with GrpcServer(settings, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server:
        try:
            yield server
        finally:
            if drain:
                servicer.drain()


@pytest.fixture(params=["local", "remote"])
def open_home(request, tmp_path):
    """Opens a registry of the home; several calls open several registries over one store."""

    @asynccontextmanager
    async def open_it(kinesis=None, clock=None, **settings):
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
async def home(open_home):
    async with open_home() as opened:
        yield opened


@pytest.fixture
async def parts(tmp_path):
    kinesis, clock = FakeKinesis(), ManualClock()
    registries = []

    def make(**settings):
        registry, store = make_local(tmp_path / "leases.db", kinesis, clock, **settings)
        registries.append(registry)
        return Home(registry, registry, kinesis, clock, store)

    yield make
    for registry in registries:
        await registry.close()


@pytest.fixture(scope="session")
def dynamodb():
    with running_dynamodb() as endpoint_url:
        yield endpoint_url


@pytest.fixture
async def open_store(request, tmp_path, dynamodb_table):
    """Opens a store by kind; several calls of a kind open several stores over the same records."""
    stores = []
    in_memory = InMemoryLeaseStore()

    def open_it(kind):
        match kind:
            case "memory":
                return in_memory
            case "sqlite":
                store = SqliteLeaseStore(tmp_path / "leases.db")
            case _:
                endpoint_url = request.getfixturevalue("dynamodb")
                store = DynamoDbLeaseStore(DynamoDbClients(endpoint_url), dynamodb_table)
        stores.append(store)
        return store

    yield open_it
    for store in stores:
        await store.close()


@pytest.fixture
def dynamodb_table():
    """A name that no other test uses."""
    return f"leases-{uuid.uuid4()}"


@pytest.fixture
def serving():
    """`async with serving(registry) as server`: the registry over gRPC."""
    return _serving


@pytest.fixture
def open_parts(tmp_path):
    """Another registry on the store of `home`, as another process would have it."""
    return lambda home: make_local(tmp_path / "leases.db", home.kinesis, home.clock)[0]
