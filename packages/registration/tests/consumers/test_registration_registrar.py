"""Registering and deregistering with Kinesis."""

from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.aws import AwsConnectionError, AwsSession
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import running_emulator
from penstock.registration import KinesisCalls, RegisteredConsumer, RegistrarConfig, StreamConsumerRegistrar
from penstock.registration.errors import (
    RegistrationError,
    RegistrationOptionError,
    StreamNotFoundError,
)
from penstock.registration.testing import FakeKinesis, ManualClock


class World:
    def __init__(self, config: RegistrarConfig | None = None, **kinesis: Any) -> None:
        self.kinesis = FakeKinesis(**kinesis)
        self.clock = ManualClock()
        self.registrar = StreamConsumerRegistrar(
            self.kinesis, config, sleep=self.clock.sleep, random=lambda: 1.0, clock=self.clock
        )

    async def register(self, **options: Any) -> RegisteredConsumer:
        return await self.registrar.register("flights", "delays", **options)


async def test_registers_and_waits_until_active() -> None:
    """The ARN comes back once the consumer can be subscribed with, and the registration was made by this call."""
    world = World(looks=3)
    consumer = await world.register()
    assert consumer.made
    assert consumer.arn.endswith("stream/flights/consumer/delays:1700000001")
    assert world.kinesis.calls == [
        "describe_stream_summary",
        "describe_stream_consumer",
        "register_stream_consumer",
        *["describe_stream_consumer"] * 4,
    ]


async def test_a_consumer_that_exists_is_used_and_not_ours() -> None:
    """Nothing is registered."""
    world = World()
    arn = world.kinesis.register_outside("flights", "delays")
    consumer = await world.register()
    assert (consumer.arn, consumer.made) == (arn, False)
    assert "register_stream_consumer" not in world.kinesis.calls


async def test_losing_the_race_to_register_is_success_and_not_ours() -> None:
    """ResourceInUse from RegisterStreamConsumer means that somebody registered since the look."""
    world = World()

    async def somebody_is_faster() -> bool:
        world.kinesis.register_outside("flights", "delays")
        return True

    consumer = await world.register(before_register=somebody_is_faster)
    assert not consumer.made


async def test_a_registration_whose_answer_got_lost_is_ours() -> None:
    """The retry finds the name in use: by the attempt before."""
    world = World()

    def lose_the_answer() -> None:
        raise AwsConnectionError(operation="", endpoint="https://kinesis", reason="lost")

    world.kinesis.after["register_stream_consumer"] = lose_the_answer
    assert (await world.register()).made


async def test_a_consumer_that_is_being_deleted_is_awaited_and_registered_again() -> None:
    """A consumer that is being deleted was not made here."""
    world = World(looks=2)
    old = world.kinesis.register_outside("flights", "delays")
    world.kinesis.deregister_stream_consumer(ConsumerARN=old)
    consumer = await world.register()
    assert consumer.made
    assert consumer.arn != old


async def test_a_registration_that_was_ended_and_made_by_others_meanwhile_is_not_ours() -> None:
    """What this call registered is going away, and the next of that name is somebody else's."""
    world = World()

    def somebody_makes_it_anew() -> None:
        world.kinesis.delete_outside("flights", "delays")
        world.kinesis.register_outside("flights", "delays")

    def somebody_ends_it() -> None:
        arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/delays:1700000001"
        world.kinesis.looks = 10
        world.kinesis.deregister_stream_consumer(ConsumerARN=arn)
        world.kinesis.after["describe_stream_consumer"] = somebody_makes_it_anew

    world.kinesis.after["register_stream_consumer"] = somebody_ends_it
    consumer = await world.register()
    assert consumer.arn.endswith(":1700000002")
    assert not consumer.made


