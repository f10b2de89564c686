"""Callers with a token who would fill a service's memory: with messages that do not end, or answers they do not read.

Each open call may hold a message of the largest size, so it is the number of a caller's calls that bounds them.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.events
import pytest

from integration_tests.security_tools import (
    DEADLINE,
    TOKEN,
    Service,
    ask,
    connect,
    path_of,
    raw_channel,
    running,
)
from penstock.emulator.testing import running_emulator
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as reader_pb
from penstock.rpc import ServerSettings

MIB = 1024 * 1024
AT_ONCE = 3
MIB_OF_RECORDS = 6
CALLS = 60
LARGEST = {"sink-gateway": ServerSettings.max_message_bytes}
SMALL = 16 * MIB
# What else a service takes for connections and calls.
OTHERWISE_BYTES = 48 * MIB
KINDS = ("services", "streams", "consumers", "destinations", "jobs", "stores")


class Caller:
    """A connection with calls, which keeps to HTTP/2's windows, by hand.

    Args:
        service: to call.
        path: of the method.
        message: the beginning of each call's message, with its length.
        more_bytes: that follow.
        reads: whether it lets answers come, beyond the first 64 kB of all of them.
    """

    def __init__(self, service: Service, path: str, message: bytes, more_bytes: int, *, reads: bool = True) -> None:
        self._socket: socket.socket = connect(service)
        self._socket.setblocking(False)
        config = h2.config.H2Configuration(header_encoding="utf-8", validate_outbound_headers=False)
        self._http = h2.connection.H2Connection(config)
        self._http.initiate_connection()
        self._reads = reads
        self._left: dict[int, tuple[bytes, int]] = {}
        self._ended: set[int] = set()
        self._unsent = b""
        self.statuses: list[str] = []
        for _ in range(CALLS):
            number = self._http.get_next_available_stream_id()
            headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "127.0.0.1"}
            headers |= {"content-type": "application/grpc", "te": "trailers", "authorization": f"Bearer {TOKEN}"}
            self._http.send_headers(number, list(headers.items()))
            self._left[number] = (message, more_bytes)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left that the service would take."""
        return not self._left and not self._unsent

    def step(self) -> bool:
        """Send and take what goes; whether something did."""
        moved = False
        with suppress(BlockingIOError):
            came = self._socket.recv(1 << 16)
            moved = True
            for event in self._http.receive_data(came):
                self._take(event)
            self._unsent += self._http.data_to_send()
        if not self._unsent:
            for number, (message, more) in list(self._left.items()):
                room = min(self._http.local_flow_control_window(number), 16_384)
                part = (message + b"x" * max(0, room - len(message)))[: min(room, len(message) + more)]
                if part:
                    self._http.send_data(number, part)
                    left = message[len(part) :], more - max(0, len(part) - len(message))
                    self._left[number] = left
                    if left == (b"", 0):
                        del self._left[number]
            self._unsent = self._http.data_to_send()
        with suppress(BlockingIOError):
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
                moved = True
        return moved

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived) and self._reads:
            self._http.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
        if isinstance(event, h2.events.StreamReset | h2.events.StreamEnded):
            self._left.pop(event.stream_id or 0, None)
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self.statuses += [str(value) for name, value in event.headers or [] if str(name) == "grpc-status"]

    def close(self) -> None:
        self._socket.close()


def attack(service: Service, callers: list[Caller], refused_calls: int = 2 * CALLS - AT_ONCE) -> int:
    """Let them do what they can; how many bytes the service grows by. So many calls are refused, the others stay."""
    before = most = service.resident_bytes()
    deadline = time.monotonic() + 2 * DEADLINE
    refused, moved_at = list[str](), time.monotonic()
    while len(refused) < refused_calls or time.monotonic() < moved_at + 2:
        assert time.monotonic() < deadline, (len(refused), [one.is_done for one in callers])
        if sum(one.step() for one in callers):
            moved_at = time.monotonic()
        most = max(most, service.resident_bytes())
        refused = [status for one in callers for status in one.statuses]
    assert refused == [str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])] * refused_calls
    return most - before


def is_ours_again(service: Service) -> None:
    """Once the callers have gone: the token is good for calls again."""
    deadline = time.monotonic() + DEADLINE
    with raw_channel(service.address) as channel:
        while (answer := ask(channel, service.quick()))[0] is not grpc.StatusCode.OK:
            assert answer[0] is grpc.StatusCode.RESOURCE_EXHAUSTED, answer
            assert time.monotonic() < deadline


