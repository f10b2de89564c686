"""Clients that stall, and clients that disconnect: neither costs the emulator more than an event."""

from __future__ import annotations

import json
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import h2.errors
import h2.events
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1024 * 1024


def eventually(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait until a condition about another thread holds, or fail."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        pause.wait(0.01)


@pytest.fixture
def backlog(world: Any) -> Any:
    """A shard with 40 MiB in it, and no limits."""
    world.start(enforce_limits=False).stream()
    for _ in range(8):
        world.put(*"abcde", data=b"x" * (MIB - 1))
    return world


def subscribe_body(world: Any) -> bytes:
    request = {
        "ConsumerARN": world.register(),
        "ShardId": world.first,
        "StartingPosition": {"Type": "TRIM_HORIZON"},
    }
    return json.dumps(request).encode()


def stands_still(world: Any) -> int:
    """The number of records that were sent, once it does not change any more."""
    (subscription,) = world.core._subscriptions.values()
    seen: list[int] = []

    def settled() -> bool:
        seen.append(world.emulator.call(lambda: subscription.position))
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    eventually(settled)
    return seen[-1]


def raw_http1(world: Any, body: bytes) -> socket.socket:
    """Subscribe over a socket that holds little."""
    host, port = world.emulator.endpoint_url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    raw.settimeout(20)
    raw.connect((host, int(port)))
    raw.sendall(
        b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: Kinesis_20131202.SubscribeToShard\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    return raw


def test_a_stalled_http1_client_stops_its_subscription(backlog: Any) -> None:
    """A client that does not read holds what the sockets hold, however much the shard has; then it continues."""
    with raw_http1(backlog, subscribe_body(backlog)) as raw:
        eventually(lambda: bool(backlog.core._subscriptions))
        assert stands_still(backlog) < 20
        received = 0
        while received < 40 * MIB * 4 // 3:
            received += len(raw.recv(MIB))
        # The starting sequence number takes the first position.
        assert stands_still(backlog) == 41


@pytest.fixture
def raw_http2(backlog: Any) -> Any:
    return backlog.http2()


def test_a_stalled_http1_client_cannot_keep_a_subscription_that_is_over(backlog: Any) -> None:
    """Over HTTP/1.1 the connection is cut when the life is over."""
    body = subscribe_body(backlog)
    shard = backlog.core.streams["stream"].shards[0]
    with raw_http1(backlog, body):
        eventually(lambda: bool(backlog.core._subscriptions))
        stands_still(backlog)
        backlog.clock.advance(timedelta(minutes=5))
        eventually(lambda: not shard.listeners)


def test_frames_that_are_no_http2_end_the_connection(raw_http2: Any) -> None:
    """A violation of the protocol is answered with GOAWAY and the end of the connection."""
    stream_id = raw_http2.call("ListStreams", b"{}")
    raw_http2.until(stream_id, h2.events.StreamEnded)
    # A DATA frame on stream 0 is against RFC 9113, 6.1.
    raw_http2.socket.sendall(b"\x00\x00\x00" + b"\x00" + b"\x00" + b"\x00\x00\x00\x00")
    ended = []
    while data := raw_http2.socket.recv(65536):
        ended += [type(event) for event in raw_http2.h2.receive_data(data)]
    assert h2.events.ConnectionTerminated in ended
