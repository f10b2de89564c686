"""The console's certificate and the authority of its browsers: what counts, and that they change without a restart."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from console_world import console

from penstock.rpc import ServerSecurity

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
    """The first line of the answer on a new connection; empty without an answer."""
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
    """Half of a new pair changes nothing; an open connection keeps the certificate that it began with."""
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


async def test_a_session_of_tls_does_not_outlive_its_authority(tmp_path: Path) -> None:
    """A browser that resumes one shows its certificate again."""
    before, after = trustme.CA(), trustme.CA()
    files = Files(tmp_path, before)
    async with console(server={"security": files.security}) as running:

        def look(context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> tuple[bytes, Any]:
            """What the console answers, and the session; nothing where it ends the connection."""
            host, _, port = running.address.rpartition(":")
            try:
                with (
                    socket.create_connection((host, int(port)), timeout=DEADLINE) as connection,
                    context.wrap_socket(connection, server_hostname=host, session=session) as secure,
                ):
                    secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                    return secure.recv(len(OK)), secure.session
            except (ssl.SSLError, ConnectionError):
                return b"", None

        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            files.trust(before)
            own = browser(before, before)
            own.maximum_version = version
            said, session = await asyncio.to_thread(look, own)
            assert (said.decode(), session is not None) == (OK, True)
            files.trust(after)
            assert (await asyncio.to_thread(look, own, session))[0] == b""
