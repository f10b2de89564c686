"""Folders of dead letters: what is shown of them, to whom, and that they are written again once."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from console_visits import browsing, fields_of, page, send
from console_world import HOSTILE, console

from penstock.aws import AwsOptions
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc import ServerSecurity


@pytest.fixture
def kinesis() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a job writes it: two letters for one stream, one of them without a key, and one for none."""
    letters = [
        letter(b"UA1545", "EWR", "flights", "KMSThrottlingException", "too fast"),
        letter(HOSTILE.encode(), None, "flights", "", HOSTILE),
        letter(None, "JFK", None, "", "its data is null"),
    ]
    place = tmp_path / "letters"
    place.mkdir()
    (place / "job-1.json").write_text("".join(json.dumps(one) + "\n" for one in letters))
    return place


def letter(data: bytes | None, key: str | None, stream: str | None, code: str, message: str) -> dict[str, Any]:
    return {
        "data": None if data is None else base64.b64encode(data).decode(),
        "partitionKey": key,
        "explicitHashKey": None,
        "streamName": stream,
        "reason": "refused",
        "errorCode": code,
        "errorMessage": message,
        "attempts": 1,
        "row": None,
        "time": "2026-01-01T00:00:00.000Z",
    }


@asynccontextmanager
async def visit(
    kinesis: RunningEmulator, *folders: tuple[str, Path], **more: Any
) -> AsyncIterator[aiohttp.ClientSession]:
    aws = AwsOptions(
        region="us-east-1", endpoint_url=kinesis.endpoint_url, access_key_id="test", secret_access_key="test"
    )
    async with console(dead_letters=folders, aws=aws, **more) as running, browsing(running.url) as http:
        yield http


