from __future__ import annotations

from datetime import timedelta
from typing import Any


def described(world: Any, **names: Any) -> dict[str, Any]:
    found: dict[str, Any] = world.client.describe_stream_consumer(**names)["ConsumerDescription"]
    return found


def test_a_consumer_is_creating_then_active_then_deleting_then_gone(world: Any) -> None:
    """A consumer passes its states in time, and can be named by ARN or by stream and name."""
    world.start(consumer_creation_delay=timedelta(seconds=3), consumer_deletion_delay=timedelta(seconds=3))
    stream_arn = world.stream()
    arn = world.register("reader")
    by_name = {"StreamARN": stream_arn, "ConsumerName": "reader"}
    assert described(world, ConsumerARN=arn) == described(world, **by_name)
    assert described(world, **by_name)["StreamARN"] == stream_arn
    assert described(world, **by_name)["ConsumerStatus"] == "CREATING"
    world.clock.advance(3)
    assert described(world, **by_name)["ConsumerStatus"] == "ACTIVE"
    world.client.deregister_stream_consumer(ConsumerARN=arn)
    assert described(world, **by_name)["ConsumerStatus"] == "DELETING"
    world.client.deregister_stream_consumer(**by_name)
    world.clock.advance(3)
    assert world.refused(lambda: described(world, ConsumerARN=arn))[0] == "ResourceNotFoundException"


def test_an_arn_holds_the_creation_time_and_is_never_given_twice(world: Any) -> None:
    """Registering a name again, also within the same second, gives another ARN; the old one stays unknown."""
    world.stream()
    first = world.register("reader")
    assert first.endswith(f"/consumer/reader:{int(world.clock.time())}")
    world.client.deregister_stream_consumer(ConsumerARN=first)
    second = world.register("reader")
    assert first != second
    assert world.refused(lambda: described(world, ConsumerARN=first))[0] == "ResourceNotFoundException"
    created = described(world, ConsumerARN=second)["ConsumerCreationTimestamp"]
    assert second.endswith(f":{int(created.timestamp())}")


def test_a_name_is_registered_once_per_stream(world: Any) -> None:
    """The same name is refused on the same stream, also while it is DELETING, and taken on another."""
    world.start(consumer_deletion_delay=timedelta(seconds=3)).stream()
    world.stream("other")
    arn = world.register("reader")
    world.register("reader", stream="other")
    assert world.refused(lambda: world.register("reader"))[0] == "ResourceInUseException"
    world.client.deregister_stream_consumer(ConsumerARN=arn)
    assert world.refused(lambda: world.register("reader"))[0] == "ResourceInUseException"


def test_a_stream_has_twenty_consumers_at_most(world: Any) -> None:
    """The twenty-first registration is a LimitExceededException until one is gone."""
    world.start(operation_limits={"RegisterStreamConsumer": None, "DescribeStreamSummary": None}).stream()
    arns = [world.register() for _ in range(20)]
    assert world.refused(world.register)[0] == "LimitExceededException"
    world.client.deregister_stream_consumer(ConsumerARN=arns[0])
    world.register()


def test_five_consumers_are_creating_at_once_at_most(world: Any) -> None:
    """The sixth registration is a LimitExceededException until the others are ACTIVE."""
    world.start(
        consumer_creation_delay=timedelta(seconds=3), operation_limits={"RegisterStreamConsumer": None}
    ).stream()
    for _ in range(5):
        world.register()
    assert world.refused(world.register)[0] == "LimitExceededException"
    world.clock.advance(3)
    world.register()
