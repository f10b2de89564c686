"""Kills, absences and replicas: the service as processes that end without a word."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from registry_process import ConsumerNames, Eventually, MakeRequest, Serve, lease_of

from penstock.emulator.testing import RunningEmulator
from penstock.registration import AcquireRequest, BlockingConsumerRegistry, Consumer, open_registry
from penstock.registration.errors import ConsumerHeldError, LeaseLostError, RegistryUnavailableError
from penstock.registration.testing import Wire, running_wire
from penstock.rpc.testing import ServiceProcess

SHORT = ("--grace-seconds", "0.2", "--sweep-seconds", "0.2")


def _listed(registry: BlockingConsumerRegistry) -> Sequence[Consumer]:
    """The consumers; none while the client still waits before it connects to a registry that has come back."""
    with suppress(RegistryUnavailableError):
        return registry.list_consumers()
    return ()


@pytest.fixture
def wire(emulator: RunningEmulator) -> Iterator[Wire]:
    with running_wire(emulator.endpoint_url) as laid:
        yield laid


@pytest.fixture(params=["sqlite", "dynamodb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where the services of a test keep their leases, and what they need to get there."""
    if request.param == "sqlite":
        return {"store": f"sqlite://{tmp_path}/registry.db"}
    endpoint_url = request.getfixturevalue("dynamodb")
    return {"store": f"dynamodb://{tmp_path.name}", "AWS_ENDPOINT_URL_DYNAMODB": endpoint_url}


def kill(service: ServiceProcess) -> None:
    os.kill(service.process.pid, signal.SIGKILL)
    service.process.wait()


def acquire_in_vain(service: ServiceProcess, request: AcquireRequest) -> threading.Thread:
    """Ask for a lease on a thread; the answer never comes."""

    def ask() -> None:
        no_patience = timedelta(milliseconds=1)
        with (
            open_registry(endpoint=service.address, patience=no_patience) as registry,
            pytest.raises(RegistryUnavailableError),
        ):
            registry.acquire(request)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_killed_between_registering_and_noting_it_is_reconciled_at_the_start(
    serve: Serve,
    store: dict[str, str],
    wire: Wire,
    request_lease: MakeRequest,
    consumer_names: ConsumerNames,
    eventually: Eventually,
) -> None:
    """`kill -9` after RegisterStreamConsumer took effect: the successor knows the consumer, as ours, and ends it."""
    with serve(PENSTOCK_REGISTRY_ENDPOINT_URL=wire.url, **store) as service:
        killed = threading.Event()

        def die() -> None:
            kill(service)
            killed.set()

        wire.before_answer["RegisterStreamConsumer"] = die
        waiting = acquire_in_vain(service, request_lease("first"))
        assert killed.wait(20)
        waiting.join()
    assert consumer_names() == ["delays"]
    with serve(*SHORT, PENSTOCK_REGISTRY_ENDPOINT_URL=wire.url, **store) as service:
        with open_registry(endpoint=service.address) as registry:
            eventually(lambda: [each.consumer_arn for each in registry.list_consumers()] != [""])
            (consumer,) = registry.list_consumers(with_state=True)
            assert consumer.registration_is_ours
            assert consumer.state == "ACTIVE"
            # The job that was killed with it comes back, and need not register.
            lease = registry.acquire(request_lease("first"))
            assert lease.consumer_arn == consumer.consumer_arn
            assert lease.registration_is_ours
            assert wire.count("RegisterStreamConsumer") == 1
            registry.release(lease)
        eventually(lambda: consumer_names() == [])


def test_killed_between_deregistering_and_noting_it_is_reconciled_at_the_start(
    serve: Serve,
    store: dict[str, str],
    wire: Wire,
    request_lease: MakeRequest,
    consumer_names: ConsumerNames,
    eventually: Eventually,
) -> None:
    """`kill -9` after DeregisterStreamConsumer took effect: the successor registers it again."""
    with serve(*SHORT, PENSTOCK_REGISTRY_ENDPOINT_URL=wire.url, **store) as service:
        killed = threading.Event()

        def die() -> None:
            kill(service)
            killed.set()

        wire.before_answer["DeregisterStreamConsumer"] = die
        with open_registry(endpoint=service.address) as registry:
            first = registry.acquire(request_lease())
            registry.release(first)
            assert killed.wait(20)
    with serve(*SHORT, PENSTOCK_REGISTRY_ENDPOINT_URL=wire.url, **store) as service:
        with open_registry(endpoint=service.address) as registry:
            eventually(lambda: registry.list_consumers() == [])
            assert consumer_names() == []
            second = registry.acquire(request_lease())
            assert second.consumer_arn != first.consumer_arn
            assert second.fencing_token > first.fencing_token
            registry.release(second)
        eventually(lambda: consumer_names() == [])


