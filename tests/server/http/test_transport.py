"""The end of a connection: errors for a client that still sends, and writes after the end."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from octavo.transport.safe_transport import SafeTransport
from tests.server import make
from tests.server.http.test_requests_behind import gated, generation
from tests.server.http.test_socket import wait_until
from tests.server.make import LIMIT

listening = partial(make.listening, run=uvloop.run)  # the loop of the real server

CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (CHUNKED + b"20000\r\n" + b" " * 0x20000 + b"\r\n", 413),
        (CHUNKED + b"nonsense\r\n", 400),
        (CHUNKED.replace(b"chunked", b"gzip"), 400),
        (CHUNKED.replace(b"tokenize", b"nowhere"), 404),
        (CHUNKED.replace(b"Host", b"Content-Encoding: gzip\r\nHost"), 415),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"NONSENSE\r\n\r\n", 400),
    ],
)
def test_a_client_that_still_sends_reads_its_error(
    directory: Path, sent: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on to read after its response; to close would reset the connection."""
    monkeypatch.setattr("octavo.transport.safe_transport.LINGER_SECONDS", LIMIT)
    with listening(directory, max_body_bytes=100_000) as life:
        with socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client:
            client.sendall(sent)
            answer = b""
            while part := client.recv(65536):
                answer += part
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:100]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"]
            for _ in range(40):
                client.sendall(b" " * 100_000)
        wait_until(lambda: life.num_connections == 0)


def test_a_connection_does_not_linger_for_ever(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.transport.safe_transport.LINGER_SECONDS", 0.01)
    with (
        listening(directory) as life,
        socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client,
    ):
        client.sendall(CHUNKED + b"nonsense\r\n")
        wait_until(lambda: life.num_connections == 0)
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_the_end_of_the_server_ends_lingering_connections(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.transport.safe_transport.LINGER_SECONDS", LIMIT)
    with listening(directory) as life:
        client = socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT)
        client.sendall(CHUNKED + b"nonsense\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")
        assert life.num_connections == 1
    assert life.num_connections == 0
    client.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_reset_ends_the_request_without_a_trace(
    directory: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gate, engine = gated(directory)
    with caplog.at_level(logging.WARNING), listening(directory, engine) as life:
        client = socket.create_connection(("127.0.0.1", life.port), LIMIT)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(generation(stream))
        wait_until(lambda: gate.num_steps == 1)
        gate.is_open.set()
        client.close()
        wait_until(lambda: life.server.admission.num_open == 0)
        wait_until(lambda: not engine.core.scheduler.sequences)
    assert not caplog.records


class Closed(asyncio.Transport):
    """A transport as uvloop's after a write that failed: every use of it raises."""

    def is_closing(self) -> bool:
        return True

    def __getattribute__(self, name: str) -> Any:
        if name in ("is_closing", "__class__", "get_extra_info", "abort"):
            return super().__getattribute__(name)
        raise RuntimeError("unable to perform operation; the handler is closed")


def test_nothing_is_done_with_a_transport_that_is_closed() -> None:
    loop = asyncio.new_event_loop()
    transport = SafeTransport(Closed(), loop, lambda: True)
    transport.write(b"x")
    transport.close()
    transport.pause_reading()
    transport.resume_reading()
    assert transport.is_closing()
    assert transport.get_write_buffer_size() == 0
    loop.close()
