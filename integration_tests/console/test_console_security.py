"""Who gets into the console: those with a token and a certificate that count, and no others."""

import http.client
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from integration_tests.console_tools import (
    EXPIRED,
    HEAD,
    TOKEN,
    Pki,
    Service,
    answers,
    ask,
    check_log,
    connect,
    context_of,
    rest_of,
    running,
    running_with_token,
)

YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).isoformat()
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()
GETS = (
    "/",
    "/consumers",
    "/streams",
    "/stream?name=flights",
    "/sinks",
    "/jobs",
    "/job?id=report",
    "/job/picture.svg?id=report",
    "/logout",
    "/actions/release?stream=flights&consumer=delays",
    "/actions/resume?job=report&stage=stage-1",
    "/nothing",
    "/static/nothing",
    "/static/..%2f_serve.py",
    "//",
    "/healthz/..",
)
POSTS = ("/logout", "/actions/release", "/actions/resume", "/", "/nothing")


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
    with running_with_token(tmp_path_factory.mktemp("console")) as service:
        yield service


@pytest.mark.parametrize(
    "token", [None, "guessed", TOKEN[:-1], TOKEN + "x", EXPIRED], ids=["none", "wrong", "cut", "longer", "expired"]
)
def test_no_route_is_open_without_a_valid_token(locked: Service, pki: Pki, token: str | None) -> None:
    """Every page, file, form and name that is none refuses; health and the style tell nothing of what is behind."""
    context = context_of(pki, "client")
    assert ask(locked, "/", context=context, Authorization=f"Bearer {TOKEN}")[0] == 200
    headers: dict[str, Any] = {} if token is None else {"Authorization": f"Bearer {token}"}
    for path in GETS:
        status, text, said = ask(locked, path, context=context, **headers)
        assert status == 303, path
        assert said["location"].startswith("/login?next="), path
        status, text, _ = ask(locked, path, context=context, **{**headers, "Accept": "*/*"})
        assert status == 401, path
        assert not any(secret in text for secret in (TOKEN, EXPIRED, "flights", "report"))
    for path in POSTS:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            status, _, _ = ask(locked, path, method=method, body=b"job=report", context=context, **headers)
            assert status in (401, 403), (method, path)
    for scheme in ("Basic", "Digest", "bearer\t", "Token"):
        assert ask(locked, "/", context=context, Accept="*/*", Authorization=f"{scheme} {TOKEN}")[0] == 401
    if token is not None:
        form = urlencode({"token": token}).encode()
        own = {"Sec_Fetch_Site": "same-origin", "Content_Type": "application/x-www-form-urlencoded"}
        status, _, said = ask(locked, "/login", method="POST", body=form, context=context, **own)
        assert (status, "set-cookie" in said) == (403, False)
    cookie = "__Host-penstock-console=" + "A" * 43
    assert ask(locked, "/", context=context, Accept="*/*", Cookie=cookie)[0] == 401


@pytest.mark.parametrize("own", ["stranger", None])
def test_only_browsers_of_the_authority_get_in(locked: Service, pki: Pki, own: str | None) -> None:
    """A certificate of another authority, or none, ends the connection, whatever the token, also for health."""
    for path in ("/", "/healthz", "/login"):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            ask(locked, path, context=context_of(pki, own), Authorization=f"Bearer {TOKEN}")


def test_plain_text_does_not_get_in(locked: Service, pki: Pki) -> None:
    """Nothing of HTTP comes back, and the console goes on."""
    with connect(locked) as stranger:
        stranger.sendall(HEAD + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        said = rest_of(stranger)
        assert said is not None
        assert b"HTTP/1." not in said
    context = context_of(pki, "client")
    assert ask(locked, "/", context=context, Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_of_tls_do_not_get_in(locked: Service, pki: Pki) -> None:
    """TLS 1.2 and 1.3 only."""
    context = context_of(pki, "client")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert ask(locked, "/healthz", context=context)[0] == 200
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(locked, "/healthz", context=context)


def test_a_browser_that_wants_tls_gets_nothing_from_a_plain_port(service: Service, pki: Pki) -> None:
    """It does not fall back to plain text; the console goes on for those who speak it."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(service, "/", context=context_of(pki, None), Authorization=f"Bearer {TOKEN}")
    assert answers(service)


def test_a_token_is_in_no_url_and_no_log(service: Service, locked: Service) -> None:
    """Not after a login, nor after what was sent above; where it is put into a URL it opens nothing."""
    own: dict[str, Any] = {"Sec_Fetch_Site": "same-origin", "Content_Type": "application/x-www-form-urlencoded"}
    for where in ("/consumers", f"/?token={TOKEN}"):
        form = urlencode({"token": TOKEN, "next": where}).encode()
        status, text, said = ask(service, "/login", method="POST", body=form, **own)
        assert status == 303
        assert TOKEN not in said["location"]
        assert TOKEN not in said["set-cookie"] + text
        for part in ("HttpOnly", "SameSite=Strict"):
            assert part in said["set-cookie"]
    for path in (f"/consumers?token={TOKEN}", f"/login?token={TOKEN}", f"/?access_token={TOKEN}"):
        status, text, said = ask(service, path)
        assert status == 400
        assert TOKEN not in str(said) + text
    _, text, _ = ask(service, "/login?" + urlencode({"next": f"/?token={TOKEN}"}))
    assert TOKEN not in text
    for one in (service, locked):
        check_log(one)
