"""The service as a process, beside an emulator, and its commands."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import AcquireRequest, BlockingConsumerRegistry, Lease
from penstock.registration.testing import running_dynamodb
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.services.consumer_registry.__main__ import main
from penstock.terminal.testing import run_main

MODULE = "penstock.services.consumer_registry"

Serve = Callable[..., AbstractContextManager[ServiceProcess]]
MakeRequest = Callable[..., AcquireRequest]
ConsumerNames = Callable[[], list[str]]
Eventually = Callable[..., None]
Command = Callable[..., subprocess.CompletedProcess[str]]


def lease_of(registry: BlockingConsumerRegistry) -> Lease:
    """The lease on its first consumer, as others see it."""
    lease = registry.list_consumers()[0].lease
    assert lease is not None
    return lease


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    delay = timedelta(milliseconds=50)
    with running_emulator(consumer_creation_delay=delay, consumer_deletion_delay=delay) as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[str]:
    with running_dynamodb() as endpoint_url:
        yield endpoint_url


@pytest.fixture
def serve(emulator: RunningEmulator, tmp_path: Path, eventually: Eventually) -> Serve:
    """Starts a service; several of one test share their store. No consumer is left of the test before."""
    client = emulator.client()
    stream = client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]

    def left() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.list_stream_consumers(StreamARN=stream)["Consumers"]
        return found

    for consumer in left():
        if consumer["ConsumerStatus"] != "DELETING":
            client.deregister_stream_consumer(ConsumerARN=consumer["ConsumerARN"])
    eventually(lambda: not left())

    def start(
        *arguments: str, store: str = f"sqlite://{tmp_path}/registry.db", **environment: str
    ) -> AbstractContextManager[ServiceProcess]:
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "PENSTOCK_REGISTRY_REGION": "us-east-1",
            "PENSTOCK_REGISTRY_ENDPOINT_URL": emulator.endpoint_url,
            **environment,
        }
        return service_process(MODULE, ["serve", "--store", store, *arguments], environment)

    return start


@pytest.fixture
def request_lease() -> MakeRequest:
    """Makes a request for a lease on a consumer of the stream `flights`."""

    def make(job_id: str = "job", consumer_name: str = "delays", **options: Any) -> AcquireRequest:
        return AcquireRequest(stream_name="flights", consumer_name=consumer_name, job_id=job_id, **options)

    return make


@pytest.fixture
def consumer_names(emulator: RunningEmulator) -> ConsumerNames:
    """Asks Kinesis for the names of the stream's consumers."""

    # Kinesis's limits hold for tests, too.
    client = emulator.client(config=Config(retries={"mode": "standard", "total_max_attempts": 10}))

    def ask() -> list[str]:
        arn = client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]
        return [each["ConsumerName"] for each in client.list_stream_consumers(StreamARN=arn)["Consumers"]]

    return ask


@pytest.fixture
def eventually() -> Eventually:
    """Waits for a condition to come true."""

    def wait(condition: Callable[[], object], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.1)

    return wait


@pytest.fixture
def command() -> Command:
    """Runs a command of `penstock registry` to its end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_main(main, arguments, environ={**os.environ, **environment})

    return run
