"""A headless browser for tests: the document a page becomes, its complaints and its network requests.

The browser is driven by its DevTools protocol, which tells the page's requests from the browser's own. No request
leaves the machine, because every host name resolves to nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

ANSWER_S = 30
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # tests may well run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)
COMPLAINTS = {"Runtime.exceptionThrown", "Log.entryAdded"}
SETTLED = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))"


@dataclass(frozen=True)
class Seen:
    """`dom`: the document as the browser has it. `requests`: addresses, the page's own left out."""

    dom: str
    complaints: list[str]
    requests: list[str]


def look(page: Path, profile: Path) -> Seen:
    """Open a page, let it settle, and close the browser."""
    return asyncio.run(asyncio.wait_for(_look(page.as_uri(), profile), 2 * ANSWER_S))


async def _look(address: str, profile: Path) -> Seen:
    async with opened(profile) as tab:
        return await tab.look(address)


@contextlib.asynccontextmanager
async def opened(profile: Path) -> AsyncIterator[Tab]:
    """A browser with one tab, until the block ends."""
    browser = await asyncio.create_subprocess_exec(
        "chromium", *OPTIONS, f"--user-data-dir={profile}", stderr=asyncio.subprocess.PIPE
    )
    assert browser.stderr is not None
    try:
        while not (found := re.search(rb"listening on (ws:\S+)", line := await browser.stderr.readline())):
            assert line, "the browser has ended"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(found[1].decode(), max_msg_size=0) as socket,
        ):
            yield Tab(socket)
    finally:
        browser.kill()
        await browser.communicate()


class Tab:
    """One page and its events."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._events: list[dict[str, Any]] = []
        self._session: dict[str, str] = {}

    async def look(self, address: str) -> Seen:
        target = await self._ask("Target.createTarget", url="about:blank")
        attached = await self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Network", "Runtime", "Log", "Page"):
            await self._ask(f"{domain}.enable")
        await self._ask("Page.navigate", url=address)
        await self._until(lambda event: event.get("method") == "Page.loadEventFired")
        await self._ask("Runtime.evaluate", expression=SETTLED, awaitPromise=True)
        return await self.seen(address)

    async def seen(self, address: str) -> Seen:
        """What there is to see by now."""
        dom = await self.evaluate("document.documentElement.outerHTML")
        asked = [event["params"]["request"]["url"] for event in self._events if event["method"].endswith("WillBeSent")]
        complaints = [str(event["params"]) for event in self._events if event["method"] in COMPLAINTS]
        return Seen(dom, complaints, [url for url in asked if url != address])

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of its promise."""
        answer = await self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def follow(self, expression: str) -> None:
        """Do in the page what leads to another one, and wait until that is loaded."""
        self._events = [event for event in self._events if event.get("method") != "Page.loadEventFired"]
        await self.evaluate(f"{expression}; 0")
        await self._until(lambda event: event.get("method") == "Page.loadEventFired")
        await self._ask("Runtime.evaluate", expression=SETTLED, awaitPromise=True)

    async def emulate(self, *, width: int, dark: bool) -> None:
        """The width of the window, and the colours that the visitor prefers."""
        await self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._ask("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        """Write a picture of the window."""
        answer = await self._ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))  # noqa: ASYNC240  # one page at a time

    async def _ask(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **self._session})
        answer = await self._until(lambda message: message.get("id") == number)
        assert "result" in answer, answer
        return answer["result"]

    async def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            for number, event in enumerate(self._events):
                if wanted(event):
                    return self._events.pop(number)
            message = await self._socket.receive_json(timeout=ANSWER_S)
            if wanted(message):
                return dict(message)
            self._events.append(message)