async def test_throttling_backs_off_and_tries_again() -> None:
    """200 ms, then 300 ms: base and exponent of FLIP-128."""
    world = World()
    world.kinesis.fail("register_stream_consumer", "LimitExceededException", "LimitExceededException")
    assert (await world.register(stagger=False)).made
    # What is shorter keeps calls below the rate of Kinesis.
    assert [seconds for seconds in world.clock.slept if seconds >= 0.1][:2] == [0.2, pytest.approx(0.3)]


async def test_a_full_stream_is_reported_with_its_consumers() -> None:
    """The limit's error names those who use up the places."""
    world = World(limit=2)
    world.kinesis.register_outside("flights", "one")
    world.kinesis.register_outside("flights", "two")
    with pytest.raises(RegistrationError) as raised:
        await world.register()
    assert (raised.value.code, raised.value.facts["existing"]) == ("CONSUMER_LIMIT", ["one", "two"])


@pytest.mark.parametrize(
    ("code", "kind", "ours"),
    [
        ("AccessDeniedException", RegistrationError, "REGISTRATION_DENIED"),
        ("UnrecognizedClientException", RegistrationError, "REGISTRATION_DENIED"),
        ("InvalidArgumentException", RegistrationOptionError, ""),
        ("ResourceNotFoundException", StreamNotFoundError, ""),
        ("SomethingNew", RegistrationError, "REGISTRATION_FAILED"),
    ],
)
async def test_fatal_errors_are_not_retried(code: str, kind: type[RegistrationError], ours: str) -> None:
    """Each becomes the error that says what to do."""
    world = World()
    world.kinesis.fail("register_stream_consumer", code)
    with pytest.raises(kind) as raised:
        await world.register()
    assert raised.value.code == ours
    assert world.kinesis.calls.count("register_stream_consumer") == 1


async def test_deregistering_an_old_arn_spares_the_newer_consumer() -> None:
    """The ARN holds the creation time."""
    world = World()
    old = world.kinesis.register_outside("flights", "delays")
    world.kinesis.delete_outside("flights", "delays")
    world.kinesis.register_outside("flights", "delays")
    await world.registrar.deregister(old)
    assert world.kinesis.names() == {"delays"}


async def test_deregistering_asks_again_while_the_consumer_is_in_use() -> None:
    """A consumer that is still CREATING cannot be ended yet."""
    world = World()
    arn = world.kinesis.register_outside("flights", "delays")
    world.kinesis.fail("deregister_stream_consumer", "ResourceInUseException")
    await world.registrar.deregister(arn)
    assert world.kinesis.calls.count("deregister_stream_consumer") == 2
    assert world.kinesis.names() == set()


async def test_a_registration_is_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stream, the consumer, and whether it was made."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    await World().register()
    (span,) = exporter.get_finished_spans()
    assert span.name == "registration.register"
    assert span.attributes is not None
    assert span.attributes["aws.kinesis.stream_name"] == "flights"
    assert span.attributes["penstock.registration_made"] is True


async def test_against_the_emulator() -> None:
    """Register, find, list and deregister over real sockets, with real delays."""
    with running_emulator(consumer_creation_delay=timedelta(seconds=0.2)) as emulator:
        emulator.client().create_stream(StreamName="flights", ShardCount=1)
        registrar = StreamConsumerRegistrar(KinesisCalls(AwsSession(emulator_options(emulator.endpoint_url))))
        consumer = await registrar.register("flights", "delays")
        assert consumer.made
        found = await registrar.find("flights", "delays")
        assert found is not None
        assert (found.arn, found.status) == (consumer.arn, "ACTIVE")
        assert await registrar.list_consumers(await registrar.find_stream_arn("flights")) == [found]
        assert (await registrar.describe_stream("flights")).open_shards == 1
        assert not (await registrar.register("flights", "delays")).made
        await registrar.deregister(consumer.arn)
        assert await registrar.find("flights", "delays") is None
        with pytest.raises(StreamNotFoundError):
            await registrar.register("nowhere", "delays")
        await registrar.close()
