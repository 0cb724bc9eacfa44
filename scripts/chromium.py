"""Drives a headless Chromium through a pipe: pages, keys, pictures, and what its console says.

The DevTools protocol, as JSON between two file descriptors, each message ended by a zero byte. Used
by scripts/report_picture.py, benchmarks/report.py and the tests of the report.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CODES = {"Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowUp": 38, "ArrowDown": 40}
LIMIT = 60.0  # seconds for an answer


def find() -> str | None:
    """The browser's path, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one page. A context manager. `said`: errors and warnings of the page."""

    def __init__(self, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        path = find()
        if path is None:
            raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
        self.said: list[str] = []
        self.requests: list[str] = []  # addresses that the page asked for
        self._number, self._data, self._loaded = 0, b"", False
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        self._process, self._in, self._out = _start(
            [
                path,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._profile}",
            ]
        )
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, url: str) -> None:
        for address in ("about:blank", url):  # another part of the same page is not loaded anew
            self._loaded = False
            self._call("Page.navigate", url=address)
            end = time.monotonic() + LIMIT
            while not self._loaded:
                self._message(end)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is, or the promise of one. Raises RuntimeError where it
        fails."""
        how = {"returnByValue": True, "awaitPromise": True}
        told = self._call("Runtime.evaluate", expression=expression, **how)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {json.dumps(told['exceptionDetails'])[:500]}")
        return told["result"].get("value")

    def press(self, key: str) -> None:
        typed = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": CODES[key]}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **typed)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, *steps: tuple[str, float, float], clicks: int = 1) -> None:
        """`steps`: what the mouse does (Pressed, Moved, Released) at x and y, in CSS pixels."""
        for what, x, y in steps:
            held = {"button": "left", "buttons": 1, "clickCount": clicks}
            more = held if what != "Moved" else {"buttons": 1}
            self._call("Input.dispatchMouseEvent", type=f"mouse{what}", x=x, y=y, **more)

    def picture(self, path: Path, format: str = "png", **options: Any) -> None:
        told = self._call("Page.captureScreenshot", format=format, **options)
        path.write_bytes(base64.b64decode(told["data"]))

    def paper(self, path: Path) -> None:
        told = self._call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        end = time.monotonic() + LIMIT
        while True:
            told = self._message(end)
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                result: dict[str, Any] = told["result"]
                return result

    def _message(self, end: float) -> dict[str, Any]:
        """The next message. Raises RuntimeError when none comes in time or the browser is gone."""
        while b"\0" not in self._data:
            ready = select.select([self._in], [], [], max(end - time.monotonic(), 0))[0]
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer" if not ready else "it has ended")
            self._data += data
        line, _, self._data = self._data.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        self._event(told.get("method", ""), told.get("params", {}))
        return told

    def _event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"])[:1000])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.said.append(json.dumps(params["args"])[:1000])


def _start(command: list[str]) -> tuple[int, int, int]:
    """The browser's pid, and the ends to read from it and to write to it. It has 3 and 4 for its
    own ends."""
    theirs, ours = [], []
    for end in (0, 1):
        pipe = os.pipe()
        # out of the way of 3 and 4
        theirs.append(fcntl.fcntl(pipe[end], fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(pipe[end])
        ours.append(pipe[1 - end])
    files = [
        *((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)),
        (os.POSIX_SPAWN_DUP2, theirs[0], 3),
        (os.POSIX_SPAWN_DUP2, theirs[1], 4),
    ]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=files)
    for end in theirs:
        os.close(end)
    return pid, ours[1], ours[0]
