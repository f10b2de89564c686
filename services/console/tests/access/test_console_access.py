"""Who gets into the console, over real sockets: names, tokens, cookies and certificates, and what answers forbid."""

from __future__ import annotations

import hashlib
import html
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from console_visits import TOKEN, browsing, fields_of, fill, page, send, shown
from console_world import console, world

from penstock.rpc import ServerSecurity
from penstock.services.console._endpoints import Endpoint
from penstock.services.console._values import Kind

PAGES = ("", "consumers", "streams", "stream?name=flights", "sinks", "jobs", "job?id=report")


async def test_every_answer_forbids_what_a_page_does_not_need() -> None:
    """Pages, files, redirects and refusals alike."""
    async with console(server={"security": ServerSecurity(token=TOKEN)}) as running, browsing(running.url) as http:
        for method, path in (
            ("GET", "login"),
            ("GET", ""),
            ("GET", "healthz"),
            ("GET", "static/console.js"),
            ("POST", "login"),
            ("PUT", "login"),
            ("GET", "nothing"),
        ):
            async with http.request(method, f"/{path}", allow_redirects=False) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert TOKEN not in await answer.text()


async def test_a_name_that_is_not_the_consoles_is_refused() -> None:
    """As a page does that makes its own name lead here (DNS rebinding); names that were allowed are served."""
    async with console(allowed_hosts=("console.example",)) as running, browsing(running.url) as http:
        for host, status in (("evil.example", 421), ("console.example", 200), ("localhost:1", 200), ("", 421)):
            async with http.get("/", headers={"Host": host}) as answer:
                assert answer.status == status, host


async def test_nobody_sees_anything_without_the_token() -> None:
    """Browsers are led to the form, programs are refused; health is for everybody."""
    async with world() as services:
        await fill(services)
        security = {"security": ServerSecurity(token=TOKEN)}
        async with console(services.endpoints(), server=security) as running, browsing(running.url) as http:
            for path in (*PAGES, "job/picture.svg?id=report", "actions/release", "logout"):
                async with http.get(f"/{path}", allow_redirects=False) as answer:
                    assert answer.status == 303, path
                    assert answer.headers["Location"].startswith("/login?next=")
                async with http.get(f"/{path}", headers={"Accept": "*/*"}, allow_redirects=False) as answer:
                    assert (answer.status, "job-1" in await answer.text()) == (401, False)
            for scheme, token, status in (
                ("Bearer", TOKEN, 200),
                ("Bearer", TOKEN + "x", 401),
                ("Basic", TOKEN, 401),
                ("Bearer", "", 401),
            ):
                headers = {"Authorization": f"{scheme} {token}", "Accept": "*/*"}
                async with http.get("/consumers", headers=headers) as answer:
                    assert answer.status == status
            assert await page(http, "healthz") == "ok\n"


async def test_a_browser_logs_in_and_out() -> None:
    """By a cookie that scripts and other pages cannot use; a wrong token, and a form of another page, are refused."""
    security = {"security": ServerSecurity(token=TOKEN)}
    async with console(server=security) as running, browsing(running.url) as http:
        assert await send(http, "/login", {"token": "wrong"}) == 403
        assert await send(http, "/login", {"token": TOKEN}, **{"Sec-Fetch-Site": "cross-site"}) == 403
        assert await send(http, "/login", {"token": TOKEN}, Origin="http://evil.example") == 403
        for where, leads in (("/streams?a=b", "/streams?a=b"), ("//evil.example", "/")):
            form = {"token": TOKEN, "next": where}
            headers = {"Sec-Fetch-Site": "same-origin"}
            async with http.post("/login", data=form, headers=headers, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, leads)
                cookie = answer.headers["Set-Cookie"]
                assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
        assert "Overview" in await page(http, "")
        assert await send(http, "/logout", {}) == 403
        form = fields_of(await page(http, "logout"))
        assert await send(http, "/logout", form) == 303
        async with http.get("/", allow_redirects=False) as answer:
            assert answer.status == 303


async def test_large_forms_are_refused() -> None:
    """Before they take memory."""
    async with console(allow_actions=True) as running, browsing(running.url) as http:
        assert await send(http, "/login", {"token": "x" * 100_000}) == 413


async def test_with_mutual_tls_the_certificate_is_the_proof(tmp_path: Path) -> None:
    """A stranger's is refused in the handshake; the cookie is for this host alone."""
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

    options: dict[str, Any] = {"server": {"security": security, "host": "127.0.0.1"}, "allow_actions": True}
    nowhere = Endpoint(kind=Kind.REGISTRY, address="127.0.0.1:9")
    async with console([nowhere], **options) as running:
        async with browsing(running.url, connector=aiohttp.TCPConnector(ssl=context())) as http:
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await page(http, "")
        async with browsing(running.url, connector=aiohttp.TCPConnector(ssl=context(known))) as http:
            await shown(http, "", "0 of 1 services answer")
            async with http.get("/logout") as answer:
                cookie = answer.headers["Set-Cookie"]
                assert cookie.startswith("__Host-")
                assert "Secure" in cookie


