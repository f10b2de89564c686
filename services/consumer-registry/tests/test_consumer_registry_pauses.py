"""Processes that stand still for longer than leases live, and replicas whose clocks are wrong."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from registry_process import ConsumerNames, Eventually, MakeRequest, Serve

from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator
from penstock.registration import BlockingConsumerRegistry, ConflictPolicy, open_registry
from penstock.registration.errors import ConsumerHeldError, LeaseLostError

LIFE = timedelta(seconds=3)
SHORT = ("--grace-seconds", "1", "--sweep-seconds", "0.5")
FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)

_JOB = """
import sys
from datetime import timedelta
from pathlib import Path
from penstock.aws.testing import emulator_options
from penstock.registration import AcquireRequest, open_registry

endpoint_url, place = sys.argv[1:3]
where = {"aws": emulator_options(endpoint_url), "store_path": Path(place)} if "/" in place else {"endpoint": place}
registry = open_registry(**where)

def say(*words):
    print(*words, flush=True)

def tell(lease):
    say("holds", lease.fencing_token, lease.consumer_arn)

lease = registry.acquire(AcquireRequest(
    stream_name="flights", consumer_name="paused", job_id="job", time_to_live=timedelta(seconds=3)))
registry.keep(lease, lambda error: say("lost", error.reason), tell)
tell(lease)
sys.stdin.readline()
registry.release(lease)
registry.close()
"""


Place = tuple[str, Callable[[], AbstractContextManager[BlockingConsumerRegistry]]]
StartJob = Callable[[], AbstractContextManager["PausedJob"]]


class PausedJob:
    """A process that holds a lease, and says what becomes of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.token, self.arn = self.lease()

    def lease(self) -> tuple[int, str]:
        """The token and the ARN of the lease that it has got."""
        token, arn = self.heard("holds").split()
        return int(token), arn

    def heard(self, what: str) -> str:
        assert self.process.stdout is not None
        said, _, rest = self.process.stdout.readline().strip().partition(" ")
        assert said == what, f"{said} {rest}"
        return rest

    def end(self) -> None:
        self.process.communicate("end\n", timeout=60)
        assert self.process.returncode == 0

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture(params=["in process", "service"])
def place(request: pytest.FixtureRequest, serve: Serve, emulator: RunningEmulator, tmp_path: Path) -> Iterator[Place]:
    """Where the leases are: how a job names it, and how this process opens the same registry."""
    if request.param == "service":
        with serve(*SHORT) as service:
            yield service.address, lambda: open_registry(endpoint=service.address)
    else:
        path = tmp_path / "leases.db"
        aws = emulator_options(emulator.endpoint_url)
        yield str(path), lambda: open_registry(aws=aws, store_path=path)


