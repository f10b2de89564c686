"""A lease belongs to the ARN of its stream, however the stream is named."""

import asyncio
from typing import Any

import pytest
from registry_homes import Home, known

from penstock.registration import (
    AcquireRequest,
    LeaseStore,
    LocalConsumerRegistry,
    StreamConsumerRegistrar,
)
from penstock.registration.errors import ConsumerHeldError, RegistrationOptionError
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore, ManualClock

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"
WEATHER = "arn:aws:kinesis:eu-west-1:123456789012:stream/weather"


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