def test_replicas_share_leases_and_survive_each_other(
    serve: Serve,
    store: dict[str, str],
    request_lease: MakeRequest,
    consumer_names: ConsumerNames,
    eventually: Eventually,
) -> None:
    """What one gave, the other keeps, refuses to others and gives back, also when the first is killed."""
    with serve(*SHORT, **store) as one, serve(*SHORT, **store) as other:
        with open_registry(endpoint=one.address) as first, open_registry(endpoint=other.address) as registry:
            first.acquire(request_lease("first"))
            assert lease_of(registry)
            # A sign of life, without which the other one would watch a lease that it found before it refuses anybody.
            lease = first.acquire(request_lease("first"))
            kill(one)
            with pytest.raises(ConsumerHeldError, match="'first'"):
                registry.acquire(request_lease("second"))
            assert registry.release(lease) is True
        eventually(lambda: consumer_names() == [])


def test_a_registry_that_comes_back_in_time_costs_nothing(
    serve: Serve, request_lease: MakeRequest, eventually: Eventually
) -> None:
    """`kill -9`, and another on the same port before the lease would expire: the job never hears of it."""
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        lost: list[LeaseLostError] = []
        lease = registry.acquire(request_lease(time_to_live=timedelta(seconds=12)))
        registry.keep(lease, lost.append)
        kill(service)
        with serve("--grace-seconds", "0", "--port", service.address.rpartition(":")[2]):
            eventually(lambda: _listed(registry))
            ends_in = lease_of(registry).time_to_live_seconds
            # A heartbeat has arrived.
            eventually(lambda: lease_of(registry).time_to_live_seconds > ends_in)
            assert lost == []
            assert registry.release(lease) is True


def test_a_registry_that_is_away_for_longer_than_leases_live_costs_nothing(
    serve: Serve, request_lease: MakeRequest, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """`kill -9`, and another on the same port when lease and grace period are over: it waits for a heartbeat."""
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        lost: list[LeaseLostError] = []
        lease = registry.acquire(request_lease(time_to_live=timedelta(seconds=3)))
        registry.keep(lease, lost.append)
        kill(service)
        eventually(lambda: "only the registry knows" in caplog.text)
        with serve("--grace-seconds", "0", "--port", service.address.rpartition(":")[2]):
            eventually(lambda: [one.lease for one in _listed(registry) if one.lease])
            assert registry.list_consumers()[0].consumer_arn == lease.consumer_arn
            assert lost == []
            assert registry.release(lease) is True


def test_a_job_starts_while_the_registry_is_away(
    serve: Serve, request_lease: MakeRequest, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, and has its lease when there is one again; without patience it fails at once."""
    with serve() as service, open_registry(endpoint=service.address) as registry, ThreadPoolExecutor() as pool:
        kill(service)
        acquiring = pool.submit(registry.acquire, request_lease())
        eventually(lambda: acquiring.done() or "cannot acquire consumer delays of " in caplog.text)
        with serve("--port", service.address.rpartition(":")[2]):
            lease = acquiring.result(60)
            assert registry.release(lease) is True
        no_patience = timedelta(milliseconds=1)
        with (
            open_registry(endpoint=service.address, patience=no_patience) as impatient,
            pytest.raises(RegistryUnavailableError),
        ):
            impatient.acquire(request_lease())


def test_a_registry_that_stays_away_ends_reading_on_time_and_not_before(
    serve: Serve, request_lease: MakeRequest
) -> None:
    """Without patience the job continues until its lease would expire; then it has to stop, once."""
    seconds = 4.0
    no_patience = timedelta(milliseconds=1)
    with serve() as service, open_registry(endpoint=service.address, patience=no_patience) as registry:
        lost, told = [], threading.Event()

        def on_lost(error: LeaseLostError) -> None:
            lost.append((time.monotonic(), error))
            told.set()

        began = time.monotonic()
        registry.keep(registry.acquire(request_lease(time_to_live=timedelta(seconds=seconds))), on_lost)
        acquired = time.monotonic()
        kill(service)
        killed = time.monotonic()
        assert told.wait(60)
        ((at, error),) = lost
        # Not before the last heartbeat that may have been answered could have ended; never later than the lease.
        assert began + seconds <= at <= max(acquired, killed) + seconds + 3
        assert "no heartbeat was answered" in error.reason
        assert error.consumer_name == "delays"
