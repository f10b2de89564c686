"""Crowds in front of the console: many connections, many requests, and more than are allowed."""

import http.client
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration_tests.console_tools import (
    DEADLINE,
    HEAD,
    MOST_GROWTH_BYTES,
    Service,
    answers,
    ask,
    connect,
    rest_of,
    running,
    running_with_token,
)

CONNECTIONS = 1_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_with_token(tmp_path_factory.mktemp("console")) as service:
        yield service


def test_a_thousand_connections_leave_room_for_one_more(service: Service) -> None:
    """Each has asked for a page and begun the next request; one more browser is answered, and memory is bounded."""
    before = service.resident_bytes()
    asked = HEAD + b"\r\n" + HEAD
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(service)) for _ in range(CONNECTIONS)]
        for connection in crowd:
            connection.sendall(asked)
        for connection in crowd:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        assert answers(service)
        assert time.monotonic() - begun < DEADLINE / 2
        assert service.resident_bytes() - before < MOST_GROWTH_BYTES
    assert answers(service)


def test_requests_without_end_hold_nobody_up(service: Service) -> None:
    """One browser sends a hundred thousand of them and reads no answer; others are answered, and memory is bounded."""
    before = service.resident_bytes()
    with connect(service) as flood:
        flood.settimeout(0.5)
        try:
            for _ in range(100):
                flood.sendall((HEAD + b"\r\n") * 1_000)
        except (TimeoutError, ConnectionError):
            pass
        assert answers(service)
        assert service.resident_bytes() - before < MOST_GROWTH_BYTES / 2


def test_more_connections_than_allowed_are_turned_away(tmp_path: Path) -> None:
    """Those who are in stay in; those who come too late are closed, and get in when there is room."""
    with running(tmp_path, MAX_CONNECTIONS="5") as service, ExitStack() as stack:
        crowd = [stack.enter_context(connect(service)) for _ in range(8)]
        assert [rest_of(one, 2) for one in crowd[5:]] == [b""] * 3
        for one in crowd[:5]:
            one.sendall(HEAD + b"\r\n")
            assert one.recv(65536).startswith(b"HTTP/1.1 200")
        for one in crowd:
            one.close()
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                assert ask(service, "/healthz")[0] == 200
                break
            except (ConnectionError, http.client.BadStatusLine):
                assert time.monotonic() < deadline
        assert service.process.terminate() == 0
        assert service.errors.read_text().count("more are turned away") == 1