def principals(folder: Path) -> Path:
    """Write a file in which the token may do everything, with this many concurrent calls."""
    file = folder / "principals.toml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    rights = "".join(f'{kind} = ["*"]\n' for kind in KINDS)
    own = f'name = "all"\ntoken_sha256 = "{digest}"\nadmin = true\ncalls_at_once = {AT_ONCE}\n'
    file.write_text(f"[[principal]]\n{own}{rights}")
    return file


@pytest.mark.parametrize(("name", "by"), [("sink-gateway", "flag"), ("shard-reader", "principals")])
def test_messages_that_do_not_end_fill_no_more_than_a_callers_calls_may(name: str, by: str, tmp_path: Path) -> None:
    """All but the last byte of the largest message, in each of many calls: the others are refused unread."""
    own = {"TOKEN": TOKEN, "CALLS_AT_ONCE": str(AT_ONCE)} if by == "flag" else {"PRINCIPALS": str(principals(tmp_path))}
    with running(name, tmp_path, **own) as service, ExitStack() as stack:
        is_ours_again(service)
        largest = LARGEST.get(name, SMALL) - 100
        # A stream, where there is one that takes messages.
        path = path_of(max(service.methods, key=lambda method: method.client_streaming))
        callers = [Caller(service, path, struct.pack(">xI", largest), largest - 1) for _ in range(2)]
        for one in callers:
            stack.callback(one.close)
        grown = attack(service, callers)
        assert grown < AT_ONCE * largest + OTHERWISE_BYTES
        # It has them in memory: otherwise this would show nothing.
        assert grown > AT_ONCE * largest // 2
        for one in callers:
            one.close()
        is_ours_again(service)


def ask_and_read_nothing(
    service: Service, path: str, request: bytes, stack: ExitStack, refused_calls: int = 2 * CALLS - AT_ONCE
) -> int:
    """Many calls of two callers; how many bytes the service has grown by at most."""
    message = struct.pack(">xI", len(request)) + request
    callers = [Caller(service, path, message, 0, reads=False) for _ in range(2)]
    for one in callers:
        stack.callback(one.close)
    grown = attack(service, callers, refused_calls)
    for one in callers:
        one.close()
    is_ours_again(service)
    return grown


def test_unread_records_are_held_once(tmp_path: Path) -> None:
    """If many calls request the same range, the reader holds it once, also without a limit."""
    with ExitStack() as stack:
        kinesis = stack.enter_context(running_emulator(tls=False, enforce_limits=False))
        client = kinesis.client()
        client.create_stream(StreamName="orders", ShardCount=1)
        for _ in range(MIB_OF_RECORDS):
            put = client.put_record(StreamName="orders", PartitionKey="k", Data=b"x" * (MIB - 1_000))
        settings = {"TOKEN": TOKEN, "ENDPOINT_URL": kinesis.endpoint_url}
        service = stack.enter_context(running("shard-reader", tmp_path, **settings))
        methods = {method.name: path_of(method) for method in service.methods}
        shard = "shardId-000000000000"
        start = reader_pb.ShardPosition(type=reader_pb.POSITION_TYPE_TRIM_HORIZON)
        opened = reader_pb.OpenRequest(
            session_id="one",
            positions=[reader_pb.StreamPositions(stream_name="orders", shards={shard: start})],
            record_publisher=reader_pb.RECORD_PUBLISHER_TYPE_POLLING,
        )
        with raw_channel(service.address) as channel:
            assert ask(channel, methods["Open"], opened.SerializeToString()) == (grpc.StatusCode.OK, "")
        is_ours_again(service)
        upto = reader_pb.ShardPosition(
            type=reader_pb.POSITION_TYPE_AFTER_SEQUENCE_NUMBER, sequence_number=put["SequenceNumber"]
        )
        ranges = [reader_pb.ShardRange(stream_name="orders", shard_id=shard, after=start, upto=upto)]
        asked = reader_pb.ReadRangeRequest(session_id="one", ranges=ranges, max_batch_bytes=8 * MIB).SerializeToString()
        grown = ask_and_read_nothing(service, methods["ReadRange"], asked, stack, refused_calls=0)
        assert grown < CALLS * MIB_OF_RECORDS * MIB