@pytest.fixture
def start_job(emulator: RunningEmulator, place: Place) -> StartJob:
    """Starts a job in a process of its own."""

    @contextmanager
    def start() -> Iterator[PausedJob]:
        process = subprocess.Popen(
            [sys.executable, "-c", _JOB, emulator.endpoint_url, place[0]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield PausedJob(process)
        finally:
            # Whatever it does, also when it stands still.
            process.kill()
            process.communicate()

    return start


def test_a_job_that_stood_still_takes_its_lease_back_and_registers_again(
    place: Place, start_job: StartJob, request_lease: MakeRequest, consumer_names: ConsumerNames, eventually: Eventually
) -> None:
    """Its consumer was deregistered meanwhile: it has another ARN, and a larger token; the end is clean as ever."""
    with start_job() as job, place[1]() as registry:
        job.stop()
        # In process, whoever acquires anything looks after what others left behind.
        other = registry.acquire(request_lease("other", "other"))
        registry.keep(other, lambda error: pytest.fail(str(error)))
        eventually(lambda: "paused" not in consumer_names(), 60)
        job.go_on()
        token, arn = job.lease()
        assert token > job.token
        assert arn != job.arn
        assert set(consumer_names()) == {"paused", "other"}
        registry.release(other)
        job.end()
        eventually(lambda: consumer_names() == [], 60)


def test_a_job_that_was_frozen_learns_which_job_has_its_consumer(
    place: Place, start_job: StartJob, request_lease: MakeRequest, consumer_names: ConsumerNames, eventually: Eventually
) -> None:
    """A rival that waited gets the consumer, and keeps it when the first job continues."""
    with start_job() as job, place[1]() as registry:
        job.stop()
        wanted = request_lease("rival", "paused", conflict_policy=ConflictPolicy.WAIT, time_to_live=LIFE)
        lease = registry.acquire(wanted)
        registry.keep(lease, lambda error: pytest.fail(str(error)))
        assert (lease.consumer_arn, lease.fencing_token > job.token) == (job.arn, True)
        job.go_on()
        assert "job 'rival' has held the consumer for" in job.heard("lost")
        assert consumer_names() == ["paused"]
        registry.release(lease)
        eventually(lambda: consumer_names() == [], 60)


def test_a_service_that_stood_still_ends_nothing(
    serve: Serve, request_lease: MakeRequest, consumer_names: ConsumerNames, eventually: Eventually
) -> None:
    """For longer than leases live: it hears their holders before it judges them, and lets no rival in."""
    with serve(*SHORT) as service, open_registry(endpoint=service.address) as registry:
        lost: list[LeaseLostError] = []
        lease = registry.acquire(request_lease("job", time_to_live=LIFE))
        registry.keep(lease, lost.append)
        os.kill(service.process.pid, signal.SIGSTOP)
        until = time.monotonic() + 2 * LIFE.total_seconds() + 2
        eventually(lambda: time.monotonic() > until)
        os.kill(service.process.pid, signal.SIGCONT)
        with open_registry(endpoint=service.address) as other, pytest.raises(ConsumerHeldError, match="'job'"):
            other.acquire(request_lease("rival"))
        until = time.monotonic() + 2 * LIFE.total_seconds()
        eventually(lambda: time.monotonic() > until)
        (consumer,) = registry.list_consumers()
        assert consumer.lease is not None
        assert (consumer.lease.fencing_token, consumer.consumer_arn) == (lease.fencing_token, lease.consumer_arn)
        assert (lost, consumer_names()) == ([], ["delays"])
        registry.release(lease)
        eventually(lambda: consumer_names() == [], 60)


@pytest.mark.skipif(FAKETIME is None, reason="needs libfaketime: apt-get install libfaketime")
def test_replicas_whose_clocks_are_wrong_end_nothing_that_lives_and_all_that_is_dead(
    serve: Serve, dynamodb: str, request_lease: MakeRequest, consumer_names: ConsumerNames, eventually: Eventually
) -> None:
    """Three processes on one table, two minutes behind, 45 s ahead and 8 s behind: by no replica is anything ended."""
    store = f"dynamodb://leases-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        registries = []
        for offset in ("-120s", "+45s", "-8s"):
            environment = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            service = stack.enter_context(serve(*SHORT, store=store, AWS_ENDPOINT_URL_DYNAMODB=dynamodb, **environment))
            registries.append(stack.enter_context(open_registry(endpoint=service.address)))
        lost: list[LeaseLostError] = []
        leases = []
        for number in range(6):
            registry = registries[number % 3]
            lease = registry.acquire(request_lease(f"job-{number}", f"live-{number}", time_to_live=2 * LIFE))
            registry.keep(lease, lost.append)
            leases.append((registry, lease))
        living = {f"live-{number}" for number in range(6)}
        until = time.monotonic() + 6 * LIFE.total_seconds()
        while time.monotonic() < until:
            for registry in registries:
                with pytest.raises(ConsumerHeldError):
                    registry.acquire(request_lease("rival", "live-0"))
            assert (set(consumer_names()), lost) == (living, [])
        dead = registries[0].acquire(request_lease("dead", "dead", time_to_live=2 * LIFE))
        wanted = request_lease("heir", "dead", conflict_policy=ConflictPolicy.WAIT, time_to_live=2 * LIFE)
        heir = registries[1].acquire(wanted)
        # On a busy machine its consumer may be ended first, and be registered again for the heir.
        assert heir.fencing_token == dead.fencing_token + 1
        # No process renews it: the second job is dead, too.
        eventually(lambda: set(consumer_names()) == living, 60)
        assert lost == []
        for registry, lease in leases:
            registry.release(lease)
        eventually(lambda: consumer_names() == [], 60)
