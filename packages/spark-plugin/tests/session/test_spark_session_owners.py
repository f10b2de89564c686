"""Two drivers of one query: the newer run has its session, whatever happens to the services and whoever asks first."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from shard_readers import PATIENCE_SECONDS, STREAM, Driver, Readers, driver_process, put

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import StaleEpochError
from penstock.efo_consumer.errors import SubscriptionTakenOverError
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import AcquireRequest, open_registry
from penstock.rpc.testing import service_process
from penstock.spark_plugin.errors import LeaseLostError

pytest.importorskip("penstock.services.shard_reader")


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName=STREAM, ShardCount=4)
        yield running


@pytest.fixture
def readers(emulator: RunningEmulator) -> Iterator[Readers]:
    with ExitStack() as exits:
        # A session without calls ends soon; a fleet ends its sessions in any case.
        yield Readers(emulator, exits, "--session-timeout", "5")


def test_a_restart_of_the_service_gives_no_session_back_to_a_predecessor(
    emulator: RunningEmulator, readers: Readers
) -> None:
    """A driver in a long micro-batch, its successor, a restart: the old one asks first, and is refused all the same."""
    readers.start(2)
    put(emulator, b"0", b"1", b"2", b"3")
    old = Driver(emulator.endpoint_url, readers.addresses)
    old.read(4)
    new = Driver(emulator.endpoint_url, readers.addresses, log=list(old.log))
    put(emulator, b"4", b"5")
    assert sorted(new.read(2)) == [b"4", b"5"]
    readers.restart()
    with pytest.raises(StaleEpochError, match="taken over by host"):
        go_on(emulator, old, new)
    put(emulator, b"7")
    assert b"7" in new.read(1)
    # Its end does not affect its successor.
    old.reader.stop()
    put(emulator, b"8")
    assert b"8" in new.read(1)
    new.reader.stop()


def go_on(emulator: RunningEmulator, old: Driver, new: Driver) -> None:
    """The micro-batch of the old driver is over: it commits and asks for the next one, before the new one does."""
    old.reader.commit(old.log[-1])
    for _ in range(20):
        old.plan()
        put(emulator, b"6")
        new.read(1)


def test_a_driver_that_was_frozen_goes_on_or_is_told_who_took_over(emulator: RunningEmulator, readers: Readers) -> None:
    """Its sessions have ended meanwhile: it opens them again, unless a successor has them."""
    readers.start(1)
    put(emulator, b"0", b"1")
    with driver_process(emulator.endpoint_url, readers.addresses) as frozen:
        assert {line(frozen), line(frozen)} == {"0", "1"}
        frozen.send_signal(signal.SIGSTOP)
        until(lambda: readers.sessions() == [])
        put(emulator, b"2", b"3")
        frozen.send_signal(signal.SIGCONT)
        assert {line(frozen), line(frozen)} == {"2", "3"}
        frozen.send_signal(signal.SIGSTOP)
        new = Driver(emulator.endpoint_url, readers.addresses)
        assert sorted(new.read(4)) == [b"0", b"1", b"2", b"3"]
        frozen.send_signal(signal.SIGCONT)
        told = line(frozen)
        assert told.startswith("StaleEpochError")
        assert f"process {os.getpid()}" in told
        put(emulator, b"4")
        assert new.read(1) == [b"4"]
        new.reader.stop()


@pytest.fixture
def registry(emulator: RunningEmulator, tmp_path: Path) -> Iterator[str]:
    """A registry service whose leases end soon; its address."""
    pytest.importorskip("penstock.services.consumer_registry")
    times = ("--time-to-live-seconds", "3", "--grace-seconds", "1", "--sweep-seconds", "0.5")
    place = ("--store", f"sqlite://{tmp_path}/registry.db", "--region", "us-east-1")
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    arguments = ["serve", "--port", "0", *place, "--endpoint-url", emulator.endpoint_url, *times]
    with service_process("penstock.services.consumer_registry", arguments, environment) as service:
        yield service.address


def test_a_query_that_was_frozen_for_longer_than_its_lease_reads_on(
    emulator: RunningEmulator, readers: Readers, registry: str
) -> None:
    """Its consumer was deregistered meanwhile: it is made again, and each record comes once."""
    readers.start(1)
    put(emulator, b"0", b"1")
    with driver_process(emulator.endpoint_url, readers.addresses, efo(registry)) as frozen:
        assert {line(frozen), line(frozen)} == {"0", "1"}
        before = consumers(emulator)
        frozen.send_signal(signal.SIGSTOP)
        until(lambda: consumers(emulator) == [])
        put(emulator, b"2")
        frozen.send_signal(signal.SIGCONT)
        assert line(frozen) == "2"
        after = consumers(emulator)
        assert (len(after), after == before) == (1, False)
        put(emulator, b"3")
        assert line(frozen) == "3"


def test_a_query_whose_lease_another_one_got_meanwhile_is_told_who_has_it(
    emulator: RunningEmulator, registry: str
) -> None:
    """It was frozen, and the other one waited for its consumer."""
    put(emulator, b"0")
    with driver_process(emulator.endpoint_url, [], efo(registry)) as frozen:
        assert line(frozen) == "0"
        (consumer,) = consumers(emulator)
        frozen.send_signal(signal.SIGSTOP)
        rival = Driver(emulator.endpoint_url, [], options=efo(registry) | {"jobId": "the-rival"})
        assert rival.read(1) == [b"0"]
        frozen.send_signal(signal.SIGCONT)
        told = line(frozen)
        assert told.startswith("LeaseLostError")
        assert "job 'the-rival' has held the consumer for" in told
        put(emulator, b"1")
        assert rival.read(1) == [b"1"]
        assert consumers(emulator) == [consumer]
        rival.reader.stop()


def test_a_restart_without_a_job_id_takes_over_by_its_checkpoint(emulator: RunningEmulator, registry: str) -> None:
    """At once, although its predecessor renews its lease; also when that had logged its first micro-batch alone."""
    put(emulator, b"0", b"1")
    options = efo(registry) | {"jobId": ""}
    first = Driver(emulator.endpoint_url, [], options=options)
    assert sorted(first.read(2)) == [b"0", b"1"]
    # In a second run Spark calls initialOffset again, and first plans the range that was logged.
    second = Driver(emulator.endpoint_url, [], options=options)
    second.log.append(first.log[1])
    assert sorted(second.run()) == [b"0", b"1"]
    put(emulator, b"2")
    assert second.read(1) == [b"2"]
    until(lambda: is_lost(first))
    with pytest.raises(LeaseLostError, match=rf"same query, job 'query-.*-{os.getpid()}-.*', holds the consumer"):
        first.plan()
    third = Driver(emulator.endpoint_url, [], options=options, log=[second.log[-1]])
    put(emulator, b"3")
    assert third.read(1) == [b"3"]
    # Another query of the consumer's name has to wait, whatever its checkpoint is.
    stranger = Driver(emulator.endpoint_url, [], options=options)
    assert stranger.log[0]["query"] != third.log[0]["query"]
    for driver in (first, second, third, stranger):
        driver.reader.stop()


def test_of_two_queries_that_take_each_others_subscriptions_one_fails_and_leaves_the_consumer(
    emulator: RunningEmulator, readers: Readers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two machines with a file of leases each: wherever they read, the error and what is left are the same."""
    readers.start(1)
    put(emulator, b"0")
    queries = [
        Driver(emulator.endpoint_url, readers.addresses, options=own_registry(tmp_path, job))
        for job in ("first", "second")
    ]
    for query in queries:
        assert query.read(1) == [b"0"]
    (consumer,) = consumers(emulator)

    with (
        ThreadPoolExecutor(2) as threads,
        pytest.raises(SubscriptionTakenOverError, match=f"took the subscription of {consumer}") as caught,
    ):
        # At the same time: a session without calls would end while the other query waits, and begin again.
        until(lambda: not list(threads.map(Driver.plan, queries)), 3 * PATIENCE_SECONDS)
    assert (caught.value.consumer_arn, caught.value.times) == (consumer, 3)
    # Either query may have registered it: both lose it.
    first, second = queries
    first.reader.stop()
    assert consumers(emulator) == [consumer]
    assert "it is left registered for that one" in caplog.text
    second.reader.stop()
    last = Driver(emulator.endpoint_url, readers.addresses, options=own_registry(tmp_path, "second"))
    assert last.read(1) == [b"0"]
    last.reader.stop()


