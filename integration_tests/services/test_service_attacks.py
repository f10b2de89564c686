"""Input that our clients never send: too much, half a message, or garbage. The services reject it and keep running."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from integration_tests.security_tools import (
    DEADLINE,
    PREFACE,
    TOKEN,
    Service,
    ask,
    call_any,
    connect,
    frame,
    headers_frame,
    path_of,
    raw_channel,
    running,
    settings_frame,
)
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc import ClientSecurity, ServerSettings, open_channel

MIB = 1024 * 1024
LARGEST_BYTES = ServerSettings.max_message_bytes
# A service takes some 100 MiB, and one message of the largest size may be in memory a few times over.
GROWTH_BYTES = 300 * MIB
# What clients may fill before it is known who they are.
STRANGERS_BYTES = 32 * MIB
# Of some thousand calls that wait until it is known who makes them: their windows, and what gRPC needs for each.
WAITING_BYTES = 300 * MIB
# What a service may say of a message that it can read; the rest would be a mistake of its own.
TOLD = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.PERMISSION_DENIED,
    # It waits for what was asked for.
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
INSIDE = ("Traceback", 'File "', "site-packages", ".py", "/src/", "object at 0x", "<class")


@pytest.fixture(scope="module")
def kinesis() -> Iterator[RunningEmulator]:
    with running_emulator() as emulator:
        yield emulator


@pytest.fixture(scope="module")
def service(kinesis: RunningEmulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service that takes the largest messages. All have one server; `prove fuzz` calls each contract."""
    folder = tmp_path_factory.mktemp("service")
    settings = {"ENDPOINT_URL": kinesis.endpoint_url, "AUDIT_LOG": str(folder / "audit.jsonl")}
    with running("sink-gateway", folder, TOKEN=TOKEN, **settings) as service:
        yield service


@pytest.fixture(autouse=True)
def it_goes_on(service: Service) -> Iterator[None]:
    """After each of these tests: the service answers, and has not grown without bound."""
    with raw_channel(service.address) as channel:
        assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
    before = service.resident_bytes()
    yield
    assert service.process.process.poll() is None
    with raw_channel(service.address) as channel:
        assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
    assert service.resident_bytes() - before < GROWTH_BYTES


def test_a_message_that_is_too_large_is_refused_on_either_side(service: Service) -> None:
    """Our client does not send it, and the service rejects it from other clients, for every method."""
    large = b"\0" * (LARGEST_BYTES + 1)
    with open_channel(service.address, ClientSecurity(token=TOKEN), max_message_bytes=1_000) as ours:
        code, details = ask(ours, service.quick(), large[:1_001], token=None)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1001 vs. 1000" in details
    with raw_channel(service.address) as channel:
        for method in service.methods:
            code, details = call_any(channel, method, [large])
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, method.full_name
            assert f"vs. {LARGEST_BYTES}" in details


@pytest.mark.parametrize("method", ["quick", "health"])
def test_messages_of_strangers_do_not_fill_the_memory(service: Service, method: str) -> None:
    """Six calls of the largest size at once, without a token: they are refused or answered unread."""
    path, expected = service.quick(), grpc.StatusCode.UNAUTHENTICATED
    if method == "health":
        path, expected = "/grpc.health.v1.Health/Check", grpc.StatusCode.OK
    large = b"\0" * (LARGEST_BYTES - 100)
    before = service.resident_bytes()
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        channels = [stack.enter_context(raw_channel(service.address)) for _ in range(6)]
        answers = [pool.submit(ask, channel, path, large, token=None) for channel in channels]
        most = before
        while not all(answer.done() for answer in answers):
            most = max(most, service.resident_bytes())
            time.sleep(0.005)  # growing memory sends no event to wait for
        assert {answer.result()[0] for answer in answers} == {expected}
    assert most - before < STRANGERS_BYTES


def test_calls_of_strangers_that_wait_do_not_fill_the_memory(service: Service) -> None:
    """Thousands of them at once, each with the beginning of a large message that goes no further: HTTP/2 by hand."""
    before = most = service.resident_bytes()
    begun = struct.pack(">xI", LARGEST_BYTES - 100) + b"x" * 60_000
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(service)) for _ in range(40)]
        for connection in crowd:
            # What is beyond the window is not read, and so not sent.
            connection.settimeout(0.2)
            with suppress(TimeoutError, ConnectionError):
                connection.sendall(PREFACE + settings_frame())
                for number in range(1, 400, 2):
                    parts = [begun[at : at + 16_000] for at in range(0, len(begun), 16_000)]
                    call = headers_frame(number, service.quick(), token=None)
                    connection.sendall(call + b"".join(frame(0, 0, number, part) for part in parts))
            most = max(most, service.resident_bytes())
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            most = max(most, service.resident_bytes())
            time.sleep(0.01)  # as above
    # gRPC cancels some of too many waiting calls, also calls of other clients, until the crowd has gone.
    deadline = time.monotonic() + DEADLINE
    with raw_channel(service.address) as friend:
        while ask(friend, service.quick())[0] is not grpc.StatusCode.OK:
            assert time.monotonic() < deadline
    assert most - before < WAITING_BYTES


