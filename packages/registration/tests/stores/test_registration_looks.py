"""A look at a store changes nothing in it, whatever the clocks say."""

import pytest
from registry_homes import OpenStore

from penstock.registration import (
    ConsumerRecord,
    Holding,
    LocalConsumerRegistry,
    RegistrationPhase,
    StreamConsumerRegistrar,
)
from penstock.registration.testing import FakeKinesis, ManualClock

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb"])
async def test_a_read_only_store_lists_a_lease_whose_clock_is_ahead(open_store: OpenStore, kind: str) -> None:
    """The machine of its job is a minute ahead. Listing shows the lease as it is stored, and writes nothing."""
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
    assert await theirs.write(record)
    looking = open_store(kind, read_only=True)
    registry = LocalConsumerRegistry(StreamConsumerRegistrar(FakeKinesis()), looking, clock=clock, wall_clock=clock)
    before = await theirs.get(STREAM, "delays")
    (consumer,) = await registry.list_consumers()
    assert consumer.lease is not None
    assert (consumer.lease.job_id, consumer.lease.time_to_live_seconds) == ("job", 30)
    assert await theirs.get(STREAM, "delays") == before
