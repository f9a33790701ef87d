"""Heads, trailers and offers of other protocols; names from a body in the headers of a response."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from octavo.serving.exchange import Exchange
from octavo.transport.route import Route
from tests.server import make
from tests.server.http.test_socket import talk, url
from tests.server.make import LIMIT, Client, serving

listening = partial(make.listening, run=uvloop.run)  # the loop of the real server

KEY = "first-secret"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "trailer",
    [
        b"Authorization: Bearer first-secret\r\n",
        b"X-Api-Key: first-secret\r\n",
        b"A: b\r\nAuthorization: Bearer first-secret\r\nC: d\r\n",
    ],
)
def test_a_key_in_a_trailer_gives_no_access(directory: Path, trailer: bytes) -> None:
    """Neither to its own request nor to the next one on the connection."""
    body = b'{"prompt": "x"}'
    chunk = b"\r\n%x\r\n%b\r\n0\r\n" % (len(body), body) + trailer + b"\r\n"
    after = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with listening(directory, api_keys=(KEY,)) as life:
        assert talk(life.port, CHUNKED + chunk).startswith(b"HTTP/1.1 401 ")
        answer = talk(life.port, CHUNKED + b"X-Api-Key: first-secret\r\n" + chunk + after)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1 401 ") == 1


def test_other_headers_in_a_trailer_are_ignored_too(directory: Path) -> None:
    body = b'{"prompt": "x"}'
    trailer = b"Host: evil.example\r\nOrigin: https://evil.example\r\nExpect: 100-continue\r\n\r\n"
    sent = CHUNKED + b"Connection: close\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body) + trailer
    with listening(directory) as life:
        assert talk(life.port, sent).startswith(b"HTTP/1.1 200 OK\r\n")


def test_trailers_are_bounded_as_heads_are(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.transport.safe_transport.LINGER_SECONDS", LIMIT)
    with listening(directory, body_seconds=LIMIT) as life:
        for trailers in (
            b"x: y\r\n" * 80,
            b"x: " + b"y" * 40_000 + b"\r\nx: y\r\n",
            b"x: " + b"y" * 4_000_000,
            b"x: " + b"y" * 100_000,
        ):
            answer = talk_to_the_end(life.port, CHUNKED + b"\r\n2\r\n{}\r\n0\r\n" + trailers)
            assert answer.startswith(b"HTTP/1.1 431 "), answer[:80]


def talk_to_the_end(port: int, sent: bytes) -> bytes:
    """Send raw bytes, some of which may come too late, and return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client:
        with contextlib.suppress(OSError):
            client.sendall(sent)
        received = b""
        while part := client.recv(65536):
            received += part
        return received


@pytest.mark.parametrize(
    "offer",
    [
        # Java's HttpClient sends this with its first request.
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIA\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.0\r\n",
    ],
)
@pytest.mark.parametrize("is_chunked", [True, False])
def test_an_offer_of_another_protocol_is_ignored(
    directory: Path, offer: bytes, is_chunked: bool
) -> None:
    """The request is answered in HTTP/1.1, with its body, and so is the next one."""
    body = b'{"prompt": "The quick"}'
    if is_chunked:
        framing = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        framing = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    sent = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + offer + framing
    after = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with listening(directory) as life:
        answer = talk(life.port, sent + sent + after)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3, answer
        assert answer.count(b'"tokens":') == 2


@pytest.mark.parametrize(
    "name",
    ["new\n", "a\r\nset-cookie: x=y", "\x00", "é", "a,b", "a b", "\x7f", "%41", "😀" * 300, ""],
)
def test_any_name_of_an_unknown_field_is_reported(directory: Path, name: str) -> None:
    with listening(directory) as life:
        body: dict[str, Any] = {"prompt": "x", "max_tokens": 1, name: 1}
        response = httpx.post(url(life.port, "/v1/completions"), json=body, timeout=LIMIT)
        assert response.status_code == 200
        reported = response.headers["x-octavo-unknown-fields"]
        assert reported.isascii()
        assert reported.isprintable()
        assert "," not in reported
        assert "set-cookie" not in response.headers


def test_no_value_of_a_header_makes_a_response_impossible(directory: Path) -> None:
    """Bytes that a header may not contain are escaped, from whatever route they come."""
    value = bytes(range(256))

    async def handle(exchange: Exchange) -> None:
        await exchange.respond(b"{}", headers=[(b"x-value", value)])

    async def main() -> None:
        async with serving(directory) as client:
            routes = [Route("GET", "/value", handle, "A value.")]
            async with Client(client.server, routes) as other:
                response = await other.get("/value")
                found = dict(response.headers.raw)[b"x-value"]
                assert not any((byte < 32 and byte != 9) or byte == 127 for byte in found)
                assert found.startswith(b"%00%01")
                assert json.loads(response.text) == {}

    asyncio.run(main())
