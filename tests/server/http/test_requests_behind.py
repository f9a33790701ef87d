"""Requests behind one that is being answered, and clients that leave or end their input then."""

from __future__ import annotations

import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from octavo.transport import connection
from tests.server import make
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.http.test_socket import HEAD, Gate, get, talk, wait_until
from tests.server.make import LIMIT, events

listening = partial(make.listening, run=uvloop.run)  # the loop of the real server

BEHIND = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


def generation(stream: bool = False, max_tokens: int = 1500) -> bytes:
    """Return the bytes of a request to generate."""
    fields = {"prompt": "x", "max_tokens": max_tokens, "temperature": 0, "stream": stream}
    body = json.dumps(fields).encode()
    return HEAD % len(body) + body


def gated(directory: Path) -> tuple[Gate, FakeEngine]:
    """Return an engine whose first step waits for the gate."""
    gate = Gate()
    return gate, FakeEngine(directory, max_model_len=2000, runner=ChainRunner(gate))


def received(connection: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "behind",
    [
        BEHIND,
        BEHIND * 3,
        BEHIND * (connection.MAX_PIPELINED + 5),
        generation(),
        b"GET /v1/mod",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" + b" " * 99,
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
        + b" " * 800_000,
        b"NONSENSE\r\n\r\n",
    ],
    ids=["one", "three", "many", "another", "a part", "a begun body", "a long body", "nonsense"],
)
def test_a_disconnect_ends_the_request_whatever_is_behind_it(
    directory: Path, behind: bytes, stream: bool
) -> None:
    gate, engine = gated(directory)
    with listening(directory, engine) as life:
        with socket.create_connection(("127.0.0.1", life.port), LIMIT) as client:
            client.sendall(generation(stream))
            wait_until(lambda: gate.num_steps == 1)
            client.sendall(behind)
        wait_until(lambda: not (life.server.admission.num_open or life.server.active))
        gate.is_open.set()
        wait_until(lambda: not engine.core.scheduler.sequences)
        assert gate.num_steps <= 3, "the request ended with its client"
        wait_until(lambda: life.num_connections == 0)


def test_requests_are_answered_in_order(directory: Path) -> None:
    with listening(directory) as life:
        closing = BEHIND.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        answer = talk(life.port, generation(max_tokens=3) + BEHIND * 3 + closing)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 5
        assert answer.index(b"text_completion") < answer.index(b'"object":"list"')


def test_more_requests_than_may_wait_are_not_read(directory: Path) -> None:
    """The responses that are due are complete, then the connection is closed."""
    gate, engine = gated(directory)
    with listening(directory, engine) as life:
        with socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client:
            client.sendall(generation(max_tokens=3) + BEHIND * 100)
            wait_until(lambda: gate.num_steps == 1)
            gate.is_open.set()
            answer = received(client)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 1 + connection.MAX_PIPELINED


def test_nonsense_behind_a_request_gets_its_400_after_the_response(directory: Path) -> None:
    gate, engine = gated(directory)
    with listening(directory, engine) as life:
        with socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client:
            client.sendall(generation(max_tokens=3) + BEHIND + b"NONSENSE\r\n\r\n" + BEHIND)
            wait_until(lambda: gate.num_steps == 1)
            gate.is_open.set()
            answer = received(client)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
        before, _, last = answer.partition(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"text_completion" in before
        assert json.loads(last.partition(b"\r\n\r\n")[2])["error"]["type"]


def texts(answer: bytes) -> Any:
    """Return the status line and the body of a response, or the text of a stream."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), answer[:200]
    if b"transfer-encoding: chunked" not in head:
        return json.loads(body)["choices"][0]["text"]
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    chunks = events(whole.decode())
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_probes", [0, 2, 8])
def test_a_client_that_ends_its_input_gets_the_whole_answer(
    directory: Path, stream: bool, num_probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the server tried in the meantime whether the client still reads."""
    monkeypatch.setattr("octavo.transport.half_close._PAUSES", (0.001,) * num_probes)
    gate, engine = gated(directory)
    with listening(directory, engine, status_seconds=0.01) as life:
        with socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client:
            client.sendall(generation(stream, max_tokens=20))
            wait_until(lambda: gate.num_steps == 1)
            client.shutdown(socket.SHUT_WR)
            first = client.recv(1) + (client.recv(1) if num_probes else b"")
            gate.is_open.set()
            answer = first + received(client)
        gate.num_steps = 0
        closing = generation(stream, max_tokens=20).replace(
            b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1
        )
        assert texts(answer) == texts(talk(life.port, closing)) != ""
        wait_until(lambda: life.num_connections == 0)


def test_a_client_that_ends_its_input_gets_the_answers_to_all_its_requests(directory: Path) -> None:
    gate, engine = gated(directory)
    with listening(directory, engine) as life:
        with socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client:
            client.sendall(generation(max_tokens=2) + generation(max_tokens=3) + BEHIND)
            client.shutdown(socket.SHUT_WR)
            wait_until(lambda: gate.num_steps == 1)
            gate.is_open.set()
            answer = received(client)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
        assert get(life.port, "/health").status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\nHost: loc",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
def test_a_request_that_ends_early_gets_a_400(directory: Path, sent: bytes) -> None:
    with (
        listening(directory) as life,
        socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client,
    ):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = received(client)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"ended before it was complete" in answer
        wait_until(lambda: life.server.admission.num_open == 0)
