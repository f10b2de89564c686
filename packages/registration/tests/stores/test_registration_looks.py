"""A look at a store changes nothing in it, whatever the clocks say."""

from pathlib import Path

import pytest
from registry_homes import OpenStore

from penstock.registration import (
    ConsumerRecord,
    DynamoDbLeaseStore,
    Holding,
    LeaseStore,
    LocalConsumerRegistry,
    RegistrationPhase,
    SqliteLeaseStore,
    StreamConsumerRegistrar,
)
from penstock.registration.testing import DynamoDbClients, FakeKinesis, ManualClock

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb"])
async def test_a_lease_of_a_clock_that_is_ahead_is_listed_and_left_alone(
    open_store: OpenStore, kind: str, tmp_path: Path, dynamodb_table: str, request: pytest.FixtureRequest
) -> None:
    """The machine of its job is a minute ahead: who may only read lists it as it is, and writes nothing."""
    clock = ManualClock()
    at = clock() + 60
    holding = Holding(job_id="job", fencing_token=3, acquired_at=at, renewed_at=at, time_to_live_seconds=30)
    record = ConsumerRecord(
        stream_arn=STREAM,
        consumer_name="delays",
        created_at=at,
        fencing_token=3,
        phase=RegistrationPhase.REGISTERED,
        consumer_arn="arn",
        holding=holding,
    )
    theirs = open_store(kind)
    assert await theirs.write([record]) == [True]
    if kind == "sqlite":
        looking: LeaseStore = SqliteLeaseStore(tmp_path / "leases.db", read_only=True)
    else:
        clients = DynamoDbClients(request.getfixturevalue("dynamodb"))
        looking = DynamoDbLeaseStore(clients, dynamodb_table, read_only=True)
    registry = LocalConsumerRegistry(StreamConsumerRegistrar(FakeKinesis()), looking, clock=clock, wall_clock=clock)
    before = await theirs.get(STREAM, "delays")
    try:
        (consumer,) = await registry.list_consumers()
    finally:
        await registry.close()
    assert consumer.lease is not None
    assert (consumer.lease.job_id, consumer.lease.time_to_live_seconds) == ("job", 30)
    assert await theirs.get(STREAM, "delays") == before
