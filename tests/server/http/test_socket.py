"""Real sockets: limits of heads, bodies and connections, slow clients, and the shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.transport.connection import Connection
from octavo.transport.sockets import bind, bind_admin
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, events, listening

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


class Gate:
    """A step function that blocks until `is_open` is set."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.num_steps = 0

    def __call__(self) -> None:
        self.num_steps += 1
        assert self.is_open.wait(LIMIT), "the gate was not opened in time"


def wait_until(condition: Any) -> None:
    """Poll a condition that another thread makes true."""
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, "the condition has not become true in time"
        time.sleep(0.005)


def get(port: int, path: str) -> httpx.Response:
    return httpx.get(url(port, path), timeout=LIMIT)


def post(port: int, path: str, body: Any) -> httpx.Response:
    return httpx.post(url(port, path), json=body, timeout=LIMIT)


def talk(port: int, sent: bytes, *, wait: bool = True) -> bytes:
    """Send raw bytes, and return what the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
        connection.sendall(sent)
        received = b""
        while wait and (part := connection.recv(65536)):
            received += part
        return received


def url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"


def test_no_directory_is_made_for_a_unix_socket(tmp_path: Path) -> None:
    """A directory's permissions decide who may connect, and are the operator's to choose."""
    path = tmp_path / "missing" / "socket"
    with pytest.raises(ServerSettingsError, match=f"there is no directory {path.parent}; create"):
        bind_admin(path)
    with pytest.raises(ServerSettingsError, match="no directory"):
        bind(ServerSettings(uds=path))
    assert not path.parent.exists()


def test_the_size_of_a_head_is_limited(directory: Path) -> None:
    with listening(directory) as life:
        for head in (
            b"x: " + b"y" * 40_000 + b"\r\n",
            b"".join(b"x%d: y\r\n" % index for index in range(80)),
        ):
            answer = talk(
                life.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 431 "), answer[:80]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"]
        long_path = b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert talk(life.port, long_path).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ],
)
def test_bytes_that_are_not_http_get_a_400(directory: Path, sent: bytes) -> None:
    with listening(directory) as life:
        answer = talk(life.port, sent)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"not a valid HTTP request" in answer


def test_a_late_head_gets_a_408(directory: Path) -> None:
    with listening(directory, header_seconds=0.2) as life:
        answer = talk(life.port, b"GET /health HTTP/1.1\r\nHost: loc")
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_late_body_gets_a_408(directory: Path) -> None:
    with listening(directory, body_seconds=0.2) as life:
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
        answer = talk(life.port, head)
        assert answer.startswith(b"HTTP/1.1 408 ")
        wait_until(lambda: life.server.admission.num_open == 0)


def test_the_size_of_a_body_is_limited_with_and_without_a_length(directory: Path) -> None:
    with listening(directory, max_body_bytes=100_000) as life:
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n"
        assert talk(life.port, head).startswith(b"HTTP/1.1 413 ")
        chunked = (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        assert talk(life.port, chunked + chunk * 8).startswith(b"HTTP/1.1 413 ")


def test_single_bytes_do_not_extend_the_time(directory: Path) -> None:
    """The time limit is for a whole head or body, not for the next byte."""
    with listening(directory, header_seconds=0.3, body_seconds=0.3) as life:
        begun = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
        for start in (begun, head):
            with socket.create_connection(("127.0.0.1", life.port), LIMIT) as connection:
                connection.sendall(start)
                connection.settimeout(0.02)
                answer = b""
                until = time.monotonic() + LIMIT
                while time.monotonic() < until:
                    with contextlib.suppress(TimeoutError):
                        answer = connection.recv(4096)
                        break
                    connection.sendall(b"x")
                assert answer.startswith(b"HTTP/1.1 408 "), answer


def test_the_default_limits_are_the_documented_ones() -> None:
    config = ServerSettings()
    assert (config.max_header_bytes, config.max_headers) == (32 << 10, 64)
    assert config.max_body_bytes == 8 << 20
    assert (config.max_connections, config.max_connections_per_client) == (4096, 512)
    assert (config.header_seconds, config.body_seconds, config.idle_seconds) == (10, 30, 75)
    assert config.template_seconds == 2
    assert not config.log_prompts
    assert not config.trust_request_chat_template


def test_expect_100_continue_is_answered(directory: Path) -> None:
    with listening(directory) as life:
        body = b'{"prompt": "x"}'
        head = (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        answer = talk(life.port, head + body)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_the_number_of_connections_is_limited(directory: Path) -> None:
    with listening(directory, max_connections_per_client=2) as life:
        held = [socket.create_connection(("127.0.0.1", life.port), LIMIT) for _ in range(2)]
        wait_until(lambda: life.num_connections == 2)
        answer = talk(life.port, b"", wait=True)
        assert answer.startswith(b"HTTP/1.1 429 ")
        for connection in held:
            connection.close()
        wait_until(lambda: life.num_connections == 0)
        assert get(life.port, "/health").status_code == 200
    with listening(directory, max_connections=1) as life:
        connection = socket.create_connection(("127.0.0.1", life.port), LIMIT)
        wait_until(lambda: life.num_connections == 1)
        assert talk(life.port, b"").startswith(b"HTTP/1.1 503 ")
        connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_blocks(directory: Path, stream: bool) -> None:
    gate = Gate()
    engine = FakeEngine(directory, max_model_len=2000, runner=ChainRunner(gate))
    free = engine.core.scheduler.kv.pool.num_free
    with listening(directory, engine) as life:
        body = json.dumps({"prompt": "x", "max_tokens": 1500, "stream": stream}).encode()
        connection = socket.create_connection(("127.0.0.1", life.port), LIMIT)
        connection.sendall(HEAD % len(body) + body)
        wait_until(lambda: gate.num_steps == 1)
        assert life.server.admission.num_admitted == 1
        connection.close()
        wait_until(lambda: not (life.server.admission.num_open or life.server.active))
        gate.is_open.set()
        wait_until(lambda: not engine.core.scheduler.sequences)
        assert gate.num_steps <= 3, "the request ended with its client"
        assert engine.core.scheduler.kv.pool.num_free == free
        wait_until(lambda: life.server.metrics.disconnects.value() == 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_reads_nothing_is_disconnected(directory: Path, stream: bool) -> None:
    """The client is disconnected within its stream, and after the last write of a response."""
    engine = FakeEngine(directory, max_model_len=12_000, num_blocks=4000)
    with listening(directory, engine, stall_seconds=0.3) as life:
        body = json.dumps(
            {"prompt": "x", "max_tokens": 11_000, "stream": stream, "logprobs": 20}
        ).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", life.port))
        connection.sendall(HEAD % len(body) + body)
        wait_until(lambda: life.server.metrics.slow_readers.value() == 1)
        wait_until(lambda: not engine.core.scheduler.sequences)
        assert get(life.port, "/health").status_code == 200
        connection.close()


def test_256_streams_at_once(directory: Path) -> None:
    """Every stream is complete and belongs to its own request."""
    engine = FakeEngine(directory, max_num_seqs=256, num_blocks=4096)
    with listening(directory, engine) as life:

        async def ask(index: int) -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", life.port)
            sent = {"prompt": [2 + index, 5], "max_tokens": 8, "temperature": 0, "stream": True}
            body = json.dumps(sent).encode()
            writer.write(HEAD % len(body) + body)
            received = await reader.readuntil(b"[DONE]")
            writer.close()
            await writer.wait_closed()
            frames = [line for line in received.splitlines() if line.startswith(b"data: {")]
            chunks = [json.loads(frame[6:]) for frame in frames]
            assert chunks[-1]["choices"][0]["finish_reason"] == "length"
            return "".join(c["text"] for e in chunks for c in e["choices"])

        async def main() -> None:
            texts = await asyncio.gather(*map(ask, range(256)))
            assert len(set(texts)) > 200
            for index in (0, 100, 255):
                assert await ask(index) == texts[index]

        asyncio.run(main())


@pytest.mark.parametrize("drain_seconds", [0.0, 0.3])
def test_draining_ends_every_stream_with_an_error(directory: Path, drain_seconds: float) -> None:
    gate = Gate()
    engine = FakeEngine(directory, runner=ChainRunner(gate))
    with listening(directory, engine, drain_seconds=drain_seconds, status_seconds=0.01) as life:
        body = {"prompt": "x", "max_tokens": 5, "stream": True}
        received: list[Any] = []
        has_begun = threading.Event()

        def ask() -> None:
            where = url(life.port, "/v1/completions")
            with httpx.stream("POST", where, json=body, timeout=LIMIT) as response:
                has_begun.set()
                response.read()
            received.append(events(response.text))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: gate.num_steps == 1)
        assert has_begun.wait(LIMIT)  # later its error has a status of its own
        life.server.is_draining = True  # as the first signal does
        assert get(life.port, "/health/ready").status_code == 503
        assert get(life.port, "/health/live").status_code == 200
        refused = post(life.port, "/v1/completions", body)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_shutdown"
        assert "retry-after" in refused.headers
        life.end_from_outside()
        thread.join(LIMIT)
        assert received[0][-1]["error"]["code"] == "server_shutdown"
        gate.is_open.set()


def test_running_requests_may_finish_while_draining(directory: Path) -> None:
    gate = Gate()
    engine = FakeEngine(directory, runner=ChainRunner(gate))
    with listening(directory, engine, drain_seconds=LIMIT) as life:
        body = {"prompt": "x", "max_tokens": 5, "temperature": 0}
        received: list[Any] = []

        def ask() -> None:
            received.append(post(life.port, "/v1/completions", body))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: gate.num_steps == 1)
        life.end_from_outside()
        wait_until(lambda: life.server.is_draining)
        gate.is_open.set()
        thread.join(LIMIT)
        assert received[0].status_code == 200
        assert received[0].json()["usage"]["completion_tokens"] == 5


PROGRAM = """
import sys
from pathlib import Path
from octavo.options.server import ServerSettings
from octavo.transport.connection import Connection
from octavo.server.lifecycle import run
from tests.server.engine import FakeEngine

