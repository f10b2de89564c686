"""Who gets into a service: by certificate and by token."""

import itertools
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from integration_tests.security_tools import CONTRACTS, TOKEN, Pki, Service, ask, call_any, raw_channel, running
from penstock.rpc.testing import service_process

EXPIRED = "a-token-of-last-year"
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).isoformat()
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module", params=CONTRACTS)
def locked(request: pytest.FixtureRequest, pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with mutual TLS and tokens, one of which has expired."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "tokens").write_text(f"# of these tests\n{TOKEN} {TOMORROW}\n{EXPIRED} {YESTERDAY}\n")
    with running(request.param, folder, TOKEN_FILE=str(folder / "tokens"), **pki.server_settings()) as service:
        yield service


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (None, "missing or wrong"),
        ("guessed", "missing or wrong"),
        (TOKEN[:-1], "missing or wrong"),
        (EXPIRED, "expired"),
    ],
    ids=["none", "wrong", "cut", "expired"],
)
def test_no_method_is_open_without_a_valid_token(locked: Service, pki: Pki, token: str | None, reason: str) -> None:
    """Every method, of any kind, refuses; it says why, and not a character of what it wanted."""
    with raw_channel(locked.address, pki.credentials("client")) as channel:
        assert ask(channel, locked.quick())[0] is grpc.StatusCode.OK
        for method in locked.methods:
            code, details = call_any(channel, method, [b""], token=token)
            assert code is grpc.StatusCode.UNAUTHENTICATED, method.full_name
            assert reason in details
            assert TOKEN not in details
        for name in ("v1", "v1alpha"):
            code, _ = ask(channel, f"/grpc.reflection.{name}.ServerReflection/ServerReflectionInfo", token=token)
            assert code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)


@pytest.mark.parametrize("own", ["stranger", None])
def test_only_clients_of_the_authority_get_in(locked: Service, pki: Pki, own: str | None) -> None:
    """A certificate of another authority, or none, ends the connection, whatever the token."""
    with raw_channel(locked.address, pki.credentials(own)) as channel:
        assert ask(channel, locked.quick())[0] is grpc.StatusCode.UNAVAILABLE


def test_plain_text_does_not_get_in(locked: Service, pki: Pki) -> None:
    """Nor does the service go down by it."""
    with raw_channel(locked.address) as channel:
        assert ask(channel, locked.quick())[0] is grpc.StatusCode.UNAVAILABLE
    with raw_channel(locked.address, pki.credentials("client")) as channel:
        assert ask(channel, locked.quick())[0] is grpc.StatusCode.OK


def test_who_is_turned_away_leaves_no_secret_in_the_log(locked: Service) -> None:
    """The log of all of the above."""
    log = locked.errors.read_text()
    assert TOKEN not in log
    assert EXPIRED not in log
    assert " ERROR penstock" not in log


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_client_that_wants_tls_gets_nothing_from_a_plain_port(name: str, pki: Pki, tmp_path: Path) -> None:
    """It does not fall back to plain text; the service goes on for those who speak it, and stops cleanly."""
    with running(name, tmp_path, TOKEN=TOKEN) as service:
        with raw_channel(service.address, pki.credentials(None)) as channel:
            assert ask(channel, service.quick())[0] is grpc.StatusCode.UNAVAILABLE
        with raw_channel(service.address) as channel:
            assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
        assert service.process.terminate() == 0


def guesses(seconds: float, guess: Callable[[], bool]) -> int:
    """How many tokens of eight callers at a time are looked at."""
    until = time.monotonic() + seconds
    looked_at: list[None] = []

    def go_on() -> None:
        while time.monotonic() < until:
            looked_at.extend([None] * guess())

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(go_on) for _ in range(8)]:
            one.result()
    return len(looked_at)


@pytest.mark.parametrize("name", CONTRACTS)
def test_tokens_cannot_be_guessed_quickly_and_nobody_is_locked_out(name: str, tmp_path: Path) -> None:
    """Some tokens a second are looked at, over its own methods and health together; who was in before stays in."""
    with running(name, tmp_path, TOKEN=TOKEN) as service, raw_channel(service.address) as channel:
        assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
        paths = itertools.cycle((service.quick(), "/grpc.health.v1.Health/Check"))

        def guess() -> bool:
            # Whoever guesses does not wait for a late answer: a right token's is not late.
            return "too many" not in ask(channel, next(paths), token="a-guess-of-this-test", timeout=0.5)[1]

        begun = time.monotonic()
        looked_at = guesses(3.0, guess)
        assert looked_at < 60 + 6 * (time.monotonic() - begun)
        assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
        log = service.errors.read_text()
        assert TOKEN not in log


def test_the_consoles_header_and_form_share_one_count(tmp_path: Path) -> None:
    """Guesses by header and by form; who is in stays in."""
    environment = {**os.environ, "PENSTOCK_CONSOLE_TOKEN": TOKEN}
    with service_process("penstock.services.console", ["serve"], environment) as process:

        def ask_console(token: str, *, by_form: bool = False) -> int:
            url = f"http://{process.address}/"
            headers = {"Authorization": f"Bearer {token}"}
            data = None
            if by_form:
                url += "login"
                headers = {"Origin": f"http://{process.address}"}
                data = urllib.parse.urlencode({"token": token}).encode()
            request = urllib.request.Request(url, data, headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert ask_console(TOKEN) == 200
        with ThreadPoolExecutor(60) as pool:
            statuses = list(
                pool.map(lambda number: ask_console("a-guess-of-this-test", by_form=number % 2 == 0), range(120))
            )
        assert set(statuses) == {401, 403, 429}
        assert sum(status != 429 for status in statuses) < 90
        assert ask_console(TOKEN) == 200
        assert process.terminate() == 0
