"""What no browser would send to the console: nonsense, too much, or too slowly."""

import gzip
import http.client
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from integration_tests.console_tools import (
    DEADLINE,
    HEAD,
    MIB,
    MOST_GROWTH_BYTES,
    TOKEN,
    Service,
    answers,
    ask,
    connect,
    rest_of,
    running_with_token,
)
from integration_tests.security_tools import running

# What browsers may fill by bodies that nobody wants, whoever they are.
BODIES_BYTES = 32 * MIB


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("console")
    # Forms of actions are read where there is a service for them.
    with (
        running("stage-scheduler", folder) as stages,
        running_with_token(folder, STAGES_ENDPOINT=f"127.0.0.1:{stages.port}") as service,
    ):
        yield service


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n\r\n",
        b"GET",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\xff" * 2_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        HEAD + f"Authorization: Bearer {TOKEN}\0\r\n\r\n".encode(),
        HEAD + f"Authorization Bearer {TOKEN}\r\n\r\n".encode(),
        f"GET /?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1\r\n Authorization: Bearer {TOKEN}\r\n\r\n".encode(),
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        HEAD + b"Host: 127.0.0.1\r\n\r\n",
        b"GET /consumers HTTP/1.1\r\nHost: 127.0.0.1@evil.example\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Length: 50\r\n\r\ntoken=",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + b"\x81\x05hello",
    ],
    ids=[
        "nothing",
        "empty lines",
        "cut method",
        "cut head",
        "version",
        "garbage",
        "tls",
        "http2",
        "null in the token",
        "no colon",
        "folded header",
        "proxy",
        "two hosts",
        "credentials in the host",
        "connect",
        "two lengths",
        "chunk",
        "negative length",
        "cut form",
        "websocket",
    ],
)
def test_a_connection_that_speaks_nonsense_ends_alone(service: Service, sent: bytes) -> None:
    """Cut short or malformed, it gets an error or an end, and no word of what it sent or of the inside."""
    friend = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE)
    friend.request("GET", "/healthz")
    assert friend.getresponse().read() == b"ok\n"
    with connect(service) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        said = rest_of(stranger)
    assert said is not None
    if said:
        assert re.match(rb"HTTP/1\.[01] (30[23]|4\d\d|501) ", said), said[:200]
        assert TOKEN.encode() not in said
        assert b"aiohttp" not in said
        assert b"Traceback" not in said
        assert b"default-src 'none'" in said
    friend.request("GET", "/healthz")
    assert friend.getresponse().read() == b"ok\n"
    friend.close()
    assert answers(service)


def test_what_is_too_large_is_refused(service: Service) -> None:
    """Lines, headers, forms, forms that are small only while they are compressed: refused, and not kept in memory."""
    before = service.resident_bytes()
    own: dict[str, Any] = {"Sec_Fetch_Site": "same-origin", "Content_Type": "application/x-www-form-urlencoded"}
    zeros = gzip.compress(b"token=" + b"0" * (64 * MIB))
    for body, more in ((b"token=" + b"x" * 100_000, {}), (zeros, {"Content_Encoding": "gzip"})):
        for path, token in (("/login", {}), ("/actions/resume", {"Authorization": f"Bearer {TOKEN}"})):
            status, _, _ = ask(service, path, method="POST", body=body, **{**own, **more, **token})
            assert status == 413
    large = b"x" * MIB
    for sent in (
        b"GET /" + large + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        HEAD + b"X-Large: " + large + b"\r\n\r\n",
        HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(50_000)) + b"\r\n",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Length: 9999999999\r\n\r\n"
        + large * 8,
    ):
        with connect(service) as stranger:
            try:
                stranger.sendall(sent)
            except (ConnectionResetError, BrokenPipeError):
                continue
            said = rest_of(stranger)
            assert said is not None
            assert not said or re.match(rb"HTTP/1\.[01] 4\d\d ", said), said[:200]
    assert answers(service)
    assert service.resident_bytes() - before < MOST_GROWTH_BYTES / 2


