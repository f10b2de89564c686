"""The console admits only callers with a valid token and certificate."""

import http.client
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from integration_tests.console_tools import EXPIRED, HEAD, answers, ask, check_log, context_of, rest_of, running
from integration_tests.security_tools import TOKEN, Pki, Service, connect

YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).isoformat()
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()
PATHS = (
    "/",
    "/consumers",
    "/readers",
    "/streams",
    "/stream?name=flights",
    "/sinks",
    "/jobs",
    "/job?id=report",
    "/job/picture.svg?id=report",
    "/nothing",
    "/static/console.js",
    "/static/..%2f_serve.py",
    "//",
    "/healthz/..",
)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def locked(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The console with mutual TLS and tokens, one of which has expired."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "tokens").write_text(f"# of these tests\n{TOKEN} {TOMORROW}\n{EXPIRED} {YESTERDAY}\n")
    with running(folder, TOKEN_FILE=str(folder / "tokens"), **pki.server_settings()) as service:
        yield service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The console with a token, in plain text."""
    with running(tmp_path_factory.mktemp("console"), TOKEN=TOKEN) as service:
        yield service


@pytest.mark.parametrize(
    "token", [None, "guessed", TOKEN[:-1], TOKEN + "x", EXPIRED], ids=["none", "wrong", "cut", "longer", "expired"]
)
def test_no_route_is_open_without_a_valid_token(locked: Service, pki: Pki, token: str | None) -> None:
    """Every page, file and unknown path refuses, whatever the method."""
    context = context_of(pki, "client")
    assert ask(locked, "/", context=context, Authorization=f"Bearer {TOKEN}")[0] == 200
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    for path in PATHS:
        status, text, _ = ask(locked, path, context=context, **headers)
        assert status == 401, path
        assert not any(secret in text for secret in (TOKEN, EXPIRED, "flights", "report"))
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert ask(locked, "/", method=method, context=context, **headers)[0] == 401, method
    for scheme in ("Basic", "Digest", "bearer\t", "Token"):
        assert ask(locked, "/", context=context, Authorization=f"{scheme} {TOKEN}")[0] == 401


def test_nothing_can_be_changed(service: Service) -> None:
    """With the token, too, no method but GET and HEAD has a route."""
    for path in ("/", "/consumers", "/streams", "/sinks", "/jobs", "/job?id=report"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ask(service, path, method=method, Authorization=f"Bearer {TOKEN}")[0] == 405, (method, path)


@pytest.mark.parametrize("own", ["stranger", None])
def test_only_browsers_of_the_authority_get_in(locked: Service, pki: Pki, own: str | None) -> None:
    """A missing certificate, or one of another authority, ends the connection, whatever the token, also for health."""
    for path in ("/", "/healthz"):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            ask(locked, path, context=context_of(pki, own), Authorization=f"Bearer {TOKEN}")


def test_plain_text_does_not_get_in(locked: Service, pki: Pki) -> None:
    """No HTTP response is sent, and the console keeps running."""
    with connect(locked) as stranger:
        stranger.sendall(HEAD + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        said = rest_of(stranger)
        assert said is not None
        assert b"HTTP/1." not in said
    context = context_of(pki, "client")
    assert ask(locked, "/", context=context, Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        HEAD + f"Authorization: Bearer {TOKEN}\0\r\n\r\n".encode(),
        HEAD + f"Authorization Bearer {TOKEN}\r\n\r\n".encode(),
        f"{TOKEN} / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(),
        b"GET /consumers HTTP/1.1\r\nHost: 127.0.0.1@evil.example\r\n\r\n",
    ],
    ids=["version", "null in the token", "no colon", "method", "credentials in the host"],
)
def test_a_request_that_is_malformed_leaves_no_token_in_the_log(service: Service, sent: bytes) -> None:
    """The request is rejected, and the console keeps running."""
    with connect(service) as stranger:
        stranger.sendall(sent)
        assert stranger.recv(65536).partition(b" ")[2].startswith(b"4")
    assert answers(service)
    check_log(service)
