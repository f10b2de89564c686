from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from emulator_world import PLAIN

from penstock.emulator.testing import kinesis_client

if TYPE_CHECKING:
    import pytest
    from emulator_world import World

API = "Kinesis_20131202"


def status(world: Any, name: str = "stream") -> str:
    summary = world.client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    return str(summary["StreamStatus"])


def test_a_stream_is_described_by_name_and_by_arn(world: Any) -> None:
    """The answer has name, ARN, status and counts, whichever way the stream is named."""
    arn = world.stream(shards=3)
    assert arn == "arn:aws:kinesis:us-east-1:000000000000:stream/stream"
    by_name = world.client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]
    by_arn = world.client.describe_stream_summary(StreamARN=arn)["StreamDescriptionSummary"]
    assert by_name == by_arn
    assert (by_name["OpenShardCount"], by_name["ConsumerCount"], by_name["RetentionPeriodHours"]) == (3, 0, 24)
    assert by_name["StreamCreationTimestamp"].timestamp() == world.clock.time()


def test_an_unknown_stream_is_not_found(world: Any) -> None:
    """A name that is not there, and an ARN of another account, are ResourceNotFoundException."""
    world.stream()
    code, message = world.refused(lambda: world.client.describe_stream_summary(StreamName="absent"))
    assert (code, message) == (
        "ResourceNotFoundException",
        "Stream absent under account 000000000000 not found.",
    )
    foreign = "arn:aws:kinesis:us-east-1:111111111111:stream/stream"
    refusal = world.refused(lambda: world.client.describe_stream_summary(StreamARN=foreign))
    assert refusal[0] == "ResourceNotFoundException"
    assert world.refused(world.client.describe_stream_summary)[0] == "InvalidArgumentException"


def test_a_stream_is_creating_then_active_then_deleting_then_gone(world: Any) -> None:
    """The three delays are passed in the states that callers have to wait for."""
    delay = timedelta(seconds=10)
    world.start(stream_creation_delay=delay, stream_deletion_delay=delay).stream()
    assert status(world) == "CREATING"
    assert world.refused(lambda: world.put("a"))[0] == "ResourceNotFoundException"
    assert world.refused(world.shards)[0] == "ResourceInUseException"
    world.clock.advance(10)
    assert status(world) == "ACTIVE"
    world.put("a")
    world.client.delete_stream(StreamName="stream")
    assert status(world) == "DELETING"
    world.clock.advance(10)
    assert world.refused(lambda: status(world))[0] == "ResourceNotFoundException"


def test_a_name_is_taken_until_the_stream_is_gone(world: Any) -> None:
    """Creating a stream twice is refused; after its deletion the name is free, and old positions are worthless."""
    world.stream()
    (record,) = world.put("a")
    iterator = world.iterator()
    refusal = world.refused(lambda: world.client.create_stream(StreamName="stream", ShardCount=1))
    assert refusal[0] == "ResourceInUseException"
    world.client.delete_stream(StreamName="stream")
    world.clock.advance(1)
    world.stream()
    assert world.read()["Records"] == []
    assert world.refused(lambda: world.client.get_records(ShardIterator=iterator))[0] == "InvalidArgumentException"
    refusal = world.refused(
        lambda: world.iterator(kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=record["SequenceNumber"])
    )
    assert refusal[0] == "InvalidArgumentException"


def test_a_stream_with_consumers_is_deleted_only_on_demand(world: Any) -> None:
    """Registered consumers protect a stream unless EnforceConsumerDeletion is given."""
    world.stream()
    world.register()
    refusal = world.refused(lambda: world.client.delete_stream(StreamName="stream"))
    assert refusal[0] == "ResourceInUseException"
    world.client.delete_stream(StreamName="stream", EnforceConsumerDeletion=True)
    assert world.client.list_streams()["StreamNames"] == []


def test_an_on_demand_stream_has_four_shards_and_keeps_its_own_count(world: Any) -> None:
    """ON_DEMAND streams begin with four shards, and UpdateShardCount is refused for them."""
    world.client.create_stream(StreamName="stream", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert len(world.shards()) == 4
    refusal = world.refused(
        lambda: world.client.update_shard_count(StreamName="stream", TargetShardCount=8, ScalingType="UNIFORM_SCALING")
    )
    assert refusal[0] == "ValidationException"
    assert world.refused(lambda: world.client.create_stream(StreamName="other"))[0] == "ValidationException"


def test_a_stream_has_the_region_of_the_signature_that_created_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a signature the emulator's own region counts, by default AWS_REGION; so it does for later calls."""
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    world.start()
    url = world.emulator.endpoint_url
    abroad = kinesis_client(url, region="eu-west-1", config=PLAIN)
    abroad.create_stream(StreamName="flights", ShardCount=1)
    arn = "arn:aws:kinesis:eu-west-1:000000000000:stream/flights"
    assert abroad.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"] == arn
    consumer = abroad.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]["ConsumerARN"]
    assert consumer.startswith(f"{arn}/consumer/c:")
    firehose = kinesis_client(url, region="eu-west-1", service="firehose")
    delivery = firehose.create_delivery_stream(DeliveryStreamName="late")["DeliveryStreamARN"]
    assert delivery.split(":")[3] == "eu-west-1"
    create = Request(url, b'{"StreamName": "delays", "ShardCount": 1}', {"X-Amz-Target": f"{API}.CreateStream"})
    urlopen(create).close()
    world.emulator.call(lambda: world.core.create_stream("weather", 1, now=world.clock.time()))
    regions = {one.arn.split(":")[3] for one in world.core.streams.values() if one.name != "flights"}
    assert regions == {"eu-north-1"}
