"""The control API under /_emulator/, as any HTTP client uses it."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

import pytest

from penstock.emulator.testing import kinesis_client, running_emulator, start_emulator_process


def ask(url: str, method: str, path: str, body: Any = None, *, ca_file: str | None = None) -> tuple[int, Any]:
    scheme, _, address = url.partition("://")
    if scheme == "https":
        context = ssl.create_default_context(cafile=ca_file)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(address, timeout=20, context=context)
    else:
        connection = http.client.HTTPConnection(address, timeout=20)
    content = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
    connection.request(method, f"/_emulator/{path}", content)
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


@pytest.fixture
def control(world: Any) -> Any:
    return lambda method, path, body=None: ask(world.emulator.endpoint_url, method, path, body)


def test_health_is_told_on_both_ports(world: Any, control: Any) -> None:
    """GET health answers as soon as the emulator takes requests."""
    assert control("GET", "health") == (200, {"status": "ok"})
    tls = ask(world.emulator.tls_endpoint_url, "GET", "health", ca_file=str(world.emulator.ca_file))
    assert tls == (200, {"status": "ok"})


def test_faults_come_and_go_over_http(world: Any, control: Any) -> None:
    """POST adds a fault, GET lists it with its counts and the seed, DELETE takes one or all of them back."""
    world.start(seed=11)
    status, added = control("POST", "faults", {"kind": "fail_records", "indices": [0], "count": 1})
    assert status == 200
    world.stream()
    assert world.put("a", "b")[0]["ErrorCode"] == "InternalFailure"
    _, listed = control("GET", "faults")
    assert listed["seed"] == 11
    (fault,) = listed["faults"]
    assert (fault["id"], fault["indices"], fault["hits"]) == (added["id"], [0], 1)
    assert control("DELETE", f"faults/{added['id']}") == (200, {"cleared": True})
    assert control("DELETE", f"faults/{added['id']}")[0] == 404
    control("POST", "faults", {"kind": "throttle", "operation": "ListStreams"})
    assert control("DELETE", "faults") == (200, {"cleared": True})
    assert world.client.list_streams()["StreamNames"] == ["stream"]


@pytest.mark.parametrize(
    ("body", "option"),
    [({"kind": "sabotage"}, "kind"), ({}, "kind"), ({"kind": "throttle", "severity": 1}, "severity")],
)
def test_a_fault_that_cannot_be_is_a_400(control: Any, body: Any, option: str) -> None:
    """The answer names the field."""
    status, answer = control("POST", "faults", body)
    assert (status, answer["option"]) == (400, option)


def test_the_clock_is_moved_over_http(world: Any, control: Any) -> None:
    """POST clock moves a manual clock, and what waits for it."""
    before = world.clock.time()
    assert control("GET", "clock") == (200, {"time": before, "manual": True})
    assert control("POST", "clock", {"advance_seconds": 300}) == (200, {"time": before + 300, "manual": True})
    for wrong in ({}, {"advance_seconds": -1}, {"advance_seconds": "long"}, {"advance_seconds": True}):
        assert control("POST", "clock", wrong)[0] == 400
    assert world.clock.time() == before + 300


def test_a_real_clock_is_not_moved() -> None:
    """Without a manual clock there is nothing to move: 409."""
    with running_emulator(tls=False) as emulator:
        assert ask(emulator.endpoint_url, "POST", "clock", {"advance_seconds": 1})[0] == 409
        assert ask(emulator.endpoint_url, "GET", "clock")[1]["manual"] is False


def test_a_process_can_have_a_manual_clock() -> None:
    """--manual-clock makes time stand still for clients in any language."""
    with start_emulator_process("--manual-clock", "--no-tls") as emulator:
        client = emulator.client()
        client.create_stream(StreamName="stream", ShardCount=1)
        arn = client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]["ConsumerARN"]

        def status() -> str:
            return str(client.describe_stream_consumer(ConsumerARN=consumer)["ConsumerDescription"]["ConsumerStatus"])

        assert status() == "CREATING"
        ask(emulator.endpoint_url, "POST", "clock", {"advance_seconds": 1})
        assert status() == "ACTIVE"


def test_statistics_count_calls_errors_and_what_there_is(world: Any, control: Any) -> None:
    """GET stats tells calls by operation, errors by code, subscriptions, and the size of each stream."""
    world.stream(shards=2)
    world.put("a", "b", "c")
    world.refused(lambda: world.client.describe_stream_summary(StreamName="absent"))
    subscriber = world.subscribe()
    world.put("a")
    subscriber.next()
    _, stats = control("GET", "stats")
    assert stats["calls"]["PutRecords"] == 2
    assert stats["errors"] == {"ResourceNotFoundException": 1}
    assert stats["subscriptions"] == 1
    assert stats["streams"] == {"stream": {"shards": 2, "open_shards": 2, "consumers": 1, "records": 4}}


def test_a_reset_forgets_everything(world: Any, control: Any) -> None:
    """POST reset leaves no stream, no fault and no count, and ends subscriptions."""
    world.stream()
    subscriber = world.subscribe()
    world.emulator.faults.add("throttle", operation="ListShards")
    assert control("POST", "reset") == (200, {"reset": True})
    assert world.client.list_streams()["StreamNames"] == []
    _, stats = control("GET", "stats")
    assert (stats["calls"], stats["subscriptions"]) == ({"ListStreams": 1}, 0)
    assert world.emulator.faults.list() == []
    with pytest.raises(Exception, match="ResourceNotFoundException"):
        subscriber.next()
    world.stream()
    world.put("a")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "nonsense", None, 404),
        ("GET", "", None, 404),
        ("PUT", "faults", "{}", 405),
        ("POST", "faults", "not json", 400),
        ("POST", "faults", "[]", 400),
        ("DELETE", "faults/fault-77", None, 404),
    ],
)
def test_a_wrong_control_request_is_answered(control: Any, method: str, path: str, body: Any, status: int) -> None:
    """With an HTTP status and a JSON body that says what is wrong."""
    answer = control(method, path, body)
    assert answer[0] == status
    assert answer[1]["error"]


def test_control_needs_no_signature() -> None:
    """The control API is the test's own, and open also where Kinesis requests have to be signed."""
    with running_emulator(tls=False, verify_signatures=True, access_keys={"key": "secret"}) as emulator:
        assert ask(emulator.endpoint_url, "GET", "health")[0] == 200
        assert kinesis_client(emulator.endpoint_url).meta.region_name == "us-east-1"


def test_a_page_of_another_place_controls_nothing(world: Any) -> None:
    """Any page in a browser can send a form to loopback; programs, and pages of the emulator's own address, may."""
    address = world.emulator.endpoint_url.partition("://")[2]
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": f"http://{address}"}, 200),
        ({"Host": "emulator"}, 200),
        ({}, 200),
    ):
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("POST", "/_emulator/reset", "{}", headers)
        assert connection.getresponse().status == status, headers
        connection.close()
