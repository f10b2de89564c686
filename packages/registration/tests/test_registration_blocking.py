"""The registry for callers without a loop, with a Kinesis over real sockets."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from registry_homes import known

from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import AcquireRequest, BlockingConsumerRegistry, ConflictPolicy, open_registry
from penstock.registration.errors import ConsumerHeldError, LeaseLostError, RegistrationError

OpenOne = Callable[..., AbstractContextManager[BlockingConsumerRegistry]]


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    delay = timedelta(milliseconds=50)
    with running_emulator(consumer_creation_delay=delay, consumer_deletion_delay=delay) as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


@pytest.fixture
def open_one(emulator: RunningEmulator, tmp_path: Path) -> OpenOne:
    @contextmanager
    def open_it(**options: Any) -> Iterator[BlockingConsumerRegistry]:
        aws = emulator_options(emulator.endpoint_url)
        with open_registry(aws=aws, store_path=tmp_path / "registry.db", **options) as registry:
            yield registry

    return open_it


def request(job_id: str = "job", consumer_name: str = "delays", **options: Any) -> AcquireRequest:
    return AcquireRequest(stream_name="flights", consumer_name=consumer_name, job_id=job_id, **options)


def consumers(emulator: RunningEmulator) -> dict[str, str]:
    # Kinesis's limits hold for tests, too.
    client = emulator.client(config=Config(retries={"mode": "standard", "total_max_attempts": 10}))
    arn = client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]
    found = client.list_stream_consumers(StreamARN=arn)["Consumers"]
    return {each["ConsumerName"]: each["ConsumerStatus"] for each in found}


def eventually(condition: Callable[[], object], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def test_acquire_and_release(open_one: OpenOne, emulator: RunningEmulator) -> None:
    """An ACTIVE consumer in between, none after."""
    with open_one() as registry:
        lease = registry.acquire(request())
        assert consumers(emulator) == {"delays": "ACTIVE"}
        assert registry.release(lease) is True
        assert consumers(emulator) == {}


def test_a_kept_lease_outlives_its_time_to_live(open_one: OpenOne) -> None:
    """Heartbeats prolong it, here three times."""
    with open_one() as registry:
        lease = registry.acquire(request(time_to_live=timedelta(seconds=6)))
        registry.keep(lease, lambda error: pytest.fail(str(error)))
        ends_at: list[float] = []

        def renewed() -> bool:
            (consumer,) = registry.list_consumers()
            assert consumer.lease is not None
            end = time.monotonic() + consumer.lease.time_to_live_seconds
            if not ends_at or end > ends_at[-1] + 0.1:
                ends_at.append(end)
            return len(ends_at) == 4

        eventually(renewed)
        registry.release(lease)


def test_a_job_that_is_taken_over_gets_on_lost(open_one: OpenOne) -> None:
    """By `on_lost`, at its next heartbeat, on a thread that may use the registry."""
    told = threading.Event()
    errors: list[LeaseLostError] = []
    with open_one() as first, open_one() as second:
        lease = first.acquire(request("first", time_to_live=timedelta(seconds=6)))

        def on_lost(error: LeaseLostError) -> None:
            errors.append(error)
            assert known(first.list_consumers()[0].lease).job_id == "second"
            told.set()

        first.keep(lease, on_lost)
        with pytest.raises(ConsumerHeldError, match="'first'"):
            second.acquire(request("second"))
        taken = second.acquire(request("second", conflict_policy=ConflictPolicy.TAKE_OVER))
        assert told.wait(60)
        assert errors[0].fencing_token == lease.fencing_token < taken.fencing_token
        assert first.release(lease) is False
        assert second.release(taken) is True


def test_after_a_fork_it_says_so(open_one: OpenOne) -> None:
    """Threads do not survive a fork: the child gets an error instead of a call that never returns."""
    with open_one() as registry:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                registry.list_consumers()
                answer = b"no error"
            except RegistrationError as error:
                answer = error.code.encode()
            except BaseException as error:
                answer = repr(error).encode()
            registry.close()
            os.write(writing, answer)
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read() == b"REGISTRY_FORKED"
        assert registry.list_consumers() == []


_JOB = """
import sys
from datetime import timedelta
from pathlib import Path
from penstock.aws.testing import emulator_options
from penstock.registration import AcquireRequest, open_registry

endpoint_url, path, job_id, consumer_name = sys.argv[1:5]
registry = open_registry(aws=emulator_options(endpoint_url), store_path=Path(path))
lease = registry.acquire(AcquireRequest(
    stream_name="flights", consumer_name=consumer_name, job_id=job_id, time_to_live=timedelta(seconds=6)))
registry.keep(lease, print)
print(lease.consumer_arn, lease.fencing_token, flush=True)
"""


def job(emulator: RunningEmulator, path: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, emulator.endpoint_url, str(path), *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def test_it_never_keeps_a_process_alive(emulator: RunningEmulator, tmp_path: Path) -> None:
    """A program that forgets to release and to close ends with its last line, without a traceback."""
    child = subprocess.run(
        [sys.executable, "-c", _JOB, emulator.endpoint_url, str(tmp_path / "r.db"), "job", "forgetful"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout


def test_a_killed_job_is_handed_over_to_its_restart(
    emulator: RunningEmulator, open_one: OpenOne, tmp_path: Path
) -> None:
    """`kill -9`, and the same job again: the same ARN, a greater token."""
    child = job(emulator, tmp_path / "registry.db", _JOB + "sys.stdin.read()", "job", "delays")
    assert child.stdout is not None
    arn, token = child.stdout.readline().split()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    with open_one() as registry:
        lease = registry.acquire(request("job"))
        assert lease.consumer_arn == arn
        assert lease.fencing_token > int(token)
        assert lease.registration_is_ours
        registry.release(lease)
