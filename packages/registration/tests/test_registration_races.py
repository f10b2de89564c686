"""Cancellations, kills, restarts, two registries, and wrong tokens."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from registry_homes import Home, Parts, Serving, known

from penstock.registration import (
    AcquireRequest,
    ConsumerRecord,
    FoundConsumer,
    Heartbeat,
    Lease,
    LeaseKeeper,
    OrphanFate,
    RemoteConsumerRegistry,
)
from penstock.registration._remote import servicer
from penstock.registration._remote.registry import HeartbeatInbox
from penstock.registration.errors import (
    RegistrationError,
    RegistryUnavailableError,
)
from penstock.rpc import ClientSecurity, ServerSecurity

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"


class Killed(BaseException):
    """Ends a registry without any further step."""


def kill_after(home: Home, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the registry after the next call of an operation: it writes nothing more."""

    def die() -> None:
        monkeypatch.setattr(home.store, "write", None)
        raise Killed

    home.kinesis.after[operation] = die


async def cancel(home: Home, acquiring: "asyncio.Task[Lease]") -> None:
    """Cancel an acquire; its lease is given back."""
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    record = known(await home.store.get(STREAM, "delays"))
    assert (record.holding, record.fencing_token) == (None, 1)


async def test_cancelling_an_acquire_gives_the_lease_back(parts: Parts) -> None:
    """A cancelled caller does not block the next one."""
    home = parts()
    registering = asyncio.Event()
    loop = asyncio.get_running_loop()

    def call_back() -> None:
        loop.call_soon_threadsafe(registering.set)

    home.kinesis.after["register_stream_consumer"] = call_back
    home.kinesis.looks = 10**9
    waiting = asyncio.create_task(home.acquire("first"))
    await registering.wait()
    await cancel(home, waiting)


