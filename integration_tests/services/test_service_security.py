"""Services admit callers by certificate and by token."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from integration_tests.security_tools import CONTRACTS, TOKEN, Pki, Service, ask, call_any, raw_channel, running

EXPIRED = "a-token-of-last-year-with-32-characters"
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
    """A missing certificate, or one of another authority, ends the connection, whatever the token."""
    with raw_channel(locked.address, pki.credentials(own)) as channel:
        assert ask(channel, locked.quick())[0] is grpc.StatusCode.UNAVAILABLE


def test_plain_text_does_not_get_in(locked: Service, pki: Pki) -> None:
    """Nor does the service go down by it."""
    with raw_channel(locked.address) as channel:
        assert ask(channel, locked.quick())[0] is grpc.StatusCode.UNAVAILABLE
    with raw_channel(locked.address, pki.credentials("client")) as channel:
        assert ask(channel, locked.quick())[0] is grpc.StatusCode.OK


def test_rejected_callers_leave_no_secret_in_the_log(locked: Service) -> None:
    """The log of all of the above."""
    log = locked.errors.read_text()
    assert TOKEN not in log
    assert EXPIRED not in log
    assert " ERROR penstock" not in log


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_client_that_wants_tls_gets_nothing_from_a_plain_port(name: str, pki: Pki, tmp_path: Path) -> None:
    """It does not fall back to plain text. The service keeps serving plain-text clients, and stops cleanly."""
    with running(name, tmp_path, TOKEN=TOKEN) as service:
        with raw_channel(service.address, pki.credentials(None)) as channel:
            assert ask(channel, service.quick())[0] is grpc.StatusCode.UNAVAILABLE
        with raw_channel(service.address) as channel:
            assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
        assert service.process.terminate() == 0