def test_a_message_that_is_small_only_while_it_is_compressed_is_refused(service: Service) -> None:
    """Zeros take a thousandth on the wire: it is the size in memory that counts."""
    before = service.resident_bytes()
    with raw_channel(service.address) as channel:
        bomb = b"\0" * (LARGEST_BYTES + MIB)
        code, _ = ask(channel, service.quick(), bomb, compression=grpc.Compression.Gzip)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert service.resident_bytes() - before < GROWTH_BYTES


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        PREFACE[:10],
        PREFACE + settings_frame()[:5],
        PREFACE + settings_frame() + frame(9, 4, 1, b"\xff" * 50),
        PREFACE + settings_frame() + frame(0, 0, 1, b"data of no call"),
        PREFACE + settings_frame() + frame(7, 0, 0, b"\0"),
        PREFACE + settings_frame() + b"\xff" * 100,
    ],
    ids=["nothing", "http1", "tls", "preface", "settings", "continuation", "stray", "goaway", "length"],
)
def test_a_connection_that_speaks_nonsense_ends_alone(service: Service, sent: bytes) -> None:
    """Whatever comes before a call, cut short or malformed, is that connection's own trouble."""
    with raw_channel(service.address) as friend, connect(service) as stranger:
        stranger.sendall(sent)
        assert ask(friend, service.quick())[0] is grpc.StatusCode.OK
        stranger.shutdown(socket.SHUT_WR)
        # Reads to the end: the service closes it, or resets it.
        try:
            while stranger.recv(65536):
                pass
        except ConnectionResetError:
            pass
        assert ask(friend, service.quick())[0] is grpc.StatusCode.OK


@pytest.mark.parametrize(
    "body",
    [b"\0\0\0\1\0half", b"\0\0\0", b"\0\xff\xff\xff\xff" + b"x" * 1000, b"\2\0\0\0\1x", b"\1\0\0\0\4junk"],
    ids=["message", "prefix", "4 GiB", "flag", "compressed"],
)
def test_an_incomplete_message_leaves_nothing_behind(service: Service, body: bytes) -> None:
    """A call with an endless message, or an invalid frame, leaves nothing behind, for every method."""
    for method in service.methods:
        with connect(service) as stranger:
            stranger.sendall(PREFACE + settings_frame() + headers_frame(1, path_of(method)) + frame(0, 0, 1, body))
            # Until its settings came: then it has read what was sent.
            assert stranger.recv(65536)


def test_garbage_is_refused_by_every_method(service: Service) -> None:
    """Bytes that are not a message of the contract: INVALID_ARGUMENT, and nothing from inside the service."""
    with raw_channel(service.address) as channel:
        for method in service.methods:
            for garbage in (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0b", b"\x0a\x02\xc3\x28"):
                first = method.input_type.fields_by_number.get(1)
                if garbage.startswith(b"\x0a\x02") and (first is None or first.type != FieldDescriptor.TYPE_STRING):
                    continue  # no text that these bytes could be wrong in
                code, details = call_any(channel, method, [garbage], timeout=DEADLINE)
                assert code is grpc.StatusCode.INVALID_ARGUMENT, (method.full_name, garbage, code, details)
                assert not any(word in details for word in INSIDE), details


def test_no_text_of_a_client_begins_a_line_of_a_log(service: Service) -> None:
    """Every text of every message of every method, and what comes beside it: no line of the log or the audit log."""
    forged = "\r\n2026-01-01 00:00:00 ERROR forged\x1b[2J\x1b]0;forged\x07\x9b31m\u2028forged"
    before = len(service.errors.read_bytes())
    with raw_channel(service.address) as channel:
        for method in service.methods:
            message = _everywhere(method.input_type, forged)
            code, details = call_any(channel, method, [message.SerializeToString()], timeout=2)
            assert code in TOLD, (method.full_name, code, details)
            assert not any(word in details for word in INSIDE), details
        call_any(channel, service.methods[0], [b""], token="forged\x7f-but-long-enough")
        ask(channel, "/forged\x1b[2J/forged", b"")
    for file in (service.errors, service.errors.with_name("audit.jsonl")):
        written = file.read_bytes()[before if file is service.errors else 0 :]
        for line in written.split(b"\n"):
            assert not re.match(rb"(2026-01-01 00:00:00|forged)", line), line
            assert b"\x1b" not in line
            assert b"\r" not in line
        if file is not service.errors:
            assert [json.loads(line) for line in written.splitlines()], "nothing was refused or changed"


def _everywhere(kind: Descriptor | None, text: str, depth: int = 0) -> Message:
    """A message with the text wherever there is room for one."""
    assert kind is not None
    message = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            if depth < 3 and not field.message_type.GetOptions().map_entry:
                part = _everywhere(field.message_type, text, depth + 1)
                (value.append if field.is_repeated else value.CopyFrom)(part)
        elif field.type == FieldDescriptor.TYPE_STRING:
            value.append(text) if field.is_repeated else setattr(message, field.name, text)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM and not field.is_repeated:
            setattr(message, field.name, 1)
    return message


def test_the_log_has_no_unexpected_error(service: Service) -> None:
    """After all tests above, the log has no unexpected error and no token."""
    with raw_channel(service.address) as channel:
        assert ask(channel, service.quick(), timeout=DEADLINE)[0] is grpc.StatusCode.OK
    log = service.errors.read_text()
    assert TOKEN not in log
    # gRPC itself logs responses whose client has gone, because the deadlines above are short.
    assert " ERROR penstock" not in log, log[log.find(" ERROR penstock") :][:5000]