async def test_cancelling_while_the_lease_is_written_gives_it_back(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write may have happened although its caller was cancelled."""
    home = parts()
    write = home.store.write
    written = asyncio.Event()

    async def write_and_hang(record: ConsumerRecord) -> None:
        await write(record)
        monkeypatch.setattr(home.store, "write", write)
        written.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(home.store, "write", write_and_hang)
    waiting = asyncio.create_task(home.acquire("first"))
    await written.wait()
    await cancel(home, waiting)


@pytest.mark.parametrize("operation", ["register_stream_consumer", "deregister_stream_consumer"])
async def test_killed_between_kinesis_and_the_note_leaves_no_orphan(
    parts: Parts, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor finds the unfinished registration, and ends it."""
    home = parts()
    kill_after(home, operation, monkeypatch)
    with pytest.raises((Killed, TypeError)):
        await home.registry.release(await home.acquire())
    successor = parts()
    # As long as a registration may take: no heartbeats are sent for its lease yet.
    await successor.watch(125)
    assert home.kinesis.names() == set()
    assert await successor.registry.list_consumers() == []


async def test_acquiring_a_consumer_in_deregistration_registers_it_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfinished de-registration is completed first: its consumer may disappear at any moment."""
    home = parts()
    lease = await home.acquire()

    async def die(_arn: str) -> None:
        raise Killed

    monkeypatch.setattr(home.local._registrar, "deregister", die)
    with pytest.raises(Killed):
        await home.registry.release(lease)
    again = await parts().acquire()
    assert again.consumer_arn != lease.consumer_arn
    assert again.registration_is_ours
    assert home.kinesis.names() == {"delays"}


async def test_a_wrong_token_is_refused(parts: Parts, serving: Serving) -> None:
    """It is an access error, which is not retried."""
    async with serving(parts().registry, ServerSecurity(token="a-right-token-of-tests-with-32-characters")) as server:
        async with RemoteConsumerRegistry(server.address, ClientSecurity(token="wrong" * 7)) as registry:
            with pytest.raises(RegistrationError) as raised:
                await registry.list_consumers()
            assert raised.value.code == "REGISTRY_ACCESS"
        async with RemoteConsumerRegistry(
            server.address, ClientSecurity(token="a-right-token-of-tests-with-32-characters")
        ) as registry:
            assert await registry.list_consumers() == []


async def held_again(remote: RemoteConsumerRegistry, lease: Lease) -> Heartbeat:
    """The first heartbeat that is answered, as a keeper asks for it."""
    while True:
        try:
            return await remote.heartbeat(lease)
        except RegistryUnavailableError:
            await asyncio.sleep(0.1)


async def test_a_drain_ends_heartbeat_streams_and_the_client_opens_another(parts: Parts, serving: Serving) -> None:
    """The server does not wait for streams that never end, and its successor hears the next heartbeat."""
    home = parts()
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(10):
            async with serving(home.registry, drain_seconds=30) as server:
                remote = await stack.enter_async_context(RemoteConsumerRegistry(server.address))
                lease = await remote.acquire(
                    AcquireRequest(stream_name="flights", consumer_name="delays", job_id="job")
                )
                assert (await remote.heartbeat(lease)).held
        with pytest.raises(RegistryUnavailableError):
            await remote.heartbeat(lease)
        async with serving(home.registry, port=server.port), asyncio.timeout(20):
            outcome = await held_again(remote, lease)
        assert outcome.held


@pytest.mark.parametrize("drain", [True, False])
async def test_a_restart_between_two_heartbeats_loses_no_lease(parts: Parts, serving: Serving, drain: bool) -> None:
    """The next heartbeat finds its stream ended or broken, and opens another.

    While the channel itself was busy connecting to a server that was not there, it tells so once: keepers ask again.
    """
    home = parts()
    async with AsyncExitStack() as stack:
        async with serving(home.registry, drain=drain, drain_seconds=0) as server:
            remote = await stack.enter_async_context(RemoteConsumerRegistry(server.address))
            lease = await remote.acquire(AcquireRequest(stream_name="flights", consumer_name="delays", job_id="job"))
            assert (await remote.heartbeat(lease)).held
        async with serving(home.registry, port=server.port), asyncio.timeout(20):
            assert (await held_again(remote, lease)).held


async def test_reconciling_writes_down_what_a_killed_registry_had_registered(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the start, before any other call, the registry knows the consumer by its ARN, and as ours."""
    home = parts()
    kill_after(home, "register_stream_consumer", monkeypatch)
    with pytest.raises((Killed, TypeError)):
        await home.acquire()
    successor = parts()
    await successor.local.reconcile()
    (consumer,) = await successor.registry.list_consumers()
    assert consumer.registration_is_ours
    assert consumer.consumer_arn.endswith("/consumer/delays:1700000001")


async def test_all_leases_of_a_job_share_one_stream_of_heartbeats(
    parts: Parts, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five consumers, kept by one keeper over one call."""
    home = parts()
    opened = 0

    def count(*arguments: Any) -> HeartbeatInbox:
        nonlocal opened
        opened += 1
        return HeartbeatInbox(*arguments)

    monkeypatch.setattr(servicer, "HeartbeatInbox", count)
    beats: asyncio.Queue[str] = asyncio.Queue()
    heartbeat = home.local.heartbeat

    async def note(lease: Lease) -> Heartbeat:
        beats.put_nowait(lease.consumer_name)
        return await heartbeat(lease)

    monkeypatch.setattr(home.local, "heartbeat", note)
    names = {f"consumer-{number}" for number in range(5)}
    async with (
        serving(home.registry) as server,
        RemoteConsumerRegistry(server.address) as remote,
        LeaseKeeper(remote) as keeper,
    ):
        for name in names:
            request = AcquireRequest(
                stream_name="flights", consumer_name=name, job_id="job", time_to_live=timedelta(seconds=1)
            )
            keeper.keep(await remote.acquire(request), lambda error: pytest.fail(str(error)))
        async with asyncio.timeout(20):
            heard = [await beats.get() for _ in range(15)]
    assert set(heard) == names
    assert opened == 1


async def test_a_call_is_retried_until_the_registry_is_back(parts: Parts, serving: Serving) -> None:
    """With back-off: a job that starts while the registry restarts only starts later."""
    home = parts()
    async with serving(None) as server:
        port = server.port
    attempts = asyncio.Event()

    async def sleep(seconds: float) -> None:
        attempts.set()
        await asyncio.sleep(seconds)

    async with RemoteConsumerRegistry(f"127.0.0.1:{port}", sleep=sleep) as remote:
        asking = asyncio.create_task(
            remote.acquire(AcquireRequest(stream_name="flights", consumer_name="delays", job_id="job"))
        )
        await attempts.wait()
        async with serving(home.registry, port=port):
            assert (await asking).fencing_token == 1


async def test_a_consumer_that_is_leased_while_garbage_is_collected_stays(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record decides when the consumer is ended, not the list."""
    home = parts(grace=timedelta(hours=1))
    await home.registry.release(await home.acquire())
    listed = home.local._registrar.list_consumers

    async def list_and_lease(arn: str) -> list[FoundConsumer]:
        found = await listed(arn)
        await parts().acquire("another")
        return found

    monkeypatch.setattr(home.local._registrar, "list_consumers", list_and_lease)
    (orphan,) = await home.local.collect_garbage()
    assert (orphan.fate, orphan.reason) == (OrphanFate.KEPT, "leased in the meantime")
    assert home.kinesis.names() == {"delays"}


async def test_the_same_job_continues_after_it_was_killed_while_registering(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer that its predecessor registered is ours, and it is not registered twice."""
    home = parts()
    kill_after(home, "register_stream_consumer", monkeypatch)
    with pytest.raises((Killed, TypeError)):
        await home.acquire()
    lease = await parts().acquire()
    assert lease.registration_is_ours
    assert home.kinesis.calls.count("register_stream_consumer") == 1


async def test_a_registration_that_kinesis_refused_is_not_taken_for_ours_later(parts: Parts) -> None:
    """Another program registers the same name afterwards: the consumer is used, and stays registered."""
    home = parts()
    home.kinesis.fail("register_stream_consumer", "AccessDeniedException")
    with pytest.raises(RegistrationError) as raised:
        await home.acquire()
    assert raised.value.code == "REGISTRATION_DENIED"
    home.kinesis.register_outside("flights", "delays")
    assert await home.local.sweep() == []
    lease = await home.acquire()
    assert not lease.registration_is_ours
    assert await home.registry.release(lease) is False
    assert home.kinesis.names() == {"delays"}
