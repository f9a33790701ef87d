"""Servers of the default model in processes of their own, and load for them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from octavo.options import DEFAULT_MODEL
from tests.console.browser import LIMIT

# A small engine, so that a few requests fill it.
OPTIONS = (
    *("--port", "0", "--max-num-seqs", "4", "--max-model-len", "1024"),
    *("--num-gpu-blocks-override", "300"),
)


class Server:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.rpartition(":")[2])

    def kill_engine(self) -> None:
        """End the engine's process as the kernel would that needs its memory."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                line = (path / "cmdline").read_bytes()
                if parent == self.process.pid and b"octavo.engine.process" in line:
                    os.kill(int(path.name), signal.SIGKILL)


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Server]:
    """Serve until the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", "serve", DEFAULT_MODEL, *OPTIONS, *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"the server has not started: {line!r}"
        yield Server(process, found[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT)
        process.stdout.close()


def ask(port: int, name: str, **fields: object) -> threading.Thread:
    """Send a request of this id in a thread, which ends with the answer."""

    def send() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        text = f"{name}: " + "The press stood in the corner of the printer's shop. " * 8
        body = {
            "messages": [{"role": "user", "content": text}],
            "ignore_eos": True,
            "stream": True,
            **fields,
        }
        headers = {"content-type": "application/json", "x-request-id": name}
        with contextlib.suppress(OSError, http.client.HTTPException):  # the server has ended
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            connection.getresponse().read()
        connection.close()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread
