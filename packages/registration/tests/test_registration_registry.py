"""The registry in-process and over gRPC: the same calls, the same answers, the same errors."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from registry_homes import Home, OpenHome, Parts, Unasked

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration import (
    SERVICE_NAME,
    AcquireRequest,
    ConflictPolicy,
    ConsumerRegistryServicer,
    Lease,
    RegistrationStrategy,
    RemoteConsumerRegistry,
)
from penstock.registration._remote.messages import MESSAGES
from penstock.registration.errors import (
    AcquireTimeoutError,
    ConsumerHeldError,
    RegistrationError,
    RegistrationOptionError,
    StreamNotFoundError,
)
from penstock.rpc import ClientSecurity, GrpcServer, ServerSecurity, ServerSettings
from penstock.rpc._server import access

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"
ARN = f"{STREAM}/consumer/delays:1500000000"


async def test_acquire_registers_and_leases(home: Home) -> None:
    """The lease has the ARN of an ACTIVE consumer that the registry made."""
    lease = await home.acquire()
    assert lease.consumer_arn.endswith("/consumer/delays:1700000001")
    assert (lease.stream_name, lease.consumer_name, lease.job_id) == ("flights", "delays", "job")
    assert (lease.fencing_token, lease.time_to_live_seconds, lease.registration_is_ours) == (1, 30.0, True)


async def test_the_last_lease_released_ends_a_registration_of_ours(home: Home) -> None:
    """Nothing is left that costs money."""
    lease = await home.acquire()
    assert await home.registry.release(lease) is True
    assert home.kinesis.names() == set()
    assert await home.registry.list_consumers() == []


async def test_none_uses_the_arn_without_asking_kinesis(home: Home) -> None:
    """Neither to register nor to deregister."""
    lease = await home.acquire(consumer_name="", consumer_arn=ARN, strategy=RegistrationStrategy.NONE)
    assert (lease.consumer_name, lease.consumer_arn, lease.registration_is_ours) == ("delays", ARN, False)
    await home.registry.release(lease)
    assert home.kinesis.calls == []


async def test_another_job_is_refused_with_the_holder(home: Home) -> None:
    """The error has the holder, since when it holds the consumer, and the time left."""
    await home.acquire("first")
    await home.watch(12)
    with pytest.raises(ConsumerHeldError) as raised:
        await home.acquire("second")
    assert raised.value.holder_job_id == "first"
    assert raised.value.held_seconds == pytest.approx(12, abs=2)
    assert raised.value.remaining_seconds == pytest.approx(18, abs=2)


async def test_another_job_may_wait_for_the_lease_to_end(home: Home) -> None:
    """It gets the consumer, with the registration, once the holder is silent for its time to live."""
    first = await home.acquire("first")
    second = await home.acquire("second", conflict_policy=ConflictPolicy.WAIT)
    assert second.consumer_arn == first.consumer_arn
    assert second.fencing_token > first.fencing_token
    assert second.registration_is_ours
    assert home.kinesis.calls.count("register_stream_consumer") == 1


async def test_waiting_ends_with_the_timeout(open_home: OpenHome) -> None:
    """The error has the time and the holder, and says what to do."""
    async with open_home(default_time_to_live=timedelta(days=2), longest_time_to_live=timedelta(days=2)) as home:
        await home.acquire("first")
        with pytest.raises(AcquireTimeoutError) as raised:
            await home.acquire("second", conflict_policy=ConflictPolicy.WAIT, timeout=timedelta(seconds=0.3))
        assert raised.value.timeout_seconds == 0.3
        assert raised.value.holder_job_id == "first"
        assert "held by job 'first'" in str(raised.value)
        assert "a consumer name of its own" in str(raised.value)


async def test_another_job_may_take_the_consumer_over(home: Home) -> None:
    """The former holder's next heartbeat says so, and its release takes nothing away."""
    first = await home.acquire("first")
    second = await home.acquire("second", conflict_policy=ConflictPolicy.TAKE_OVER)
    assert second.fencing_token > first.fencing_token
    outcome = await home.registry.heartbeat(first)
    assert (outcome.held, outcome.time_to_live_seconds) == (False, 0.0)
    assert await home.registry.release(first) is False
    assert (await home.registry.heartbeat(second)).held


async def test_heartbeats_keep_the_lease(home: Home) -> None:
    """Ten times twenty seconds of a lease that lives thirty."""
    lease = await home.acquire()
    for _ in range(10):
        home.clock.advance(20)
        outcome = await home.registry.heartbeat(lease)
        assert (outcome.held, outcome.time_to_live_seconds) == (True, 30.0)