def in_stream(kinesis: RunningEmulator) -> list[bytes]:
    client = kinesis.client()
    (shard,) = client.list_shards(StreamName="flights")["Shards"]
    asked = client.get_shard_iterator(StreamName="flights", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")
    return [one["Data"] for one in client.get_records(ShardIterator=asked["ShardIterator"])["Records"]]


async def test_letters_are_counted_by_stream_and_shown_as_text(kinesis: RunningEmulator, folder: Path) -> None:
    async with visit(kinesis, ("orders", folder), ("none yet", folder / "absent")) as http:
        text = await page(http, "dead-letters")
        assert "3 open letters" in text
        assert "KMSThrottlingException <small>1</small>" in text
        assert "none named" in text
        assert "<script>alert" not in text
        assert "Redrive…" not in text
        shown = await page(http, "dead-letters/letters?folder=orders&stream=flights")
        assert "<pre>UA1545</pre>" in shown
        assert "<script>alert" not in shown
        assert "&lt;script&gt;alert(1)" in shown
        assert "its data is null" in await page(http, "dead-letters/letters?folder=orders&stream=")
        async with http.get("/dead-letters/letters?folder=other&stream=flights") as answer:
            assert answer.status == 404
    async with visit(kinesis) as http:
        assert "--dead-letters NAME=FOLDER" in await page(http, "dead-letters")


async def test_a_page_shows_a_hundred_letters_and_leads_to_the_next(kinesis: RunningEmulator, folder: Path) -> None:
    lines = [json.dumps(letter(b"%d;" % number, "key", "flights", "X", "y")) + "\n" for number in range(150)]
    (folder / "job-1.json").write_text("".join(lines))
    async with visit(kinesis, ("orders", folder)) as http:
        first = await page(http, "dead-letters/letters?folder=orders&stream=flights")
        assert re.findall(r"<pre>(\d+);", first) == [str(number) for number in range(100)]
        assert "after=100" in first
        second = await page(http, "dead-letters/letters?folder=orders&stream=flights&after=100")
        assert re.findall(r"<pre>(\d+);", second) == [str(number) for number in range(100, 150)]
        assert "Next letters" not in second


async def test_letters_are_written_again_once_after_a_question(kinesis: RunningEmulator, folder: Path) -> None:
    """Those that can be; with leave, and by a form of this browser."""
    fields = {"folder": "orders", "stream": "flights"}
    async with visit(kinesis, ("orders", folder)) as http:
        async with http.get(f"/actions/redrive?{urlencode(fields)}") as answer:
            assert answer.status == 403
        assert await send(http, "/actions/redrive", fields) == 403
    async with visit(kinesis, ("orders", folder), allow_actions=True) as http:
        assert "Redrive…" in await page(http, "dead-letters")
        form = fields_of(await page(http, f"actions/redrive?{urlencode(fields)}"))
        assert await send(http, "/actions/redrive", fields) == 403
        assert in_stream(kinesis) == []
        for _ in range(2):
            assert await send(http, "/actions/redrive", form) == 303
        assert in_stream(kinesis) == [b"UA1545"]
        text = await page(http, "dead-letters")
        assert "1 written, 1 stay: a letter has no partition key" in text
        assert "0 written, 1 stay" in text
        assert "2 open letters" in text


async def test_what_cannot_be_redriven_says_why_and_not_where_it_lies(kinesis: RunningEmulator, folder: Path) -> None:
    form = {"folder": "orders", "stream": "flights"}
    async with visit(kinesis, ("orders", folder), allow_actions=True) as http:
        form = fields_of(await page(http, f"actions/redrive?{urlencode(form)}"))
        (folder / "_redriven").mkdir()
        with (folder / "_redriven" / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert await send(http, "/actions/redrive", form) == 303
        (folder / "other.json").write_text("{}\n")
        assert await send(http, "/actions/redrive", form) == 303
        text = await page(http, "dead-letters")
        assert "failed: another process redrives the letters of orders: wait until it has ended" in text
        assert "failed: line 1 of other.json in orders is not a dead letter" in text
        assert str(folder) not in text
        assert str(folder) not in await page(http, "dead-letters/letters?folder=orders&stream=nothing")


async def test_who_may_not_see_or_redrive_letters_does_not(
    kinesis: RunningEmulator, folder: Path, tmp_path: Path
) -> None:
    """Rights of their own, by method and stream; each look and each redrive is in the audit log, without a record."""
    file = tmp_path / "principals.toml"
    tokens = {
        "operator": "operator-token-with-32-characters",
        "reader": "readers-token-with-32-characters",
        "writer": "writers-token-with-32-characters",
    }
    rights = {
        "operator": 'methods = ["View"]\nstreams = ["*"]',
        "reader": 'methods = ["View", "DeadLetters"]\nstreams = ["flights"]',
        "writer": 'methods = ["View", "Redrive"]\nstreams = ["flights"]',
    }
    file.write_text(
        "".join(
            f"[[principal]]\nname = {name!r}\ntoken_sha256 = {hashlib.sha256(token.encode()).hexdigest()!r}\n"
            f'services = ["console"]\n{rights[name]}\n'
            for name, token in tokens.items()
        )
    )
    log = tmp_path / "audit.jsonl"
    server = {"security": ServerSecurity(principals=file), "audit_log": str(log)}
    look, form = "/dead-letters/letters?folder=orders&stream=", {"folder": "orders", "stream": "flights"}
    async with visit(kinesis, ("orders", folder), allow_actions=True, server=server) as http:

        async def status(who: str, stream: str | None) -> int:
            headers = {"Authorization": f"Bearer {tokens[who]}"}
            if stream is None:
                async with http.post("/actions/redrive", data=form, headers=headers, allow_redirects=False) as answer:
                    return answer.status
            async with http.get(look + stream, headers=headers) as answer:
                return answer.status

        assert [await status(who, "flights") for who in tokens] == [403, 200, 403]
        assert [await status(who, "") for who in tokens] == [403, 403, 403]
        assert [await status(who, None) for who in tokens] == [403, 403, 303]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    done = [(one["who"], one["event"], one["outcome"], one["streams"]) for one in lines if one["event"] != "refused"]
    assert done == [("reader", "read dead letters", "OK", ["flights"]), ("writer", "redrive", "OK", ["flights"])]
    assert "UA1545" not in log.read_text()
    assert in_stream(kinesis) == [b"UA1545"]
