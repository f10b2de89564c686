"""The console's certificate and the authority of its browsers: what counts, and that they change without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from console_world import console

from penstock.rpc import ServerSecurity
from penstock.services.console._access.tls import TlsFiles
from penstock.services.console.testing import Limits

DEADLINE = 20


class Files:
    """A folder with a server's certificate and key, and the authority of its browsers."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.folder = folder
        self.security = ServerSecurity(
            certificate_file=folder / "server.pem",
            private_key_file=folder / "server.key",
            client_ca_file=folder / "browsers.pem",
        )
        self.serve(authority)
        self.trust(authority)

    def serve(self, authority: trustme.CA) -> None:
        leaf = authority.issue_cert("127.0.0.1")
        self._replace("server.pem", leaf.cert_chain_pems[0].bytes())
        self._replace("server.key", leaf.private_key_pem.bytes())

    def trust(self, *authorities: trustme.CA) -> None:
        self._replace("browsers.pem", b"".join(one.cert_pem.bytes() for one in authorities))

    def _replace(self, name: str, content: bytes) -> None:
        new = self.folder / "new"
        new.write_bytes(content)
        new.replace(self.folder / name)


def browser(server: trustme.CA, own: trustme.CA | None) -> ssl.SSLContext:
    """Trusts one authority, and shows a certificate of another."""
    context = ssl.create_default_context()
    server.configure_trust(context)
    if own is not None:
        own.issue_cert("operator@example.org").configure_cert(context)
    return context


async def status(address: str, context: ssl.SSLContext, path: str = "/healthz") -> str:
    """The first line of the answer on a new connection; empty when there is none."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(DEADLINE):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                return (await reader.readline()).decode().strip()
            finally:
                writer.close()
    except (ssl.SSLError, ConnectionError):
        return ""


OK = "HTTP/1.1 200 OK"


async def test_the_authority_of_browsers_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new one counts at the next connection; one that was taken out counts no longer; nonsense changes nothing."""
    caplog.set_level(logging.INFO, "penstock.services.console")
    before, after = trustme.CA(), trustme.CA()
    files = Files(tmp_path, before)
    async with console(server={"security": files.security}) as running:
        old, new = browser(before, before), browser(before, after)
        assert [await status(running.address, one) for one in (old, new)] == [OK, ""]
        files.trust(before, after)
        assert [await status(running.address, one) for one in (old, new)] == [OK, OK]
        files.trust(after)
        assert [await status(running.address, one) for one in (old, new)] == ["", OK]
        (tmp_path / "browsers.pem").write_text("half of an authority")
        assert [await status(running.address, one) for one in (old, new)] == ["", OK]
        (tmp_path / "browsers.pem").unlink()
        assert [await status(running.address, one) for one in (old, new)] == ["", OK]
        assert await status(running.address, browser(before, None)) == ""
        files.trust(before)
        assert [await status(running.address, one) for one in (old, new)] == [OK, ""]
    told = [one.getMessage() for one in caplog.records if one.name.startswith("penstock.")]
    assert sum("took over the changed certificates" in one for one in told) == 3
    assert sum("the certificates stay as they were: client_ca_file" in one for one in told) == 2


async def test_certificate_and_key_are_followed(tmp_path: Path) -> None:
    """Half of a new pair changes nothing; a connection that is open goes on with what it began with."""
    before, after = trustme.CA(), trustme.CA()
    files = Files(tmp_path, before)
    async with console(server={"security": files.security}) as running:
        host, _, port = running.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=browser(before, before))
        old, new = browser(before, before), browser(after, before)
        assert [await status(running.address, one) for one in (old, new)] == [OK, ""]
        leaf = after.issue_cert("127.0.0.1")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
        assert [await status(running.address, one) for one in (old, new)] == [OK, ""]
        leaf.private_key_pem.write_to_path(tmp_path / "server.key")
        assert [await status(running.address, one) for one in (old, new)] == ["", OK]
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await reader.readline()).decode().strip() == OK
        writer.close()


def test_the_files_are_read_once_as_long_as_they_are_the_same(tmp_path: Path) -> None:
    """Each connection gets the same context, which remembers sessions."""
    authority = trustme.CA()
    files = Files(tmp_path, authority)
    tls = TlsFiles(files.security)
    first = tls.context()
    assert first is not None
    assert tls.context() is first
    files.trust(authority, trustme.CA())
    assert tls.context() is not first
    assert TlsFiles(ServerSecurity()).context() is None


async def test_a_handshake_that_never_ends_is_ended(tmp_path: Path) -> None:
    """And while it goes on it counts as a connection."""
    authority = trustme.CA()
    files = Files(tmp_path, authority)
    options: dict[str, Any] = {
        "server": {"security": files.security, "max_connections": 1},
        "limits": Limits(handshake=0.5),
    }
    async with console(**options) as running:
        host, _, port = running.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        await writer.drain()
        # It is there as soon as a second one is turned away.
        assert await status(running.address, browser(authority, authority)) == ""
        async with asyncio.timeout(DEADLINE):
            with suppress(ConnectionError):
                assert await reader.read() == b""
            while True:
                if await status(running.address, browser(authority, authority)) == OK:
                    break
                await asyncio.sleep(0.05)
        writer.close()


async def test_a_browsers_certificate_says_which_principal_it_is(tmp_path: Path) -> None:
    """By its alternative names, from request to request: one that is taken out of the file sees nothing any more."""
    authority = trustme.CA()
    files = Files(tmp_path, authority)
    file = tmp_path / "principals.toml"
    text = '[[principal]]\nname = "operator"\ncertificate = "operator@example.org"\nservices = ["console"]\n'
    file.write_text(text)
    security = replace(files.security, principals=file)
    async with console(server={"security": security}) as running:
        mine = browser(authority, authority)
        assert await status(running.address, mine, "/consumers") == OK
        file.write_text(text.replace("operator@", "another@"))
        assert await status(running.address, mine, "/consumers") == "HTTP/1.1 401 Unauthorized"
        file.write_text(text.replace("console", "shard-reader"))
        assert await status(running.address, mine, "/consumers") == "HTTP/1.1 403 Forbidden"
