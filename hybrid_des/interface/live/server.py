"""The pages of `hybrid-des live`, served to this machine only.

The address holds a random token; without it, the server sends only a page that asks for it, so that links without the
token can be shared. Requests must name this host and come from these
pages: another site that is open in the same browser can neither read them nor make them simulate. Pages load nothing
else, and what they send is limited in size, in files that it may name, and in real time.

Tornado: one package without dependencies of its own, with a server for both HTTP and WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import secrets
import socket
from collections.abc import Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from hybrid_des.errors import UsageError
from hybrid_des.interface.live.frames import Request, ServerState
from hybrid_des.interface.live.schedules import FOLDER, Sizes, schedules_page
from hybrid_des.interface.live.worker import Worker
from hybrid_des.report.page.document import fill

HOST = "127.0.0.1"
LAST_PORT = 2**16 - 1
MOST_BYTES = 2**16  # of a request
MOST_PAGES = 8  # at once, each with a process
TOO_MANY = 4000  # code with which a further page is closed
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
CONTENT = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
           "connect-src ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")  # fmt: skip


class LocalOnlyHandler(RequestHandler):
    """A handler that answers this machine's own pages only."""

    def set_default_headers(self) -> None:
        """Allow the page nothing but its connection."""
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Refuse other hosts, origins and tokens."""
        host = self.request.host
        if host not in self.settings["hosts"]:
            raise HTTPError(403, reason="Unknown host")
        if self.request.headers.get("Origin") not in (None, f"http://{host}"):
            raise HTTPError(403, reason="Unknown origin")
        if self.path_args and not secrets.compare_digest(self.path_args[0].encode(), self.settings["token"].encode()):
            raise HTTPError(403, reason="Wrong token")
        self.set_header("Content-Security-Policy", CONTENT.format(host=host))

    def write_error(self, status_code: int, **_: Any) -> None:
        """Say in one line what is wrong."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code} {self._reason}\n")

    @property
    def state(self) -> ServerState:
        """What pages start from."""
        state: ServerState = self.settings["state"]
        return state


class EntryPage(LocalOnlyHandler):
    """The page at an address without the token, which says nothing of the scenario and asks for the token."""

    def get(self) -> None:
        """Send it."""
        text = (FOLDER / "entry.html").read_text(encoding="utf-8")
        self.finish(text.replace("{{SERVER}}", self.settings["server"]))


class LivePage(LocalOnlyHandler):
    """The page with the controls."""

    def get(self, token: str) -> None:
        """Send it."""
        state, texts = self.state, {}
        for name, file in {"LIVESTYLE": "live.css", "CONNECTION": "connection.js", "LIVE": "live.js"}.items():
            texts[name] = (FOLDER / file).read_text(encoding="utf-8")
        more = {
            "files": state.files(), "file": state.file.name, "overrides": state.overrides,
            "server": self.settings["server"],
        }  # fmt: skip
        self.finish(fill(FOLDER / "live.html", [], more=more, TITLE=html.escape(state.file.name), **texts))


class SchedulesPage(LocalOnlyHandler):
    """The page with all schedules."""

    def get(self, token: str) -> None:
        """Send it."""
        self.finish(schedules_page(Sizes(), connected=True))


class PageConnection(LocalOnlyHandler, WebSocketHandler):
    """The connection of one page, with its own process."""

    worker: Worker | None = None

    def prepare(self) -> None:
        """Refuse what a page of this server would not send."""
        if "Origin" not in self.request.headers:
            raise HTTPError(403, reason="Unknown origin")
        super().prepare()

    def check_origin(self, origin: str) -> bool:
        """Whether the origin is this server; `prepare` has refused any other."""
        return origin == f"http://{self.request.host}"

    def open(self, *_: str, **__: str) -> None:
        """Start the process."""
        pages: set[PageConnection] = self.settings["pages"]
        if len(pages) >= MOST_PAGES:
            self.close(TOO_MANY, f"{MOST_PAGES} pages are open; close one of them and reload")
            return
        pages.add(self)
        spare: list[Worker] = self.settings["spare"]
        self.worker = spare.pop()
        self.worker.answered = self._send
        spare.append(warm(self.state))

    def on_message(self, message: str | bytes) -> None:
        """Pass a request on."""
        if self.worker is None:
            return
        try:
            self.worker.ask(Request.of(message))
        except UsageError as error:
            self.close(1008, str(error)[:100])  # a page of ours does not send this

    def on_close(self) -> None:
        """End the process."""
        self.settings["pages"].discard(self)
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def _send(self, text: str) -> None:
        with contextlib.suppress(WebSocketClosedError):  # `on_close` follows
            self.write_message(text)


def warm(state: ServerState) -> Worker:
    """A process for the next page, which begins to load what its first answer needs."""
    worker = Worker(state)
    worker.warm_up()
    return worker


async def serve(state: ServerState, port: int, ready: Callable[[str], None]) -> None:
    """Serve the pages until cancelled.

    Args:
        state: what they start from.
        port: of this machine; 0: any that is free.
        ready: called with the address.

    Raises:
        UsageError: there is no such port, or it is not free.
    """
    if not 0 <= port <= LAST_PORT:
        raise UsageError(f"--port {port}: expected a number from 0 (any that is free) to {LAST_PORT}")
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror or error}") from None
    listening.setblocking(False)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    pages: set[PageConnection] = set()
    spare = [warm(state)]
    handlers: list[Any] = [
        (r"/", EntryPage), (r"/([^/]*)/", LivePage), (r"/([^/]*)/schedules", SchedulesPage),
        (r"/([^/]*)/socket", PageConnection),
    ]  # fmt: skip
    application = Application(
        handlers, state=state, token=token, server=secrets.token_hex(8),
        hosts={f"{HOST}:{port}", f"localhost:{port}"}, pages=pages, spare=spare,
        log_function=lambda handler: None, websocket_max_message_size=MOST_BYTES, default_handler_class=NotFoundHandler,
    )  # fmt: skip
    server = HTTPServer(application, max_body_size=MOST_BYTES, max_header_size=MOST_BYTES)
    server.add_socket(listening)
    try:
        ready(f"http://{HOST}:{port}/{token}/")
        await asyncio.Event().wait()
    finally:
        server.stop()
        for page in list(pages):
            page.on_close()
        for worker in spare:
            worker.stop()


class NotFoundHandler(RequestHandler):
    """What is answered at any other address."""

    def prepare(self) -> None:
        """Refuse it, as if the token were wrong."""
        raise HTTPError(403)
