"""Access to the console, over real sockets: names, tokens and certificates, and what answers forbid."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import trustme
from console_visits import TOKEN, browsing, fill, page, shown
from console_world import console, world

from penstock.rpc import ServerSecurity
from penstock.services.console._settings import Endpoint
from penstock.services.console._values import Kind

PAGES = ("", "consumers", "readers", "streams", "stream?name=flights", "sinks", "jobs", "job?id=report")


async def test_every_answer_forbids_what_a_page_does_not_need() -> None:
    """Pages, files and refusals alike."""
    async with console(server={"security": ServerSecurity(token=TOKEN)}) as running, browsing(running.url) as http:
        mine, none = {"Authorization": f"Bearer {TOKEN}"}, dict[str, str]()
        for method, path, headers, status in (
            ("GET", "", none, 401),
            ("GET", "", mine, 200),
            ("GET", "healthz", none, 200),
            ("GET", "static/console.js", mine, 200),
            ("POST", "consumers", mine, 405),
            ("GET", "nothing", mine, 404),
        ):
            async with http.request(method, f"/{path}", headers=headers) as answer:
                assert answer.status == status, path
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert answer.headers["Server"] == "penstock-console"
                assert TOKEN not in await answer.text()


async def test_a_name_that_is_not_the_consoles_is_refused() -> None:
    """As a page does that makes its own name lead here (DNS rebinding); names that were allowed are served."""
    async with console(allowed_hosts=("console.example",)) as running, browsing(running.url) as http:
        for host, status in (("evil.example", 421), ("console.example", 200), ("localhost:1", 200), ("", 421)):
            async with http.get("/", headers={"Host": host}) as answer:
                assert answer.status == status, host


async def test_nobody_sees_anything_without_the_token() -> None:
    """As a bearer token, or as a browser's password with any user name. Health is for everybody."""
    async with world() as services:
        await fill(services)
        security = {"security": ServerSecurity(token=TOKEN)}
        async with console(services.endpoints(), server=security) as running, browsing(running.url) as http:
            for path in (*PAGES, "job/picture.svg?id=report", "static/console.css", "nothing"):
                async with http.get(f"/{path}") as answer:
                    assert (answer.status, "job-1" in await answer.text()) == (401, False), path
                    assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")

            def password(token: str) -> str:
                return "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()

            for sent, status in (
                (f"Bearer {TOKEN}", 200),
                (password(TOKEN), 200),
                (f"Bearer {TOKEN}x", 401),
                (password(TOKEN + "x"), 401),
                (f"Basic {TOKEN}", 401),
                ("Bearer ", 401),
            ):
                async with http.get("/consumers", headers={"Authorization": sent}) as answer:
                    assert answer.status == status, sent
            assert await page(http, "healthz") == "ok\n"


async def test_a_token_that_is_taken_back_opens_nothing(tmp_path: Path) -> None:
    """The file is read again when it changes; the other tokens stay valid."""
    file = tmp_path / "tokens"
    file.write_text("the-first-token-of-these-long-tests\nthe-second-token-of-these-long-tests\n")
    async with console(server={"security": ServerSecurity(token_file=file)}) as running, browsing(running.url) as http:

        async def status(token: str) -> int:
            async with http.get("/", headers={"Authorization": f"Bearer {token}"}) as answer:
                return answer.status

        assert [await status(f"the-{one}-token-of-these-long-tests") for one in ("first", "second", "third")] == [
            200,
            200,
            401,
        ]
        file.write_text("the-second-token-of-these-long-tests\nthe-third-token-of-these-long-tests\n")
        assert [await status(f"the-{one}-token-of-these-long-tests") for one in ("first", "second", "third")] == [
            401,
            200,
            200,
        ]


async def test_with_mutual_tls_the_certificate_is_the_proof(tmp_path: Path) -> None:
    """A browser without one is refused in the handshake."""
    authority = trustme.CA()
    for name, leaf in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("operator"))):
        leaf.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        leaf.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    security = ServerSecurity(
        certificate_file=tmp_path / "server.pem",
        private_key_file=tmp_path / "server.key",
        client_ca_file=tmp_path / "ca.pem",
    )

    def context(prepare: Callable[[ssl.SSLContext], None] = lambda _: None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        prepare(made)
        return made

    def known(made: ssl.SSLContext) -> None:
        made.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")

    nowhere = Endpoint(kind=Kind.REGISTRY, address="127.0.0.1:9")
    async with console([nowhere], server={"security": security}) as running:
        async with browsing(running.url, connector=aiohttp.TCPConnector(ssl=context())) as http:
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await page(http, "")
        async with browsing(running.url, connector=aiohttp.TCPConnector(ssl=context(known))) as http:
            await shown(http, "", "0 of 1 services answer")
