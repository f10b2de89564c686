"""One fixture, `world`: an emulator whose clock stands still, a client, and short words for what tests do with them."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import pytest
from botocore.config import Config

from penstock.emulator.testing import ManualClock, RunningEmulator, kinesis_client, running_emulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The client's own checks are off: the emulator's are tested. So are retries, or no throttled answer would be seen.
PLAIN = Config(parameter_validation=False, retries={"total_max_attempts": 1}, read_timeout=20)
FIRST = "shardId-000000000000"


class Subscriber:
    """Reads an event stream on a thread."""

    END = "the stream ended"

    def __init__(self, client: Any, request: dict[str, Any]) -> None:
        self._stream = client.subscribe_to_shard(**request)["EventStream"]
        self._events: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Any:
        """The next event, `END`, or the exception that ended the stream raised here."""
        item = self._events.get(timeout=20)
        if isinstance(item, Exception):
            raise item
        return item

    def data(self, count: int) -> list[bytes]:
        """The data of the next `count` records."""
        found: list[bytes] = []
        while len(found) < count:
            found += [record["Data"] for record in self.next()["Records"]]
        return found

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Whether nothing comes for a while (of real time: the emulator's clock stands still)."""
        try:
            self._events.put(self._events.get(timeout=seconds))
        except queue.Empty:
            return True
        return False

    def _read(self) -> None:
        try:
            for event in self._stream:
                self._events.put(event["SubscribeToShardEvent"])
            self._events.put(self.END)
        except Exception as error:
            self._events.put(error)


class RawHttp2:
    """An HTTP/2 client of which a test decides every frame."""

    def __init__(self, world: Any) -> None:
        context = ssl.create_default_context(cafile=str(world.emulator.ca_file))
        context.set_alpn_protocols(["h2"])
        port = int(world.emulator.tls_endpoint_url.rpartition(":")[2])
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket = context.wrap_socket(plain, server_hostname="localhost")
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.bodies: dict[int, bytes] = {}
        self._events: deque[Any] = deque()

    def call(self, operation: str, body: bytes) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/"),
            ("x-amz-target", f"Kinesis_20131202.{operation}"),
        ]
        self.h2.send_headers(stream_id, headers)
        self.h2.send_data(stream_id, body, end_stream=True)
        self.flush()
        return stream_id

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def until(self, stream_id: int, kind: type[Any]) -> Any:
        """Receive until an event of this kind for this stream; no window is given back."""
        while True:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, kind) and event.stream_id == stream_id:
                    return event
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError("the emulator closed the connection")
            for event in self.h2.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                self._events.append(event)
            self.flush()


class World:
    """An emulator without delays on a manual clock; `start` replaces it by one with other options."""

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self._resources = resources
        self.clock = ManualClock()
        self.first = FIRST
        self._names = iter(f"consumer-{number}" for number in range(1000))
        self.start()

    def start(self, **config: Any) -> World:
        config = {"consumer_creation_delay": timedelta(0), "consumer_deletion_delay": timedelta(0), **config}
        self.emulator: RunningEmulator = self._resources.enter_context(running_emulator(clock=self.clock, **config))
        self.client = self.emulator.client(config=PLAIN)
        self.core = self.emulator.kinesis
        return self

    def tls_client(self) -> Any:
        return kinesis_client(self.emulator.tls_endpoint_url, verify=str(self.emulator.ca_file), config=PLAIN)

    def http2(self) -> RawHttp2:
        """A raw HTTP/2 client, closed at the end of the test."""
        client = RawHttp2(self)
        self._resources.callback(client.socket.close)
        return client

    @staticmethod
    def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
        """Wait until a condition about another thread holds, or fail."""
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            pause.wait(0.01)

    def stream(self, name: str = "stream", shards: int = 1) -> str:
        """Create a stream and return its ARN."""
        self.client.create_stream(StreamName=name, ShardCount=shards)
        return str(self.client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"])

    def put(self, *keys: str, stream: str = "stream", data: bytes | None = None) -> list[dict[str, Any]]:
        """Put a record for each key, with the key as its data unless told; returns the results."""
        records = [{"Data": key.encode() if data is None else data, "PartitionKey": key} for key in keys]
        found: list[dict[str, Any]] = self.client.put_records(StreamName=stream, Records=records)["Records"]
        return found

    def iterator(
        self, shard: str = FIRST, kind: str = "TRIM_HORIZON", *, stream: str = "stream", **position: Any
    ) -> str:
        answer = self.client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType=kind, **position)
        return str(answer["ShardIterator"])

    def read(self, shard: str = FIRST, kind: str = "TRIM_HORIZON", **position: Any) -> dict[str, Any]:
        """Get the records from a position on, in one call."""
        found: dict[str, Any] = self.client.get_records(ShardIterator=self.iterator(shard, kind, **position))
        return found

    def shards(self, stream: str = "stream", **options: Any) -> list[str]:
        return [shard["ShardId"] for shard in self.client.list_shards(StreamName=stream, **options)["Shards"]]

    def register(self, name: str | None = None, stream: str = "stream") -> str:
        """Register a consumer and return its ARN."""
        arn = self.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
        answer = self.client.register_stream_consumer(StreamARN=arn, ConsumerName=name or next(self._names))
        return str(answer["Consumer"]["ConsumerARN"])

    def subscribe(
        self, shard: str = FIRST, kind: str = "TRIM_HORIZON", *, consumer: str | None = None, **position: Any
    ) -> Subscriber:
        """Subscribe to a shard, with a consumer of its own unless one is given."""
        return Subscriber(
            self.client,
            {
                "ConsumerARN": consumer or self.register(),
                "ShardId": shard,
                "StartingPosition": {"Type": kind, **position},
            },
        )

    def refused(self, call: Callable[[], Any]) -> tuple[str, str]:
        """The code and the message of the error that a call is answered with."""
        with pytest.raises(self.client.exceptions.ClientError) as caught:
            call()
        error = caught.value.response["Error"]
        return error["Code"], error["Message"]


@pytest.fixture
def world() -> Iterator[World]:
    with contextlib.ExitStack() as resources:
        yield World(resources)
