"""What the README shows is so."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from registry_homes import known

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import (
    AcquireRequest,
    DynamoDbLeaseStore,
    LeaseSettings,
    LocalConsumerRegistry,
    RegistrationStrategy,
    open_local_registry,
)
from penstock.registration.testing import DynamoDbClients, running_wire

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    delay = timedelta(milliseconds=50)
    with running_emulator(consumer_creation_delay=delay, consumer_deletion_delay=delay) as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


def policy(name: str) -> set[str]:
    """The policy under the comment of that name, and its actions."""
    (text,) = re.findall(rf"<!-- policy: {name} -->\n```json\n(.*?)```", README, re.DOTALL)
    parsed = json.loads(text)
    assert parsed["Version"] == "2012-10-17"
    return {action for statement in parsed["Statement"] for action in statement["Action"]}


def test_the_examples_run(emulator: RunningEmulator, tmp_path: Path) -> None:
    """Copied out of the README, one after the other, against the emulator."""
    examples = re.findall(r"<!-- run by the tests -->\n```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL_KINESIS": emulator.endpoint_url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "XDG_STATE_HOME": str(tmp_path),
    }
    outputs = [
        subprocess.run(
            [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        for example in examples
    ]
    assert [output.stderr for output in outputs] == ["", ""]
    assert re.fullmatch(r"arn:aws:kinesis:.*:stream/flights/consumer/delays:\d+ 1\n", outputs[0].stdout)
    assert outputs[1].stdout == known(re.search(r"print\(error\)  # (.*\n)", examples[1]))[1]


async def job_and_operator(
    registry: LocalConsumerRegistry, strategy: RegistrationStrategy, arn: str | None = None
) -> None:
    """All that registration does for a job, and for operators."""
    name: dict[str, Any] = {"consumer_arn": arn} if arn else {"consumer_name": "delays"}
    request = AcquireRequest(stream_name="flights", job_id="job", strategy=strategy, **name)
    lease = await registry.acquire(request)
    assert (await registry.heartbeat(lease)).held
    if arn is None:
        await registry.list_consumers(with_state=True)
        await registry.list_consumers("flights")
        await registry.collect_garbage(dry_run=True)
    await registry.release(lease)


@pytest.mark.parametrize("strategy", [RegistrationStrategy.LAZY, RegistrationStrategy.EAGER])
async def test_the_policy_of_lazy_and_eager_allows_what_is_called_and_no_more(
    emulator: RunningEmulator, dynamodb: str, strategy: RegistrationStrategy, tmp_path: Path
) -> None:
    """Seen on the wire, from the first look to the de-registration."""
    with running_wire(emulator.endpoint_url) as wire:
        session = AwsSession(emulator_options(wire.url))
        settings = LeaseSettings(grace_period=timedelta(0))
        registry = open_local_registry(session, tmp_path / "leases.db", settings=settings)
        await job_and_operator(registry, strategy)
        await registry.close()
    assert {f"kinesis:{call.operation}" for call in wire.calls} == policy("lazy, eager")


async def test_none_calls_nothing(emulator: RunningEmulator, tmp_path: Path) -> None:
    """The strategy `none` needs no permission for registration."""
    arn = "arn:aws:kinesis:us-east-1:000000000000:stream/flights/consumer/delays:1700000000"
    with running_wire(emulator.endpoint_url) as wire:
        registry = open_local_registry(AwsSession(emulator_options(wire.url)), tmp_path / "leases.db")
        await job_and_operator(registry, RegistrationStrategy.NONE, arn)
        await registry.close()
    assert wire.calls == []


async def test_the_policy_of_the_table_allows_what_is_called_and_no_more(
    emulator: RunningEmulator, dynamodb: str, dynamodb_table: str
) -> None:
    """From the table's making to a list of one stream."""
    called: set[str] = set()

    class Watched:
        def __init__(self) -> None:
            self.client = DynamoDbClients(dynamodb).aio_client("dynamodb")

        def aio_client(self, service_name: str) -> Self:
            return self

        async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
            called.add(f"dynamodb:{operation.title().replace('_', '')}")
            return await self.client.call(operation, **parameters)

        async def close(self) -> None:
            await self.client.close()

    store = DynamoDbLeaseStore(Watched(), dynamodb_table)
    registry = open_local_registry(AwsSession(emulator_options(emulator.endpoint_url)), store=store)
    await asyncio.wait_for(job_and_operator(registry, RegistrationStrategy.EAGER), 30)
    await registry.close()
    assert called == policy("dynamodb")
