"""A service that answers according to a script."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

Body = dict[str, Any]
Answer = Callable[[Body], tuple[int, Body | str]]
"""Status, and a body in JSON, or one in HTML."""


class ScriptedService:
    """Answers each request by the next of its script, and by success once that is used up."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.requests: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.delay = 0.0
        """Seconds from the next request to its answer."""

    async def handle(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        target = request.headers["X-Amz-Target"]
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        answer = self.script.pop(0) if self.script else success(target)
        status, content = answer(body)
        delay, self.delay = self.delay, 0.0
        await asyncio.sleep(delay)
        if not status and request.transport is not None:
            request.transport.abort()
        if isinstance(content, str):
            return web.Response(text=content, content_type="text/html", status=status)
        return web.json_response(content, status=status or 200)


def hang_up(body: Body) -> tuple[int, Body]:
    """Break the connection after the request has come, before the first byte of an answer."""
    return 0, {}


def success(target: str) -> Callable[[Body], tuple[int, Body]]:
    operation = target.rpartition(".")[2]

    def answer(body: Body) -> tuple[int, Body]:
        if operation == "SendMessageBatch":
            return 200, {"Successful": [{"Id": entry["Id"], "MessageId": "m"} for entry in body["Entries"]]}
        if operation == "PutRecordBatch":
            return 200, {"FailedPutCount": 0, "RequestResponses": [{"RecordId": "r"}] * len(body["Records"])}
        if operation == "PutRecords":
            results = [{"SequenceNumber": "1", "ShardId": "shardId-000000000000"}] * len(body["Records"])
            return 200, {"FailedRecordCount": 0, "Records": results}
        return 200, {"UnprocessedItems": {}}

    return answer


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    scripted = ScriptedService()
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/", scripted.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield scripted
    await runner.cleanup()
