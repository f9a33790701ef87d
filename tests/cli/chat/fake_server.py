"""A server with OpenAI's chat completions for tests: scripted answers, and the requests it got."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIMIT = 300.0  # seconds, against hanging
HOLD = object()  # in a script: nothing more is sent until the client has left
BREAK = object()  # in a script: the stream ends here
USAGE = {
    "prompt_tokens": 27,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 16},
}


def delta(**parts: Any) -> dict[str, Any]:
    """Return a chunk with these parts of an answer."""
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": None}]}


def texts(*pieces: str) -> list[Any]:
    """Return the chunks of a whole answer."""
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [*(delta(content=piece) for piece in pieces), end, {"choices": [], "usage": USAGE}]


def call(name: str, arguments: str) -> list[Any]:
    """Return the chunks of an answer that calls a function; its arguments come in two parts."""
    middle = len(arguments) // 2
    head = {"index": 0, "id": "abc123def", "function": {"name": name, "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": arguments[:middle]}}]
    parts.append({"index": 0, "function": {"arguments": arguments[middle:]}})
    return [delta(tool_calls=[each]) for each in (head, *parts)]


class FakeServer(ThreadingHTTPServer):
    """The server; each request takes the next script, and the last one is repeated."""

    daemon_threads = True

    def __init__(self, *scripts: Any, models: Sequence[str] = ("tiny",), status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scripts, self.models, self.answer_status = list(scripts), models, status
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.holds = threading.Event()  # a client waits for more
        self.was_left = threading.Event()

    @property
    def url(self) -> str:
        """The address that `--url` takes."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_script(self) -> Any:
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, format: str, *values: Any) -> None:
        """Write nothing to standard error."""

    def do_GET(self) -> None:
        listed = {"data": [{"id": name} for name in self.server.models]}
        self._whole(200 if self.server.models else 404, listed)

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        length = int(self.headers["content-length"])
        self.server.bodies.append(json.loads(self.rfile.read(length)))
        self.server.keys.append(self.headers["authorization"])
        script = self.server.next_script()
        if isinstance(script, dict):
            self._whole(self.server.answer_status, script)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for each in script:
            if each is HOLD:
                self._hold()
                return
            if each is BREAK:
                return
            self.wfile.write(b"data: " + json.dumps(each).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def _hold(self) -> None:
        self.server.holds.set()
        self.connection.settimeout(LIMIT)
        with contextlib.suppress(ConnectionResetError):  # it has left unread what came last
            assert self.connection.recv(1) == b""
        self.server.was_left.set()

    def _whole(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(*scripts: Any, **options: Any) -> Iterator[FakeServer]:
    """Serve until the block is left."""
    server = FakeServer(*scripts, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(LIMIT)
        server.server_close()
