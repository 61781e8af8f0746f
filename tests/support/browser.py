"""A headless Chromium that is used as by a person, over its DevTools protocol.

`apt-get install chromium` is enough.
"""

import asyncio
import base64
import itertools
import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from urllib.request import Request, urlopen

from tornado.websocket import websocket_connect

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--window-size=1400,1000")  # fmt: skip
LONGEST_S = 60
MOST_BYTES = 2**26  # of a screenshot
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "PageUp": 33, "End": 35, "Tab": 9, "z": 90}
CONTROL = 2


@contextmanager
def browser(folder):
    """A browser; ends with the block."""
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stderr.readline, "")
        port = next(found[1] for line in lines if (found := re.search(r"ws://127\.0\.0\.1:(\d+)/", line)))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_S)


class Tab:
    """One tab of a browser: what it shows, what it asked the network for, and what went wrong in it."""

    def __init__(self, where):
        self._loop = asyncio.new_event_loop()
        with urlopen(Request(f"{where}/json/new?about:blank", method="PUT")) as answer:
            page = json.load(answer)
        self._numbers = itertools.count(1)
        self._socket = self._do(lambda: websocket_connect(page["webSocketDebuggerUrl"], max_message_size=MOST_BYTES))
        self.requests, self.wrong = [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def _do(self, work):
        async def limited():
            return await asyncio.wait_for(work(), LONGEST_S)

        return self._loop.run_until_complete(limited())

    def send(self, method, **parameters):
        """Send a command of the protocol; events that arrive before its answer are noted."""
        number = next(self._numbers)
        text = json.dumps({"id": number, "method": method, "params": parameters})
        self._do(lambda: self._socket.write_message(text))
        while True:
            message = json.loads(self._do(self._socket.read_message))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message):
        kind, facts = message.get("method"), message.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif kind == "Network.webSocketCreated":
            self.requests.append(facts["url"])
        elif kind == "Runtime.exceptionThrown":
            self.wrong.append(facts["exceptionDetails"])
        elif kind == "Log.entryAdded":
            self.wrong.append(facts["entry"]["text"])

    def run(self, script):
        """The value of a script, which may be a promise."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition):
        """Wait until a script is true, looking at every frame that the page draws."""
        look = f"const look = () => ({condition}) ? done() : setTimeout(look, 10); look();"
        self.run(f"new Promise((done) => {{ {look} }})")

    def open(self, address):
        """Go to a page, which is read anew, and wait until it has drawn."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && document.body.dataset.ready")

    def press(self, key, control=False):
        """Press a key on whatever has the focus."""
        facts = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": CONTROL if control else 0}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **facts)

    def drag(self, selector, shares):
        """Drag the handle of a slider to shares of its width, one after the other."""
        left, top, wide, high = self.run(f"""(() => {{
            const slider = document.querySelector('{selector}');
            slider.scrollIntoView({{ block: "center" }});
            const {{ left, top, width, height }} = slider.getBoundingClientRect();
            return [left, top, width, height];
        }})()""")
        for place, share in enumerate(shares):
            kind = "mouseMoved" if place else "mousePressed"
            point = {"x": left + 8 + share * (wide - 16), "y": top + high / 2}  # the handle is 16 pixels wide
            self.send("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **point)
            yield share
        self.send("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **point)

    def screen(self, width, height, dark=False):
        """Set the size of the screen, and whether the person prefers dark pages."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def picture(self, file):
        """Write what is seen to a PNG file."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def close(self):
        """Forget the tab."""
        self.send("Page.close")

        async def closed():
            while await self._socket.read_message() is not None:
                pass
            self._socket.close()

        self._do(closed)
        self._loop.close()
