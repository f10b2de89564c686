"""A real browser, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on the PATH")
DEADLINE = 60


class Page:
    """A tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.violations: list[str] = []
        """What the console of the browser said: errors of scripts, refusals of the policy."""

    async def read(self) -> None:
        async for message in self._socket:
            found = message.json()
            if "id" in found:
                answer = self._answers.pop(found["id"])
                if "error" in found:
                    answer.set_exception(RuntimeError(str(found["error"])))
                else:
                    answer.set_result(found["result"])
            elif found["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif found["method"] == "Runtime.exceptionThrown":
                self.violations.append(str(found["params"]["exceptionDetails"]))
            elif found["method"] == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
                self.violations.append(found["params"]["entry"]["text"])
            elif found["method"] == "Page.javascriptDialogOpening":
                self.violations.append("a dialog")

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(DEADLINE):
            return await self._answers[number]

    async def look(self, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Size and preferred colours."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def go(self, url: str) -> None:
        """Load a page."""
        # The end of what is being loaded must not pass for the end of this.
        await self.until(
            "location.protocol === 'about:' || performance.getEntriesByType('navigation')[0].loadEventEnd > 0"
        )
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(DEADLINE):
            await self._loaded.wait()

    async def eval(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    if await self.eval(script):
                        return
                except (AssertionError, RuntimeError):
                    # Between two pages there is nothing to ask.
                    pass
                await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        """Press a key, as somebody at the keyboard."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            parameters = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
            await self.call("Input.dispatchKeyEvent", **parameters, **(text if kind == "keyDown" else {}))

    async def click(self, selector: str) -> None:
        """Click and wait for the next page."""
        self._loaded.clear()
        await self.eval(f"document.querySelector({selector!r}).click()")
        async with asyncio.timeout(DEADLINE):
            await self._loaded.wait()

    async def tree(self) -> list[tuple[str, str]]:
        """Role and name of each node that a screen reader gets."""
        nodes = (await self.call("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and "role" in node
        ]

    async def shot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of the page."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


@asynccontextmanager
async def browser_page(*, script: bool = True) -> AsyncIterator[Page]:
    """A tab of a browser of its own; `script` says whether it runs scripts."""
    assert BROWSER is not None
    # Its own sandbox does not work for root, as which containers run.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            BROWSER,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--ignore-certificate-errors",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            *sandbox,
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE):
                address = await _address(process)
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://{address}/json/list") as answer:
                    tabs = await answer.json()
                tab = next(one for one in tabs if one["type"] == "page")
                async with http.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    reading = asyncio.create_task(page.read())
                    draining = asyncio.create_task(_drain(process))
                    try:
                        for domain in ("Page", "Runtime", "Log", "Accessibility"):
                            await page.call(f"{domain}.enable")
                        await page.call("Emulation.setScriptExecutionDisabled", value=not script)
                        await page.look()
                        yield page
                    finally:
                        reading.cancel()
                        draining.cancel()
                        await asyncio.gather(reading, draining, return_exceptions=True)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        found = re.search(rb"DevTools listening on ws://([^/]+)/", line)
        if found:
            return found[1].decode()
    raise RuntimeError("the browser ended before it listened")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while await process.stderr.readline():
        pass
