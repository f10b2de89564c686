from __future__ import annotations

import json
import queue
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from awscrt import http, io
from awscrt.exceptions import AwsCrtError
from botocore.eventstream import EventStreamBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1024 * 1024


class Call:
    """One HTTP/2 stream: status, body, and the event-stream messages in it (botocore checks both CRCs)."""

    def __init__(self, connection: Any, operation: str, params: dict[str, Any]) -> None:
        body = json.dumps(params).encode()
        headers = http.HttpHeaders(
            [
                ("host", "localhost"),
                ("x-amz-target", f"Kinesis_20131202.{operation}"),
                ("content-type", "application/x-amz-json-1.1"),
                ("content-length", str(len(body))),
            ]
        )
        self.received = 0
        self.body = bytearray()
        self.status = 0
        self._buffer = EventStreamBuffer()
        self._chunks: queue.Queue[bytes] = queue.Queue()
        request = http.HttpRequest("POST", "/", headers, BytesIO(body))
        self.stream = connection.request(request, self._on_response, self._on_body)
        self.stream.activate()

    def finish(self) -> Any:
        self.status = self.stream.completion_future.result(20)
        return json.loads(self.body) if self.body else {}

    def messages(self, count: int, *, credit: bool = False) -> list[Any]:
        """The next `count` messages; `credit` gives the window back for what they took."""
        found: list[Any] = []
        while len(found) < count:
            chunk = self._chunks.get(timeout=20)
            if credit:
                self.stream.update_window(len(chunk))
            self._buffer.add_data(chunk)
            found += self._buffer
        return found

    def _on_response(self, status_code: int, **_: Any) -> None:
        self.status = status_code

    def _on_body(self, chunk: bytes, **_: Any) -> None:
        self.received += len(chunk)
        self.body += chunk
        self._chunks.put(bytes(chunk))


@pytest.fixture
def connect(world: Any) -> Callable[..., Any]:
    """Open HTTP/2 connections that trust the emulator's authority."""
    group = io.EventLoopGroup(1)
    bootstrap = io.ClientBootstrap(group, io.DefaultHostResolver(group))

    def connect_one(**options: Any) -> Any:
        tls = io.TlsContextOptions()
        tls.override_default_trust_store_from_path(None, str(world.emulator.ca_file))
        tls.alpn_list = ["h2"]
        connection_options = io.ClientTlsContext(tls).new_connection_options()
        connection_options.set_server_name("localhost")
        port = int(world.emulator.tls_endpoint_url.rpartition(":")[2])
        return http.Http2ClientConnection.new(
            "127.0.0.1", port, bootstrap=bootstrap, tls_connection_options=connection_options, **options
        ).result(10)

    return connect_one


def subscription(world: Any, kind: str = "TRIM_HORIZON", consumer: str | None = None, shard: str | None = None) -> Any:
    return {
        "ConsumerARN": consumer or world.register(),
        "ShardId": shard or world.first,
        "StartingPosition": {"Type": kind},
    }


def test_a_subscription_over_http2_begins_with_the_initial_response(world: Any, connect: Any) -> None:
    """First the initial-response, then an event for each put, idle events, and the end of the stream."""
    world.stream()
    call = Call(connect(), "SubscribeToShard", subscription(world))
    (first,) = call.messages(1)
    assert first.headers[":event-type"] == "initial-response"
    assert call.status == 200
    world.put("a")
    (event,) = call.messages(1)
    assert event.headers[":event-type"] == "SubscribeToShardEvent"
    assert [record["PartitionKey"] for record in json.loads(event.payload)["Records"]] == ["a"]
    world.clock.advance(5)
    (idle,) = call.messages(1)
    assert json.loads(idle.payload)["Records"] == []
    world.client.split_shard(StreamName="stream", ShardToSplit=world.first, NewStartingHashKey=str(2**127))
    (last,) = call.messages(1)
    assert sorted(json.loads(last.payload)) == ["ChildShards", "MillisBehindLatest", "Records"]
    assert call.stream.completion_future.result(20) == 200


def test_a_refused_subscription_over_http2_is_a_plain_answer(world: Any, connect: Any) -> None:
    """An error before the stream begins is a 400 with a JSON body; one inside it is an exception frame."""
    world.stream()
    connection, arn = connect(), world.register()
    first = Call(connection, "SubscribeToShard", subscription(world, consumer=arn))
    first.messages(1)
    refused = Call(connection, "SubscribeToShard", subscription(world, consumer=arn))
    assert refused.finish()["__type"] == "ResourceInUseException"
    assert refused.status == 400
    world.clock.advance(5)
    first.messages(1)
    Call(connection, "SubscribeToShard", subscription(world, consumer=arn)).messages(1)
    (exception,) = first.messages(1)
    assert exception.headers[":message-type"] == "exception"
    assert exception.headers[":exception-type"] == "ResourceInUseException"
    assert first.stream.completion_future.result(20) == 200


def test_a_stalled_stream_holds_one_event_and_no_other_stream(world: Any, connect: Any) -> None:
    """A client that gives no window gets exactly its window; the subscription stands still, and its neighbour on the
    same connection gets everything."""
    window = 100_000
    world.start(enforce_limits=False).stream(shards=2)
    connection = connect(manual_window_management=True, initial_window_size=window)
    stalled = Call(connection, "SubscribeToShard", subscription(world, consumer=world.register("stalled")))
    other = "shardId-000000000001"
    flowing = Call(connection, "SubscribeToShard", subscription(world, consumer=world.register("flowing"), shard=other))
    stalled.messages(1)
    flowing.messages(1, credit=True)
    for key in ("0", str(2**128 - 1)):
        for _ in range(8):
            world.client.put_record(StreamName="stream", Data=b"x" * (MIB - 1), PartitionKey="k", ExplicitHashKey=key)
    records = 0
    while records < 8:
        (event,) = flowing.messages(1, credit=True)
        records += len(json.loads(event.payload)["Records"])
    assert stalled.received == window
    core = {s.consumer_arn.split("/")[-1].split(":")[0]: s for s in world.core._subscriptions.values()}
    assert core["stalled"].position < core["flowing"].position
    assert len(core["stalled"].shard.read(core["stalled"].position, max_records=100, max_bytes=100 * MIB)) == 7
    # Crediting what was taken wakes the stalled stream up again.
    stalled.stream.update_window(window)
    events: list[Any] = []
    while len(events) < 8:
        events += [json.loads(event.payload) for event in stalled.messages(1, credit=True)]
    assert sum(len(event["Records"]) for event in events) == 8


def test_closing_the_connection_ends_its_subscriptions(world: Any, connect: Any) -> None:
    """A client that goes away leaves no subscription at the shard."""
    world.stream()
    connection = connect()
    call = Call(connection, "SubscribeToShard", subscription(world))
    call.messages(1)
    shard = world.core.streams["stream"].shards[0]
    assert len(shard.listeners) == 1
    connection.close().result(10)
    with pytest.raises(AwsCrtError):
        call.stream.completion_future.result(10)
    # The server hears of it on its own time; each call below lets its loop turn.
    for _ in range(10_000):
        if not world.emulator.call(lambda: set(shard.listeners)):
            break
    else:
        pytest.fail("the subscription is still there")
