"""Faults over real sockets: answers that are late, cut off, or never come."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError, ResponseStreamingError

ONCE = Config(parameter_validation=False, retries={"total_max_attempts": 1})
IMPATIENT = ONCE.merge(Config(read_timeout=0.3))


def names(world: Any) -> list[str]:
    found: list[str] = world.client.list_streams()["StreamNames"]
    return found


def test_a_delay_is_as_long_as_the_clock_says(world: Any) -> None:
    """The operation is carried out at once; its answer waits until the clock was moved on."""
    world.emulator.faults.add("delay", seconds=30, operation="CreateStream")
    answers: list[Any] = []
    caller = threading.Thread(
        target=lambda: answers.append(world.client.create_stream(StreamName="late", ShardCount=1)), daemon=True
    )
    caller.start()
    world.until(lambda: names(world) == ["late"])
    world.clock.advance(29)
    caller.join(0.2)
    assert caller.is_alive()
    # The delay may have begun after the clock was moved.
    world.clock.advance(30)
    caller.join(20)
    assert len(answers) == 1


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("kind", ["reset", "silence"])
def test_an_answer_can_be_lost_after_or_before_the_operation(world: Any, kind: str, applies: bool) -> None:
    """The caller hears nothing; whether the stream is there depends on `applies`."""
    world.emulator.faults.add(kind, operation="CreateStream", applies=applies)
    client = world.emulator.client(config=IMPATIENT if kind == "silence" else ONCE)
    with pytest.raises(ReadTimeoutError if kind == "silence" else (ConnectionClosedError, ResponseStreamingError)):
        client.create_stream(StreamName="stream", ShardCount=1)
    # On a busy machine the caller may have timed out before its request was read.
    world.until(lambda: names(world) == (["stream"] if applies else []))


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_is_reset_in_the_middle_of_an_answer(world: Any, tls: bool) -> None:
    """Half of the answer's bytes arrive, then nothing more; the next connection works."""
    world.stream()
    world.put("a", data=b"x" * 100_000)
    iterator = world.iterator()
    world.emulator.faults.add("reset", operation="GetRecords", count=1)
    # Not botocore: over TLS it takes an answer that was cut off for one without records.
    host, port = world.emulator.endpoint_url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    if tls:
        port = world.emulator.tls_endpoint_url.rpartition(":")[2]
        context = ssl.create_default_context(cafile=str(world.emulator.ca_file))
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    headers = {"X-Amz-Target": "Kinesis_20131202.GetRecords"}
    connection.request("POST", "/", json.dumps({"ShardIterator": iterator}), headers)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        connection.getresponse().read()
    assert len(world.client.get_records(ShardIterator=iterator)["Records"]) == 1