async def test_the_same_job_after_a_crash_gets_its_consumer_without_registering(home: Home) -> None:
    """A greater token, the same ARN, whether the old lease has run out or not."""
    first = await home.acquire()
    again = await home.acquire()
    home.clock.advance(1000)
    once_more = await home.acquire()
    assert first.consumer_arn == again.consumer_arn == once_more.consumer_arn
    assert first.fencing_token < again.fencing_token < once_more.fencing_token
    assert once_more.registration_is_ours
    assert home.kinesis.calls.count("register_stream_consumer") == 1


async def test_consumers_are_listed_with_their_holders(home: Home) -> None:
    """Ordered, and of one stream on request; a consumer without a holder has no lease."""
    home.kinesis.streams = ("flights", "weather")
    lease = await home.acquire()
    await home.acquire(stream_name="weather", time_to_live=timedelta(seconds=5))
    home.clock.advance(10)
    flights, weather = await home.registry.list_consumers()
    assert flights.lease is not None
    assert (flights.stream_name, flights.lease.job_id, flights.lease.fencing_token) == ("flights", "job", 1)
    assert flights.consumer_arn == lease.consumer_arn
    assert flights.age_seconds >= 10
    assert (weather.stream_name, weather.lease) == ("weather", None)
    assert [each.stream_name for each in await home.registry.list_consumers("weather")] == ["weather"]


async def test_a_grace_period_leaves_time_for_the_next_lease(open_home: OpenHome) -> None:
    """Within it the next lease gets the registration; after it the sweep ends the registration."""
    async with open_home(grace=timedelta(seconds=60)) as home:
        first = await home.acquire()
        assert await home.registry.release(first) is True
        assert await home.watch(50) == []
        second = await home.acquire("other")
        assert second.consumer_arn == first.consumer_arn
        assert second.registration_is_ours
        await home.registry.release(second)
        assert await home.watch(62) == [(STREAM, "delays")]
        assert home.kinesis.names() == set()


async def test_the_sweep_ends_what_a_dead_job_left(home: Home) -> None:
    """Once its lease ran out, not before; and it can be acquired again, with a greater token."""
    lease = await home.acquire()
    assert await home.watch(28) == []
    assert await home.watch(3) == [(STREAM, "delays")]
    assert home.kinesis.names() == set()
    again = await home.acquire()
    assert again.fencing_token > lease.fencing_token
    assert again.consumer_arn != lease.consumer_arn


async def test_many_tasks_at_once_register_once(home: Home) -> None:
    """200 acquires of one job: one registration, 200 leases with different tokens, and hardly a look more than one."""
    leases = await asyncio.gather(*(home.acquire() for _ in range(200)))
    assert home.kinesis.calls.count("register_stream_consumer") == 1
    assert len({lease.fencing_token for lease in leases}) == 200
    assert len({lease.consumer_arn for lease in leases}) == 1
    assert home.kinesis.calls.count("describe_stream_consumer") <= 10


async def test_a_consumer_deleted_outside_is_registered_again(home: Home) -> None:
    """The next acquire looks the consumer up instead of trusting the record."""
    first = await home.acquire()
    home.kinesis.delete_outside("flights", "delays")
    second = await home.acquire()
    assert second.consumer_arn != first.consumer_arn
    assert second.registration_is_ours


async def test_a_failed_registration_gives_the_lease_back(home: Home) -> None:
    """The next job is not refused."""
    home.kinesis.fail("register_stream_consumer", "AccessDeniedException")
    with pytest.raises(RegistrationError) as raised:
        await home.acquire("first")
    assert raised.value.code == "REGISTRATION_DENIED"
    assert (await home.acquire("second")).job_id == "second"


@pytest.mark.parametrize(
    ("operation", "code", "kind", "ours"),
    [
        ("describe_stream_summary", "ResourceNotFoundException", StreamNotFoundError, ""),
        ("describe_stream_summary", "AccessDeniedException", RegistrationError, "REGISTRATION_DENIED"),
        ("register_stream_consumer", "InvalidArgumentException", RegistrationOptionError, ""),
    ],
)
async def test_errors_of_kinesis_come_through(
    home: Home, operation: str, code: str, kind: type[RegistrationError], ours: str
) -> None:
    """As the same type, or the same code, from both homes."""
    home.kinesis.fail(operation, code)
    with pytest.raises(kind) as raised:
        await home.acquire()
    assert raised.value.code == ours


async def test_a_full_stream_comes_through_with_its_fields(home: Home) -> None:
    """Fields cross gRPC as well as the message."""
    home.kinesis.limit = 1
    home.kinesis.register_outside("flights", "other")
    with pytest.raises(RegistrationError) as raised:
        await home.acquire()
    assert (raised.value.code, raised.value.facts["existing"]) == ("CONSUMER_LIMIT", ["other"])


