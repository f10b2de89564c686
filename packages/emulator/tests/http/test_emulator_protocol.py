"""The wire: what a client may send that boto3 never does."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON = "application/x-amz-json-1.1"


@pytest.fixture
def connection(world: Any) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(world.emulator.endpoint_url.removeprefix("http://"), timeout=20)
    yield connection
    connection.close()


def ask(
    connection: http.client.HTTPConnection, operation: str, body: bytes | str | Iterable[bytes], **options: Any
) -> tuple[http.client.HTTPResponse, Any]:
    headers = {"Content-Type": JSON, "X-Amz-Target": f"Kinesis_20131202.{operation}"}
    connection.request("POST", "/", body, headers, **options)
    response = connection.getresponse()
    content = response.read()
    return response, json.loads(content) if content else None


def test_every_answer_has_a_request_id_a_date_and_a_content_type(connection: Any, world: Any) -> None:
    """The headers that clients log and resolve LATEST by are there, in answers and in errors; ids differ."""
    good, names = ask(connection, "ListStreams", "{}")
    bad, error = ask(connection, "DescribeStreamSummary", '{"StreamName": "absent"}')
    assert (good.status, names["StreamNames"]) == (200, [])
    assert (bad.status, error["__type"]) == (400, "ResourceNotFoundException")
    assert good.headers["x-amzn-RequestId"] != bad.headers["x-amzn-RequestId"]
    assert {good.headers["Content-Type"], bad.headers["Content-Type"]} == {JSON}
    assert good.headers["Date"] == "Sun, 15 Jun 2025 15:06:40 GMT"


@pytest.mark.parametrize("operation", ["CreateQueue", "Nonsense", ""])
def test_an_operation_that_is_not_emulated_is_unknown(connection: Any, operation: str) -> None:
    """Operations that are left out, and those that never were, are UnknownOperationException."""
    response, error = ask(connection, operation, "{}")
    assert (response.status, error["__type"]) == (400, "UnknownOperationException")


def test_a_request_that_is_no_call_is_unknown(connection: Any) -> None:
    """A GET without a target is answered, not dropped."""
    connection.request("GET", "/")
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["__type"]) == (400, "UnknownOperationException")


@pytest.mark.parametrize(
    "body",
    [
        "{not json",
        "[]",
        '{"StreamName": 5, "Data": "", "PartitionKey": "k"}',
        '{"StreamName": "stream", "Data": "***", "PartitionKey": "k"}',
        '{"StreamName": "stream", "Data": 7, "PartitionKey": "k"}',
        '{"StreamName": "stream", "Data": "", "PartitionKey": {}}',
        '{"StreamName": "stream", "Data": "", "PartitionKey": "k", "DryRun": "yes"}',
    ],
)
def test_a_value_of_the_wrong_type_is_a_serialization_error(connection: Any, body: str) -> None:
    """Bodies that are not JSON, or not of the model's types, are SerializationException."""
    response, error = ask(connection, "PutRecord", body)
    assert (response.status, error["__type"]) == (400, "SerializationException")


def test_members_that_the_model_does_not_know_are_ignored(connection: Any, world: Any) -> None:
    """A newer client's parameters do not break an older emulator."""
    response, _ = ask(connection, "CreateStream", '{"StreamName": "stream", "ShardCount": 1, "Shininess": 11}')
    assert response.status == 200
    assert list(world.core.streams) == ["stream"]


def test_nonsense_on_the_socket_is_refused(world: Any) -> None:
    """What is not HTTP gets a 400 and a closed connection; the emulator lives on."""
    host, port = world.emulator.endpoint_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        answer = raw.recv(1000)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert raw.recv(1000) == b""
    assert world.client.list_streams()["StreamNames"] == []


def test_a_body_beyond_the_limit_is_refused(connection: Any) -> None:
    """A request that is far too large is cut off with 413."""
    connection.request("POST", "/", (b"x" * 1024 * 1024 for _ in range(33)), {}, encode_chunked=True)
    assert connection.getresponse().status == 413


def test_an_internal_failure_is_a_500(connection: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the emulator looks like a fault of the service, and the connection stays usable."""
    monkeypatch.setattr(world.core, "find_stream", None)
    response, error = ask(connection, "DescribeStreamSummary", '{"StreamName": "stream"}')
    assert (response.status, error["__type"]) == (500, "InternalFailure")
    assert ask(connection, "ListStreams", "{}")[0].status == 200
