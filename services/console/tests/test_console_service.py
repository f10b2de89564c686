"""The console as a process, beside an emulator of Kinesis and a shard reader."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from console_world import World, world

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc.health import check_http
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.services.console.__main__ import main

MODULE = "penstock.services.console"
TOKEN = "a-long-secret-of-the-console-with-32-characters"


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        client = running.client()
        client.create_stream(StreamName="orders", ShardCount=2)
        until_active(running)
        yield running


def until_active(emulator: RunningEmulator) -> None:
    deadline = time.monotonic() + 30
    while True:
        stream = emulator.client().describe_stream_summary(StreamName="orders")
        if stream["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE":
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def environment(emulator: RunningEmulator, **more: str) -> dict[str, str]:
    given = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PENSTOCK_CONSOLE_REGION": "us-east-1",
        "PENSTOCK_CONSOLE_ENDPOINT_URL": emulator.endpoint_url,
        "PENSTOCK_CONSOLE_STREAMS": "orders",
        "PENSTOCK_CONSOLE_INTERVAL_SECONDS": "0.2",
        "PENSTOCK_CONSOLE_SHARDS_INTERVAL_SECONDS": "5",
    }
    return {**os.environ, **given, **more}


def shown(service: ServiceProcess, path: str, words: str) -> str:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://{service.address}{path}", timeout=30) as answer:
                text: str = answer.read().decode()
        except urllib.error.HTTPError as error:
            text = error.read().decode()
        if words in text:
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def test_the_tree_follows_splits_and_merges(emulator: RunningEmulator) -> None:
    """Parents, children, and which shards are closed, as ListShards tells; without any service."""
    client = emulator.client()
    client.split_shard(StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126))
    until_active(emulator)
    client.merge_shards(
        StreamName="orders", ShardToMerge="shardId-000000000003", AdjacentShardToMerge="shardId-000000000001"
    )
    until_active(emulator)
    with service_process(MODULE, ["serve"], environment(emulator)) as service:
        text = shown(service, "/stream?name=orders", "5 shards: 2 open, 3 closed")
        for depth, number in (("", 0), (' class="d1"', 2), (' class="d2"', 4)):
            assert f'<th scope="row"{depth}><span class="pre">shardId-</span>{number:012d}</th>' in text
        merged = text[text.index('id="s-shardId-000000000004"') :]
        assert '<a href="#s-shardId-000000000003">…3</a>' in merged
        assert '<a href="#s-shardId-000000000001">…1</a>' in merged
        assert "No reader reports shards of this stream." in merged
        # Without readers their columns hold nothing, and are left out.
        assert "Not taken" not in text
        assert "Records<" not in text
        assert "25 %" in text
        assert check_http(service.address, "/healthz").is_serving
        assert service.terminate() == 0


def test_a_stream_that_is_not_there_does_not_hide_the_others(emulator: RunningEmulator) -> None:
    """It is shown without shards; Kinesis counts as up as long as it lists one."""
    with service_process(MODULE, ["serve"], environment(emulator, PENSTOCK_CONSOLE_STREAMS="gone,orders")) as service:
        shown(service, "/stream?name=orders", "2 shards: 2 open")
        text = shown(service, "/stream?name=gone", "0 shards")
        assert "No shards are known: Kinesis did not list them, for " in text
        assert "ResourceNotFoundException" in text
        shown(service, "/", "1 of 1 services answer.")


async def test_it_asks_services_by_flags_and_ends_when_told() -> None:
    """With a browser's connection open; the ready line names the address."""

    def look(services: World) -> int:
        flags = [f"--{kind.value}-endpoint={server.address}" for kind, server in services.servers.items()]
        with service_process(MODULE, ["serve", "--interval-seconds=0.2", *flags]) as service:
            shown(service, "/", "4 of 4 services answer.")
            return service.terminate()

    async with world() as services:
        assert await asyncio.to_thread(look, services) == 0


def test_an_address_that_is_taken_is_told(emulator: RunningEmulator, capfd: pytest.CaptureFixture[str]) -> None:
    """With exit code 2; the command of the common command line serves as well."""
    with service_process(MODULE, ["serve"]) as service:
        port = service.address.rpartition(":")[2]
        assert main(["--port", port]) == 2
        assert f"could not listen on 127.0.0.1:{port}" in capfd.readouterr().err


def test_tokens_come_from_the_environment_and_are_never_shown(emulator: RunningEmulator) -> None:
    """Neither in the log nor in an answer."""
    given = environment(
        emulator,
        PENSTOCK_CONSOLE_TOKEN=TOKEN,
        PENSTOCK_CONSOLE_HOST="0.0.0.0",
        PENSTOCK_CONSOLE_ALLOW_PLAIN_TEXT="true",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "serve"],
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"].replace("0.0.0.0", "127.0.0.1")
        statuses = []
        for token in ("wrong", TOKEN):
            request = urllib.request.Request(f"http://{address}/", headers={"Authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    statuses.append(answer.status)
                    assert TOKEN not in answer.read().decode()
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
        assert statuses == [401, 200]
    finally:
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert TOKEN not in out + log