@pytest.mark.parametrize("has_new_token", [False, True])
async def test_a_lease_is_released_when_its_token_is_revoked_while_it_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_new_token: bool
) -> None:
    """The call ends with UNAUTHENTICATED. A client with a new token in its file calls again and gets a lease."""
    monkeypatch.setattr(access, "_OUTDATED_SECONDS", 0.0)
    file, own = tmp_path / "tokens", tmp_path / "own"
    file.write_text("a-token-that-is-revoked-with-32-characters\n")
    own.write_text(file.read_text())
    released: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

    class Granting(Unasked):
        async def acquire(self, request: AcquireRequest) -> Lease:
            new = tmp_path / "new"
            new.write_text("another-token-of-at-least-32-characters\n")
            if has_new_token:
                own.write_text(new.read_text())
            new.replace(file)
            return lease

        async def release(self, lease: Lease, *, disown: bool = False) -> bool:
            released.set_result(lease)
            return False

    lease = MESSAGES.of(Lease, pb.Lease(stream_name="flights", consumer_name="c", job_id="one", fencing_token=7))
    servicer = ConsumerRegistryServicer(Granting())  # type: ignore[arg-type]  # as much as is asked
    settings = ServerSettings(security=ServerSecurity(token_file=file), drain_seconds=0)
    async with (
        GrpcServer(settings, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server,
        RemoteConsumerRegistry(server.address, ClientSecurity(token_file=own)) as registry,
        asyncio.timeout(30),
    ):
        asked = AcquireRequest(stream_name="flights", consumer_name="c", job_id="one")
        if has_new_token:
            assert (await registry.acquire(asked)).fencing_token == 7
        else:
            with pytest.raises(RegistrationError, match="REGISTRY_ACCESS"):
                await registry.acquire(asked)
        assert (await released).fencing_token == 7


async def test_heartbeats_continue_with_the_new_token_of_their_file(tmp_path: Path, parts: Parts) -> None:
    """Their stream ends with UNAUTHENTICATED, and another one begins."""
    home, own, file = parts(), tmp_path / "own", tmp_path / "tokens"
    old, new = "the-old-token-of-at-least-32-characters\n", "the-new-token-of-at-least-32-characters\n"
    for one in (own, file):
        one.write_text(old)
    servicer = ConsumerRegistryServicer(home.local)
    settings = ServerSettings(security=ServerSecurity(token_file=file), drain_seconds=0, recheck_seconds=0.05)
    async with (
        GrpcServer(settings, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server,
        RemoteConsumerRegistry(server.address, ClientSecurity(token_file=own)) as registry,
        asyncio.timeout(30),
    ):
        lease = await registry.acquire(AcquireRequest(stream_name="flights", consumer_name="c", job_id="one"))
        assert (await registry.heartbeat(lease)).held
        stream, is_new = registry._heartbeat_stream()
        assert not is_new
        for one in (own, file):
            one.with_suffix(".new").write_text(new)
            one.with_suffix(".new").replace(one)
        await stream.wait_ended()
        assert (await registry.heartbeat(lease)).held


async def test_an_acquire_waits_no_longer_than_the_contract_allows() -> None:
    """The service ends the wait after an hour or earlier. The client repeats the call for its caller."""
    asked: list[timedelta | None] = []

    class Waiting(Unasked):
        async def acquire(self, request: AcquireRequest) -> Lease:
            asked.append(request.timeout)
            if len(asked) % 3:
                names = {"stream_name": "flights", "consumer_name": "c", "timeout_seconds": 3600.0}
                raise AcquireTimeoutError(**names, holder_job_id="first")  # type: ignore[arg-type]  # by their names
            return MESSAGES.of(Lease, pb.Lease(stream_name="flights", consumer_name="c", job_id=request.job_id))

    servicer = ConsumerRegistryServicer(Waiting())  # type: ignore[arg-type]  # as much as is asked
    request = AcquireRequest(
        stream_name="flights", consumer_name="c", job_id="second", conflict_policy=ConflictPolicy.WAIT
    )
    async with (
        GrpcServer(ServerSettings(drain_seconds=0), register=[servicer.add_to], service_names=[SERVICE_NAME]) as server,
        RemoteConsumerRegistry(server.address) as registry,
        asyncio.timeout(30),
    ):
        for timeout in (None, timedelta(days=1), timedelta(minutes=1)):
            assert (await registry.acquire(replace(request, timeout=timeout))).job_id == "second"
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    assert asked == [hour] * 6 + [minute] * 3
