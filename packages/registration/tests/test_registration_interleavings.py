"""What happens when a call is late or given up between two steps of another."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from registry_homes import Parts, known

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration import ConsumerRecord, FoundConsumer, RegistrationPhase
from penstock.registration._remote.heartbeats import HeartbeatInbox

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"


async def test_a_call_with_more_heartbeats_than_it_takes_ends() -> None:
    """A client that floods and goes leaves nothing behind: who still has one to hand over lets go."""

    full = asyncio.Event()

    async def flood() -> AsyncIterator[pb.HeartbeatRequest]:
        for _ in range(1_000):
            yield pb.HeartbeatRequest()
        full.set()
        yield pb.HeartbeatRequest()

    async with asyncio.timeout(10):
        async with HeartbeatInbox(flood(), asyncio.Event()):
            await full.wait()


async def test_a_replica_that_looks_late_leaves_a_new_registration_alone(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was about to end what a killed registry had begun; meanwhile a job had the consumer registered anew."""
    slow, quick = parts(), parts()
    record = ConsumerRecord(
        stream_arn=STREAM, consumer_name="delays", created_at=0, phase=RegistrationPhase.REGISTERING, idle_since=0
    )
    assert await slow.store.write([record]) == [True]
    find, looking, go_on = slow.local._registrar.find, asyncio.Event(), asyncio.Event()

    async def find_late(*which: str, **options: Any) -> FoundConsumer | None:
        looking.set()
        await go_on.wait()
        return await find(*which, **options)

    monkeypatch.setattr(slow.local._registrar, "find", find_late)
    sweeping = asyncio.create_task(slow.local.sweep())
    await looking.wait()
    lease = await quick.acquire("job")
    go_on.set()
    await sweeping
    assert quick.kinesis.names() == {"delays"}
    assert (await quick.registry.heartbeat(lease)).held


async def test_a_lease_whose_write_arrives_after_its_caller_gave_up_is_nobodys(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of DynamoDB, where a request goes on in its thread when nobody waits for it any more."""
    home = parts()
    write, sent, go_on = home.store.write, asyncio.Event(), asyncio.Event()

    async def arrive(records: Sequence[ConsumerRecord]) -> list[bool]:
        await go_on.wait()
        return await write(records)

    async def send(records: Sequence[ConsumerRecord]) -> list[bool]:
        monkeypatch.setattr(home.store, "write", write)
        arriving.append(asyncio.create_task(arrive(records)))
        sent.set()
        return await asyncio.shield(arriving[0])

    arriving: list[asyncio.Task[list[bool]]] = []
    monkeypatch.setattr(home.store, "write", send)
    waiting = asyncio.create_task(home.acquire("first"))
    await sent.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    await arriving[0]
    assert known(await home.store.get(STREAM, "delays")).holding is None
    assert (await home.acquire("another")).job_id == "another"
