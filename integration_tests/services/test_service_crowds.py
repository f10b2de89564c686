"""With many or slow clients, the services keep serving the others, and their memory is bounded."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from integration_tests.security_tools import (
    DEADLINE,
    PREFACE,
    TOKEN,
    Pki,
    Service,
    ask,
    connect,
    frame,
    headers_frame,
    path_of,
    raw_channel,
    running,
    settings_frame,
)
from penstock.emulator.testing import running_emulator

MIB = 1024 * 1024
GROWTH_BYTES = 200 * MIB
CONNECTIONS = 1_000


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """Two of them: all have one server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        kinesis = stack.enter_context(running_emulator())
        settings = {"TOKEN": TOKEN, "ENDPOINT_URL": kinesis.endpoint_url}
        yield [
            stack.enter_context(running(name, tmp_path_factory.mktemp(name), **settings))
            for name in ("shard-reader", "sink-gateway")
        ]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def service(services: list[Service]) -> Service:
    return services[0]


def answers(service: Service) -> bool:
    with raw_channel(service.address) as channel:
        return ask(channel, service.quick())[0] is grpc.StatusCode.OK


def has_ended(connection: socket.socket, deadline: float) -> bool:
    """Read what comes, until the other side ends the connection."""
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if not connection.recv(65536):
                return True
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
    return False


def test_a_thousand_connections_leave_room_for_one_more(service: Service) -> None:
    """Each has begun a call that does not end; one more client is answered, and memory is bounded."""
    before = service.resident_bytes()
    waiting = next(path_of(one) for one in service.methods if one.client_streaming or one.server_streaming)
    opening = PREFACE + settings_frame() + headers_frame(1, waiting)
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(service)) for _ in range(CONNECTIONS)]
        for connection in crowd:
            connection.sendall(opening)
        for connection in crowd:
            assert connection.recv(65536)
        assert answers(service)
        assert service.resident_bytes() - before < GROWTH_BYTES
    assert answers(service)


def test_a_client_that_does_not_read_delays_no_other_client(service: Service) -> None:
    """Its responses wait in the client and the service, up to HTTP/2's window. Other clients are served."""
    before = service.resident_bytes()
    with connect(service) as slow:
        slow.sendall(PREFACE + settings_frame())
        path = service.quick()
        number = 1
        # No more than a service lets one connection have at a time; their answers are never read.
        for _ in range(20):
            burst = b"".join(
                headers_frame(number + 2 * at, path) + frame(0, 1, number + 2 * at, b"\0\0\0\0\0") for at in range(40)
            )
            number += 80
            slow.settimeout(0.2)
            try:
                slow.sendall(burst)
            except TimeoutError:
                break
            assert answers(service)
        assert service.resident_bytes() - before < GROWTH_BYTES


def test_more_connections_than_allowed_are_turned_away(tmp_path: Path) -> None:
    """Those who are in stay in; those who come too late are closed, and get in when there is room."""
    with running("stage-scheduler", tmp_path, MAX_CONNECTIONS="5") as service, ExitStack() as stack:
        friend = stack.enter_context(raw_channel(service.address))
        assert ask(friend, service.quick(), token=None)[0] is grpc.StatusCode.OK
        crowd = [stack.enter_context(connect(service)) for _ in range(8)]
        for connection in crowd:
            connection.sendall(PREFACE + settings_frame())
        ended = [has_ended(connection, time.monotonic() + 2) for connection in crowd[-4:]]
        assert all(ended)
        assert ask(friend, service.quick(), token=None)[0] is grpc.StatusCode.OK
        for connection in crowd:
            connection.close()
        deadline = time.monotonic() + DEADLINE
        with raw_channel(service.address) as late:
            while ask(late, service.quick(), token=None)[0] is not grpc.StatusCode.OK:
                assert time.monotonic() < deadline


def test_slow_clients_are_ended(services: list[Service], tmp_path: Path) -> None:
    """One says nothing, also where TLS is wanted; one ends no message, one sends a byte now and then: all unanswered.

    They are closed by the deadline of the handshake, or because they answer no ping.
    """
    deadline = time.monotonic() + DEADLINE
    with ExitStack() as stack:
        ended = threading.Event()
        silent, half, dripping = [], [], []
        tls = stack.enter_context(running("stage-scheduler", tmp_path, **Pki(tmp_path).server_settings()))
        silent.append(stack.enter_context(connect(tls)))
        for service in services:
            silent.append(stack.enter_context(connect(service)))
            path = service.quick()
            begun = PREFACE + settings_frame() + headers_frame(1, path) + frame(0, 0, 1, b"\0\0\1\0\0half")
            half.append(stack.enter_context(connect(service)))
            half[-1].sendall(begun)
            dripping.append(stack.enter_context(connect(service)))
            dripping[-1].sendall(begun)

        def drip() -> None:
            while not ended.wait(1):
                for connection in dripping:
                    try:
                        connection.sendall(frame(0, 0, 1, b"x"))
                    except OSError:
                        continue

        dripper = threading.Thread(target=drip)
        dripper.start()
        try:
            assert all(has_ended(connection, deadline) for connection in (*silent, *half))
            # A slow call is alive, and may take as long as it needs.
            assert all(answers(service) for service in services)
        finally:
            ended.set()
            dripper.join()
    assert all(answers(service) for service in services)
