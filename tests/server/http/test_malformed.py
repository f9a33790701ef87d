"""Requests that are not HTTP as this server speaks it: each gets a 4xx in JSON, and no log line."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from octavo.transport import connection
from tests.server import make
from tests.server.http.test_socket import talk
from tests.server.make import LIMIT

listening = partial(make.listening, run=uvloop.run)  # the loop of the real server

POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
KEYS = ("first-secret",)

MALFORMED = (
    # chunks
    CHUNKED + b"x\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"2\r\n{}XX0\r\n\r\n",
    CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"2\n{}\n0\n\n",
    CHUNKED + b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"2\r\n{}\r\n0\r\nTrailer\x00: x\r\n\r\n",
    CHUNKED + b"1\r\n \r\n" * (connection.MAX_CHUNKS + 1),
    # transfer encodings
    POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
    POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: identity\r\n\r\n{}",
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    # lengths
    POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    POST + b"Content-Length: -2\r\n\r\n{}",
    POST + b"Content-Length: 2, 2\r\n\r\n{}",
    POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    POST + b"Content-Length: \xb2\r\n\r\n{}",
    # heads
    b"GET /health\r\n\r\n",
    b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/0.9\r\nHost: localhost\r\n\r\n",
    b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"NOSUCH /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX\x00: y\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n folded\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n: no name\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
)


@pytest.fixture(scope="module")
def port(directory: Path) -> Iterator[int]:
    with (
        pytest.MonkeyPatch.context() as patch,
        listening(directory, header_seconds=LIMIT, body_seconds=LIMIT) as life,
    ):
        patch.setattr("octavo.transport.safe_transport.LINGER_SECONDS", LIMIT)
        yield life.port


@pytest.mark.parametrize("num_bytes", [100_000, 1_000_000])
def test_the_extensions_of_a_chunk_are_bounded(port: int, num_bytes: int) -> None:
    answer = talk(port, CHUNKED + b"2" + b";a=b" * (num_bytes // 4) + b"\r\n{}\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_body_of_one_byte_in_each_chunk_is_served_in_slices(directory: Path) -> None:
    """The parser is never given more than a slice in one pass of the event loop."""
    body = b'{"prompt": "The quick"}' + b" " * 20_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    end = b"0\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with listening(directory) as life:
        slices: list[int] = []
        take = connection.Connection._take

        def note(self: connection.Connection, data: bytes) -> None:
            slices.append(len(data))
            take(self, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection.Connection, "_take", note)
            answer = talk(life.port, CHUNKED + chunks + end)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
        assert max(slices) <= connection.SLICE_BYTES
        assert sum(slices) == len(CHUNKED + chunks + end)


@pytest.mark.parametrize("in_pieces", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("sent", MALFORMED, ids=lambda sent: repr(sent[-60:])[2:-1])
def test_a_malformed_request_gets_a_400_in_json(
    port: int, sent: bytes, in_pieces: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client,
    ):
        size = 7 if in_pieces and len(sent) < 300 else len(sent)
        answer = b""
        try:
            for begin in range(0, len(sent), size):
                client.sendall(sent[begin : begin + size])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has been refused before its end
        while part := client.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer[:200]
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not caplog.records