@pytest.mark.parametrize("path", ["/healthz", "/login", "/actions/release", "/nothing"])
@pytest.mark.parametrize("token", [None, "a-guess-of-this-test", TOKEN], ids=["no token", "wrong token", "token"])
def test_large_bodies_do_not_fill_the_memory(service: Service, path: str, token: str | None) -> None:
    """Six of 64 MiB at once: refused unread, or read and dropped; the others are answered meanwhile."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Length: {64 * MIB}\r\n"
    head += "" if token is None else f"Authorization: Bearer {token}\r\n"
    part, before, most = b"x" * MIB, service.resident_bytes(), 0
    with ExitStack() as stack:
        strangers = [stack.enter_context(connect(service)) for _ in range(6)]
        for stranger in strangers:
            stranger.sendall(head.encode() + b"\r\n")
            stranger.settimeout(0.05)
        for _ in range(16):
            for stranger in list(strangers):
                try:
                    stranger.sendall(part)
                except TimeoutError:
                    continue  # nobody reads it
                except ConnectionError:
                    strangers.remove(stranger)
            most = max(most, service.resident_bytes())
        assert answers(service)
    assert most - before < BODIES_BYTES


def test_no_text_of_a_browser_begins_a_line_of_the_log(service: Service) -> None:
    """Whatever a path, a query, a header or a form may hold, with and without a token."""
    forged = "%0d%0a2026-01-01 ERROR forged%1b[2J%9b31m%e2%80%a8forged".replace(" ", "%20")
    own: dict[str, Any] = {"Sec_Fetch_Site": "same-origin", "Content_Type": "application/x-www-form-urlencoded"}
    raw = b"\x1b[2J\x9bforged".decode("latin-1")
    with service.errors.open("rb") as log:
        log.seek(0, 2)
        for token in (None, TOKEN):
            headers: dict[str, Any] = {} if token is None else {"Authorization": f"Bearer {token}"}
            for path in (f"/stream?name={forged}", f"/job?id={forged}", f"/{forged}", f"/static/{forged}"):
                assert ask(service, path, X_Forwarded_For=raw, User_Agent=raw, **headers)[0] < 500
            for path in ("/login", "/actions/release", "/actions/resume"):
                form = f"token={forged}&stream={forged}&consumer={forged}&job={forged}&stage={forged}".encode()
                assert ask(service, path, method="POST", body=form, **own, **headers)[0] < 500
        for line in log.read().splitlines():
            assert not line.startswith((b"2026-01-01 ERROR", b"forged")), line
            assert b"\x1b" not in line


def test_slow_browsers_are_ended(service: Service) -> None:
    """Some say nothing, or half of a head or a form, or a byte of it now and then, with a token or without one."""
    rest = b"Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Length: 5000\r\n"
    rest += b"Content-Type: application/x-www-form-urlencoded\r\n"
    form = b"POST /login HTTP/1.1\r\n" + rest + b"\r\ntoken="
    token = f"Authorization: Bearer {TOKEN}\r\n".encode()
    action = b"POST /actions/resume HTTP/1.1\r\n" + rest + token + b"\r\nstream="
    kinds = {"silent": b"", "half": HEAD, "dripping": HEAD, "half form": form, "dripping form": form}
    kinds |= {"half, token": HEAD + token, "dripping, token": HEAD + token}
    kinds |= {"half form, token": action, "dripping form, token": action}
    deadline = time.monotonic() + 45
    with ExitStack() as stack:
        slow = {name: stack.enter_context(connect(service)) for name in kinds}
        for name, begin in kinds.items():
            slow[name].sendall(begin)
            slow[name].setblocking(False)
        said = dict.fromkeys(kinds, b"")
        while slow:
            assert time.monotonic() < deadline, list(slow)
            assert answers(service)
            time.sleep(0.5)  # between two drips
            for name, connection in list(slow.items()):
                try:
                    if name.startswith("dripping"):
                        connection.sendall(b"x" if "form" in name else b"X-More: x\r\n")
                    part = connection.recv(65536)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    part = b""
                said[name] += part
                if not part:
                    del slow[name]
    ended = {name for name, text in said.items() if text.startswith(b"HTTP/1.1 408")}
    assert ended >= {"half form", "half form, token"}
    assert answers(service)