def test_a_query_reads_on_when_a_job_of_another_registry_deregisters_its_consumer(
    emulator: RunningEmulator, readers: Readers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is registered again, with a warning; but three times an hour, so that two do not fight for ever."""
    readers.start(1)
    put(emulator, b"0")
    request = AcquireRequest(stream_name=STREAM, consumer_name="the-consumer", job_id="first")
    with open_registry(aws=emulator_options(emulator.endpoint_url), store_path=tmp_path / "first.db") as first:
        lease = first.acquire(request)
        query = Driver(emulator.endpoint_url, readers.addresses, options=own_registry(tmp_path, "second"))
        assert query.read(1) == [b"0"]
        first.release(lease)
    for row in (b"1", b"2", b"3"):
        put(emulator, row)
        assert query.read(1) == [row]
        (consumer,) = consumers(emulator)
        assert f"registered again, as {consumer}" in caplog.text
        assert "registryEndpoint" in caplog.text
        emulator.client().deregister_stream_consumer(ConsumerARN=consumer)
    with pytest.raises(LeaseLostError, match=r"consumer 'the-consumer' .* was deregistered 4 times within"):
        query.read(1)
    query.reader.stop()
    assert consumers(emulator) == []


def test_a_restart_that_has_no_checkpoint_yet_takes_the_lease_of_a_killed_run_over(
    emulator: RunningEmulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On its machine a lock shows that the process has ended: neither a jobId nor the lease's 30 s are needed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    put(emulator, b"0")
    options = own_registry(tmp_path, "")
    with driver_process(emulator.endpoint_url, [], options) as killed:
        assert line(killed) == "0"
        (consumer,) = consumers(emulator)
    second = Driver(emulator.endpoint_url, [], options=options)
    assert second.read(1) == [b"0"]
    assert "whose process on this machine is dead" in caplog.text
    assert "still waiting" not in caplog.text
    assert consumers(emulator) == [consumer]
    second.reader.stop()
    assert consumers(emulator) == []
    # That of the killed one stays for a day.
    assert len([*(tmp_path / "state" / "penstock" / "held").iterdir()]) == 1


def own_registry(folder: Path, job: str) -> dict[str, str]:
    """Options of a query by enhanced fan-out with a registry of its own."""
    options = {"recordPublisher": "efo", "efoConsumerName": "the-consumer", "jobId": job}
    return options | {"registryStore": str(folder / f"leases of {job}.db")}


def is_lost(driver: Driver) -> bool:
    """Whether a driver knows that it has lost its lease."""
    try:
        driver.plan()
    except LeaseLostError:
        return True
    return False


def efo(registry: str) -> dict[str, str]:
    """Options of a query by enhanced fan-out."""
    return {"recordPublisher": "efo", "efoConsumerName": "the-consumer", "registryEndpoint": registry}


def consumers(emulator: RunningEmulator) -> list[str]:
    """The ARNs of the stream's consumers."""
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    return [one["ConsumerARN"] for one in client.list_stream_consumers(StreamARN=arn)["Consumers"]]


def line(process: "subprocess.Popen[str]") -> str:
    """The next line that a driver writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(condition: Callable[[], bool], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something that a service does on its own."""
    deadline = time.monotonic() + patience_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
