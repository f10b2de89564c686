"""The roster by which a driver knows its readers, and the choice of their hosts: over real sockets, without Spark."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.rpc import ClientSecurity
from penstock.spark_plugin import ExecutorReader
from penstock.spark_plugin._reading.executors.fleet_file import ExecutorFleet, FleetFile
from penstock.spark_plugin._reading.executors.roster import (
    Invitation,
    Roster,
    SessionCertificate,
    join_roster,
    make_certificate,
)
from penstock.spark_plugin.errors import ExecutorReadersError

TOKEN = "a-token-of-this-session-alone-with-32-characters"


class World:
    """A roster, and what its driver learns."""

    def __init__(self, certificate: SessionCertificate | None) -> None:
        self.seen: list[tuple[ExecutorReader, ...]] = []
        self.failures: list[tuple[int, str]] = []
        self.roster = Roster(
            "127.0.0.1", 0, TOKEN, certificate, self.seen.append, lambda *failure: self.failures.append(failure)
        )
        self.invitation = Invitation("127.0.0.1", self.roster.port, TOKEN, {}, True, certificate)

    @property
    def there(self) -> list[int]:
        return [reader.number for reader in self.seen[-1]] if self.seen else []


@contextmanager
def world(certificate: SessionCertificate | None = None) -> Iterator[World]:
    one = World(certificate)
    try:
        yield one
    finally:
        one.roster.close()


def reader(number: int) -> ExecutorReader:
    return ExecutorReader(number, f"127.0.0.1:{number + 1}", None, "127.0.0.1", 1)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_reader_is_there_as_long_as_its_connection(is_encrypted: bool, until: Callable[..., None]) -> None:
    """The driver hears of each that comes, and of each that goes, however it goes."""
    with world(make_certificate() if is_encrypted else None) as one:
        second = join_roster(one.invitation, reader(1))
        first = join_roster(one.invitation, reader(0))
        until(lambda: one.there == [0, 1], "they are not reported")
        second.close()
        until(lambda: one.there == [0], "its end is not reported")
        one.roster.close()
        assert first.recv(1) == b""  # the reader's sign to end
        first.close()


def test_only_the_session_itself_gets_in(until: Callable[..., None]) -> None:
    """Without its token, with words that are none, and by another certificate: and the driver hears nothing."""
    ours, other = make_certificate(), make_certificate()
    with world(ours) as one:
        with pytest.raises(ExecutorReadersError, match="refused this reader"):
            join_roster(replace(one.invitation, token="another-token-of-that-length-with-32-characters"), reader(0))
        for certificate in (None, other):
            with pytest.raises((OSError, ExecutorReadersError)):
                join_roster(replace(one.invitation, certificate=certificate), reader(0))
        join_roster(one.invitation, reader(0)).close()
        until(lambda: len(one.seen) == 2, "the right one does not get in")
    with world() as one:
        for words in (b"\n", b"[]\n", b'{"token": 1}\n', b"x" * 100_000, json.dumps({"token": TOKEN}).encode() + b"\n"):
            with socket.create_connection(("127.0.0.1", one.roster.port)) as connection:
                connection.sendall(words)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(30)
                try:
                    assert connection.recv(16) == b"", words
                except ConnectionResetError:
                    continue
        assert one.seen == []


def test_a_query_finds_who_is_there_now(tmp_path: Path) -> None:
    """As the file says it at each look; how they are called is in it, for its user alone; then it is gone."""
    assert ExecutorFleet.find(tmp_path) is None
    authority = make_certificate().certificate
    security = ClientSecurity(token=TOKEN, ca_certificates=authority, server_name="readers")
    file = FleetFile(tmp_path, security)
    with pytest.raises(FileExistsError):
        FleetFile(tmp_path, security)
    fleet = ExecutorFleet.find(tmp_path)
    assert fleet is not None
    assert fleet.security == security
    assert fleet.addresses() == []
    file.write([replace(reader(0), socket="/s/0"), reader(1)])
    assert fleet.addresses() == ["127.0.0.1:1", "127.0.0.1:2"]
    assert fleet.sockets() == {"127.0.0.1:1": Path("/s/0")}
    assert [one.stat().st_mode & 0o777 for one in (file.folder, *file.folder.iterdir())] == [0o700, 0o600]
    file.remove()
    with pytest.raises(ExecutorReadersError, match="READERS_STOPPED"):
        fleet.addresses()


def test_secrets_are_in_no_repr() -> None:
    """The objects that are sent to executors: Spark and users print them."""
    certificate = make_certificate()
    shown = repr(Invitation("h", 1, TOKEN, {"awsSecretAccessKey": "hush"}, False, certificate))
    assert TOKEN not in shown
    assert "hush" not in shown
    assert "PRIVATE KEY" not in shown
