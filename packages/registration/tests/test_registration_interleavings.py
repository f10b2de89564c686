"""Calls that are late or cancelled between two steps of another call."""

import asyncio

import pytest
from registry_homes import Parts, known

from penstock.registration import ConsumerRecord

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"


async def test_a_lease_whose_write_arrives_after_a_cancellation_is_given_back(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to DynamoDB continues after its caller was cancelled."""
    home = parts()
    write, sent, go_on = home.store.write, asyncio.Event(), asyncio.Event()

    async def arrive(record: ConsumerRecord) -> bool:
        await go_on.wait()
        return await write(record)

    async def send(record: ConsumerRecord) -> bool:
        monkeypatch.setattr(home.store, "write", write)
        arriving.append(asyncio.create_task(arrive(record)))
        sent.set()
        return await asyncio.shield(arriving[0])

    arriving: list[asyncio.Task[bool]] = []
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