async def test_a_token_that_is_taken_back_ends_its_sessions(tmp_path: Path) -> None:
    """The file is read again when it changes; sessions of the other tokens go on."""
    file = tmp_path / "tokens"
    file.write_text("the-first-token-of-tests-with-32-characters\nthe-second-token-of-tests\n")
    security = ServerSecurity(token_file=file)
    async with (
        console(server={"security": security}) as running,
        browsing(running.url) as one,
        browsing(running.url) as other,
    ):
        assert await send(one, "/login", {"token": "the-first-token-of-tests-with-32-characters"}) == 303
        assert await send(other, "/login", {"token": "the-second-token-of-tests-with-32-characters"}) == 303
        assert "Overview" in await page(one, "")
        file.write_text("the-second-token-of-tests-with-32-characters\nthe-third-token-of-tests\n")
        async with one.get("/", allow_redirects=False) as answer:
            assert answer.status == 303
        assert "Overview" in await page(other, "")


async def test_principals_see_and_do_what_their_file_says(tmp_path: Path) -> None:
    """By form and by header; what is refused says which line would allow it, and all of it is in the audit log."""
    tokens = {
        name: f"a-token-of-the-{name}-with-32-characters" for name in ("viewer", "driver", "operator", "stranger")
    }
    digests = {name: hashlib.sha256(token.encode()).hexdigest() for name, token in tokens.items()}
    file, audit = tmp_path / "principals.toml", tmp_path / "audit.jsonl"
    text = f"""
[[principal]]
name = "viewer"
token_sha256 = "{digests["viewer"]}"
services = ["console"]
methods = ["View"]
[[principal]]
name = "driver"
token_sha256 = "{digests["driver"]}"
services = ["console"]
streams = ["flights"]
consumers = ["delays-job"]
[[principal]]
name = "operator"
token_sha256 = "{digests["operator"]}"
services = ["console"]
streams = ["*"]
consumers = ["*"]
admin = true
[[principal]]
name = "stranger"
token_sha256 = "{digests["stranger"]}"
services = ["shard-reader"]
"""
    file.write_text(text)
    options: dict[str, Any] = {
        "server": {"security": ServerSecurity(principals=file), "audit_log": str(audit)},
        "allow_actions": True,
    }
    form = {"stream": "flights", "consumer": "delays-job"}
    async with world() as services:
        await fill(services)
        async with console(services.endpoints(), **options) as running, browsing(running.url) as http:

            async def release(who: str) -> tuple[int, str]:
                headers = {"Authorization": f"Bearer {tokens[who]}"}
                async with http.post("/actions/release", data=form, headers=headers, allow_redirects=False) as answer:
                    return answer.status, html.unescape(await answer.text())

            async with http.get("/consumers", headers={"Authorization": f"Bearer {tokens['stranger']}"}) as answer:
                assert answer.status == 403
            assert "may not call console/Release: add 'Release' to methods in line 6" in (await release("viewer"))[1]
            status, said = await release("driver")
            assert status == 403
            assert "write admin = true below line 7 of the file of principals" in said
            (consumer,) = await services.registry.list_consumers()
            assert consumer.lease is not None
            assert (await release("operator"))[0] == 303
            assert all(one.lease is None for one in await services.registry.list_consumers())
            assert await send(http, "/login", {"token": tokens["viewer"]}) == 303
            await shown(http, "consumers", "delays-job")
            file.write_text(text.replace(digests["viewer"], digests["viewer"][::-1]))
            async with http.get("/consumers", headers={"Accept": "*/*"}) as answer:
                assert answer.status == 401
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["event"], line["who"], line["outcome"]) for line in lines] == [
        ("refused", "stranger", "403"),
        ("refused", "viewer", "403"),
        ("refused", "driver", "403"),
        ("release", "operator", "OK"),
        ("log in", "viewer", "OK"),
        ("refused", "nobody", "401"),
    ]
    assert (lines[3]["streams"], lines[3]["consumers"], lines[3]["from"]) == (["flights"], ["delays-job"], "127.0.0.1")
    assert not any(token in audit.read_text() for token in tokens.values())


async def test_every_refusal_is_in_the_audit_log(tmp_path: Path) -> None:
    """Of a name, a login, a form of another page, a form without its token, and an action without leave."""
    audit = tmp_path / "audit.jsonl"
    server = {"security": ServerSecurity(token=TOKEN), "audit_log": str(audit)}
    async with console(server=server) as running, browsing(running.url) as http:
        async with http.get("/", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421
        assert await send(http, "/login", {"token": "wrong"}) == 403
        assert await send(http, "/login", {"token": TOKEN}, Origin="http://evil.example") == 403
        assert await send(http, "/login", {"token": TOKEN}) == 303
        assert await send(http, "/logout", {}) == 403
        assert await send(http, "/actions/release", {}) == 403
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    told = [(line["event"], line["who"], line.get("method"), line["outcome"]) for line in lines]
    assert told == [
        ("refused", "nobody", "GET /", "421"),
        ("refused", "nobody", "POST /login", "403"),
        ("refused", "nobody", "POST /login", "403"),
        ("log in", "token", None, "OK"),
        ("refused", "token", "POST /logout", "403"),
        ("refused", "token", "POST /actions/release", "403"),
    ]
