"""What a consumer makes of leases that are lost, starts that know only some streams, and places that cannot be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    CheckpointError,
    Consumer,
    ConsumerBatch,
    EfoConsumerConfigError,
    LocalShardReader,
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    ShardPosition,
    SqliteCheckpointStore,
    StreamConsumer,
    StreamPositions,
)
from penstock.efo_consumer._consumer import leases as leases_module
from penstock.efo_consumer._consumer.leases import ConsumerLeases
from penstock.efo_consumer.testing import FakeKinesis
from penstock.registration import AcquireRequest, Lease
from penstock.registration.errors import LeaseLostError, RegistrationError
from penstock.rpc import ClientSecurity

NOWHERE = emulator_options("http://127.0.0.1:1")


class Registry:
    """Gives every lease, and releases all but one stream's."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.released: list[str] = []
        self.is_closed = False
        self.held: Lease | None = None

    def is_held(self, lease: Lease) -> bool:
        return lease == self.held

    def acquire(self, request: AcquireRequest) -> Lease:
        return Lease(
            stream_name=request.stream_name,
            consumer_name=request.consumer_name,
            job_id=request.job_id,
            consumer_arn=f"arn:aws:kinesis:us-east-1:000000000001:stream/{request.stream_name}/consumer/c:1",
            fencing_token=1,
            time_to_live_seconds=30,
            registration_is_ours=True,
        )

    def keep(self, lease: Lease, on_lost: Any, on_regained: Any) -> None:
        self.on_lost, self.on_regained = on_lost, on_regained

    def release(self, lease: Lease, *, disown: bool = False) -> bool:
        assert not self.is_closed
        self.released.append(lease.stream_name)
        if lease.stream_name == self.refuses:
            raise RegistrationError("throttled")
        return True

    def close(self) -> None:
        self.is_closed = True


async def test_a_predecessor_writes_no_checkpoint_over_its_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that lost its lease gets an error from the checkpoint; what the successor wrote stays."""
    registry = Registry()
    monkeypatch.setattr(leases_module, "open_registry", lambda **_: registry)
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    kinesis.put("s", shard, 3)
    store = SqliteCheckpointStore(tmp_path / "billing.db")
    batches: list[ConsumerBatch] = []
    async with (
        LocalShardReader(kinesis) as reader,
        Consumer(
            "s", efo="billing", start=kinesis.trim_horizon("s"), checkpoints=store, aws=NOWHERE, reader=reader
        ) as consumer,
    ):
        async for batch in consumer:
            batches.append(batch)
            break
        later = StreamPositions({"s": {shard: ShardPosition.after("99999")}})
        await store.save(await store.claim("billing", ["s"], "successor"), later)
        lost = LeaseLostError(stream_name="s", consumer_name="billing", fencing_token=1, reason="taken over")
        registry.on_lost(lost)
        await consumer._leases.lost()
        with pytest.raises(LeaseLostError, match="taken over"):
            await consumer.checkpoint(batches[0])
    assert await store.load("billing") == later


@pytest.mark.parametrize("is_another", [True, False])
async def test_a_lease_that_was_taken_back_after_a_pause_is_still_held(
    is_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a larger token, and perhaps of another stream consumer, which is known once the registry agrees."""
    registry = Registry()
    monkeypatch.setattr(leases_module, "open_registry", lambda **_: registry)
    leases = ConsumerLeases(NOWHERE, None)
    (consumer,) = await leases.acquire(["a"], "billing", "billing")
    lease = registry.acquire(AcquireRequest(stream_name="a", consumer_name="billing", job_id="billing"))
    arn = f"{consumer.consumer_arn}{'2' if is_another else ''}"
    settling = asyncio.ensure_future(leases.settled(["a"]))
    registry.held = replace(lease, fencing_token=2, consumer_arn=arn)
    done, _ = await asyncio.wait([settling], timeout=0.1)
    assert not done
    registry.on_regained(registry.held)
    # One that was late.
    registry.on_regained(lease)
    assert await settling == (StreamConsumer("a", arn, 2),)
    assert not leases.are_lost
    registry.held = None
    registry.on_lost(LeaseLostError(stream_name="a", consumer_name="billing", fencing_token=2, reason="taken over"))
    with pytest.raises(LeaseLostError, match="taken over"):
        await leases.settled(["a"])
    await leases.aclose()


async def test_a_place_that_cannot_be_looked_at_is_told_as_one_of_checkpoints(tmp_path: Path) -> None:
    """In the same words as one that cannot be written."""
    store = SqliteCheckpointStore(tmp_path / ("x" * 300))
    for call in (lambda: store.load("billing"), lambda: store.claim("billing", ["a"], "me"), store.names):
        with pytest.raises(CheckpointError, match=r"x{300}"):
            await call()


def by_efo() -> ReaderConfig:
    return ReaderConfig(publisher=RecordPublisherConfig(record_publisher=RecordPublisherType.EFO))


@pytest.mark.parametrize(
    ("option", "given", "cure"),
    [
        ("registry", {"registry": Path("registry.db")}, "give efo"),
        ("registry_security", {"registry_security": ClientSecurity()}, "give efo"),
        ("lease_timeout", {"lease_timeout": timedelta(seconds=2)}, "give efo"),
        ("lease_timeout", {"lease_timeout": None}, "give efo"),
        ("config", {"config": by_efo()}, "give efo"),
        ("config", {"config": ReaderConfig(), "reader": object()}, "give it to that reader"),
        ("start", {"start": {"s": "LATEST", "t": "LATEST"}}, "t is not among the streams"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(option: str, given: dict[str, Any], cure: str) -> None:
    """With the cure, before anything is opened: who gives it expects something of it."""
    with pytest.raises(EfoConsumerConfigError, match=cure) as refused:
        Consumer("s", aws=NOWHERE, **given)
    assert refused.value.option == option


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        (5, "not 5 (int)"),
        (None, "not None (NoneType)"),
        ("EARLIEST", "not 'EARLIEST'"),
        ("AT_TIMESTAMP", "not 'AT_TIMESTAMP'"),
        ({"s": 5}, "not 5 (int)"),
        ({"s": StreamPositions({})}, "(StreamPositions)"),
    ],
)
def test_a_wrong_start_is_refused_with_what_is_accepted(start: Any, shown: str) -> None:
    """By the name of the argument, before anything is opened."""
    with pytest.raises(EfoConsumerConfigError, match="'LATEST', 'TRIM_HORIZON', InitialPosition") as refused:
        Consumer("s", aws=NOWHERE, start=start)
    assert (refused.value.option, shown in refused.value.reason) == ("start", True)


@pytest.mark.parametrize("refuses", ["a", "b", "c"])
async def test_a_lease_that_cannot_be_given_back_keeps_no_other(refuses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream consumer costs money: the others are released anyway, and the failure is raised."""
    registry = Registry(refuses)
    monkeypatch.setattr(leases_module, "open_registry", lambda **_: registry)
    leases = ConsumerLeases(NOWHERE, None)
    await leases.acquire(["a", "b", "c"], "billing", "billing")
    with pytest.raises(RegistrationError, match="throttled"):
        await leases.aclose()
    assert sorted(registry.released) == ["a", "b", "c"]
    assert registry.is_closed
