"""A real browser, driven over the W3C's WebDriver protocol, with no more than the tests need."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIMIT = 300.0  # seconds that a test waits at most; no test depends on it
DRIVERS = ("chromedriver",)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb"),
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "Right": "\ue014", "Alt": "\ue00a"}


def programs() -> tuple[str, str] | None:
    """Return the paths of the driver and of the browser; None if one is missing."""
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    return None if driver is None or browser is None else (driver, browser)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return what a condition gives as soon as that is true."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not come to this: {what}")


class Browser:
    """One window of a browser that a driver has started."""

    def __init__(self, port: int, session: str) -> None:
        self._port, self._session = port, session

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a command of the session; return its value."""
        return _call(self._port, method, f"/session/{self._session}{path}", body)

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page; return its value."""
        return self.call("POST", "/execute/sync", {"script": script, "args": [*arguments]})

    def find(self, selector: str) -> str:
        """Return an element that is there, or soon will be."""

        def look() -> str | None:
            found = self.call("POST", "/elements", {"using": "css selector", "value": selector})
            return found[0][_ELEMENT] if found else None

        return str(wait_for(look, f"the page has {selector}"))

    def text(self, selector: str) -> str:
        return str(
            self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        )

    def wait(self, script: str, *arguments: Any) -> Any:
        """Wait until the body of a function returns what is true."""
        return wait_for(lambda: self.run(script, *arguments), script)

    def click(self, selector: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is; `Alt+2` holds the first."""
        actions: list[dict[str, str]] = []
        for key in keys:
            parts = [KEYS.get(part, part) for part in key.split("+")] if len(key) > 1 else [key]
            actions += [{"type": "keyDown", "value": part} for part in parts]
            actions += [{"type": "keyUp", "value": part} for part in reversed(parts)]
        board = {"type": "key", "id": "keyboard", "actions": actions}
        self.call("POST", "/actions", {"actions": [board]})

    def point_at(self, selector: str) -> None:
        """Move the pointer onto an element."""
        origin = {_ELEMENT: self.find(selector)}
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": origin}
        self.call(
            "POST", "/actions", {"actions": [{"type": "pointer", "id": "m", "actions": [move]}]}
        )

    def devtools(self, command: str, **parameters: Any) -> Any:
        body = {"cmd": command, "params": parameters}
        return self.call("POST", "/goog/cdp/execute", body)

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        """Give the page a size, as a phone's screen has one."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def scheme(self, name: str) -> None:
        """Let the user prefer light or dark pages."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path: Path) -> None:
        """Write what is seen as a PNG file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def problems(self) -> list[str]:
        """Return what the page has written to the console since the last call, but for infos."""
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [each["message"] for each in entries if each["level"] in ("WARNING", "SEVERE")]


def _call(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        data = None if method == "GET" or method == "DELETE" else json.dumps(body or {})
        connection.request(method, path, data, {"content-type": "application/json"})
        value = json.loads(connection.getresponse().read())["value"]
    finally:
        connection.close()
    if isinstance(value, dict) and "error" in value:
        raise AssertionError(f"{method} {path}: {value['error']}: {value['message'][:500]}")
    return value


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Start a driver and a browser with an empty profile; end both with the block."""
    found = programs()
    assert found is not None, "there is no browser, or no driver of it"
    driver, browser = found
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(lambda: _is_ready(port), "the driver is ready")
            options = {"binary": browser, "args": [*FLAGS, f"--user-data-dir={profile}"]}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            made = _call(port, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            window = Browser(port, made["sessionId"])
            try:
                yield window
            finally:
                window.call("DELETE", "")
        finally:
            process.terminate()
            process.wait(LIMIT)


def _is_ready(port: int) -> bool:
    try:
        return bool(_call(port, "GET", "/status")["ready"])
    except (OSError, http.client.HTTPException):
        return False
