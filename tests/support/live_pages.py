"""The server of `hybrid-des live`, and connections as its pages have them."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClosedError, websocket_connect

LONGEST_S = 60


@contextmanager
def served(*arguments):
    """The address of a server of `hybrid-des live`, which ends with the block, as by Ctrl-C."""
    command = [sys.executable, "-m", "hybrid_des", "live", *map(str, arguments), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONGEST_S)


def origin(address):
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


class Page:
    """A connection as a page has it."""

    def __init__(self, opened):
        self.opened, self.ended = opened, False

    async def send(self, text):
        with suppress(WebSocketClosedError):  # while it is sent
            await self.opened.write_message(text)

    async def receive(self):
        """The next message; None if the server has ended the connection."""
        message = await asyncio.wait_for(self.opened.read_message(), LONGEST_S)
        self.ended = message is None
        return message


@asynccontextmanager
async def connected(address, **headers):
    given = {"Origin": origin(address), **headers}
    request = HTTPRequest(f"{address.replace('http', 'ws', 1)}socket", headers=given)
    page = Page(await websocket_connect(request))
    try:
        yield page
    finally:
        page.opened.close()
        while not page.ended:
            await page.receive()


def talk(address, *requests, clock=None):
    """The answers to requests, each asked after the answer to the one before; `clock` is called with each of them."""

    async def work():
        answers = []
        async with connected(address) as page:
            for number, request in enumerate(requests, 1):
                await page.send(json.dumps({"number": number, **request}))
                answers.append(json.loads(await page.receive()))
                if clock is not None:
                    clock(answers[-1])
        return answers

    return asyncio.run(work())
