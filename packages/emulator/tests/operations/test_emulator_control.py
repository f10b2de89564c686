"""The control API under /_emulator/, as any HTTP client uses it."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

import pytest


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
        # A page whose name leads here. Browsers send no Origin with a GET, and to http no Sec-Fetch-Site.
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:4567"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "[bad"}, 403),
        ({"Host": "localhost:4567"}, 200),
        ({"Host": "172.17.0.2:4567"}, 200),
        ({"Host": "[::1]:4567"}, 200),
    ):
        for method, route in (("POST", "reset"), ("GET", "stats"), ("GET", "faults"), ("DELETE", "faults")):
            connection = http.client.HTTPConnection(address, timeout=20)
            connection.request(method, f"/_emulator/{route}", "{}" if method == "POST" else None, headers)
            assert connection.getresponse().status == status, (method, headers)
            connection.close()