admin = Path(sys.argv[2])
engine = FakeEngine(Path(sys.argv[1]))
code = run(ServerSettings(port=0, admin_socket=admin, drain_seconds=300, body_seconds=300), engine)
print("code", code, flush=True)
import os
os._exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_signals", [1, 2])
def test_signals_end_the_process_with_0(directory: Path, tmp_path: Path, num_signals: int) -> None:
    root = Path(__file__).parents[3]
    admin = tmp_path / "run" / "admin.sock"
    admin.parent.mkdir(mode=0o700)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), str(admin)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )
    held = None
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        port = int(ready.rpartition(":")[2])
        assert "Octavo serves tiny at http://127.0.0.1:" in ready
        assert get(port, "/health").status_code == 200
        assert oct(os.stat(admin).st_mode)[-3:] == "600"
        transport = httpx.HTTPTransport(uds=str(admin))
        base = "http://localhost"
        with httpx.Client(transport=transport, base_url=base, timeout=LIMIT) as client:
            assert client.get("/in_flight").json() == {"in_flight": []}
        if num_signals == 2:  # an open request would delay the end of the drain
            body = json.dumps({"prompt": "x"}).encode()[:-1]
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
            held = socket.create_connection(("127.0.0.1", port), LIMIT)
            held.sendall(head + body)
            wait_until(
                lambda: re.search(r"octavo:queue_requests{.*} 1", get(port, "/metrics").text)
            )
        process.send_signal(signal.SIGTERM)
        if num_signals == 2:
            wait_until(lambda: get(port, "/health").status_code == 503)
            process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
        assert not admin.exists()
    finally:
        if held is not None:
            held.close()
        process.stdout.close()
        process.kill()
        process.wait()


def test_a_request_is_freed_with_its_response(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References alone free it, without the collector, while the connection stays open."""
    responses: list[weakref.ref[Any]] = []
    begin = Connection.on_headers_complete

    def note(self: Connection) -> None:
        begin(self)
        responses.append(weakref.ref(self._newest))

    monkeypatch.setattr(Connection, "on_headers_complete", note)
    body = {"prompt": "x", "max_tokens": 3, "stream": True}
    gc.disable()
    try:
        with listening(directory) as life, httpx.Client(timeout=LIMIT) as client:
            for _ in range(3):
                assert events(client.post(url(life.port, "/v1/completions"), json=body).text)
            wait_until(lambda: [each() for each in responses[:2]] == [None, None])
            assert len(responses) == 3
    finally:
        gc.enable()
