"""What a router passes on: requests and answers, part by part, and nothing of a connection."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from octavo.route import pool
from tests.route.make import (
    CHAT,
    EVENTS,
    LIMIT,
    MESSAGES,
    FakeServer,
    Request,
    Site,
    chunk,
    response,
    run,
)


def test_a_request_and_its_answer_arrive_as_they_were_sent() -> None:
    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(response(418, b"\x00tea", "Content-Type: text/plain", "X-Own: yes"))

    server = FakeServer(script=script)

    async def work(site: Site) -> None:
        body = b'{"model": "m",  "messages": [] }'
        headers = {"content-type": "application/json", "x-request-id": "mine", "x-own": "a b"}
        answer = await site.post(f"{CHAT}?a=1&b=%20", content=body, headers=headers)
        assert (answer.status_code, answer.content) == (418, b"\x00tea")
        assert answer.headers["content-type"] == "text/plain"
        assert (answer.headers["x-own"], answer.headers["x-request-id"]) == ("yes", "mine")
        (request,) = server.requests
        assert request.line == f"POST {CHAT}?a=1&b=%20 HTTP/1.1"
        assert request.body == body
        assert request.all("host") == [f"127.0.0.1:{server.port}"]
        assert request.all("content-length") == [str(len(body))]
        assert (request.all("x-request-id"), request.all("x-own")) == (["mine"], ["a b"])

    run(work, server)


def test_headers_of_a_connection_stay_behind() -> None:
    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        headers = ("Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: timeout=9")
        writer.write(response(200, b"{}", *headers, "Access-Control-Allow-Origin: *"))

    server = FakeServer(script=script)

    async def work(site: Site) -> None:
        body = b'{"model":"m"}'
        lines = (
            *(f"POST {CHAT} HTTP/1.1", "Host: localhost", "Connection: close, X-Hop", "X-Hop: 1"),
            *("Connection: X-Second", "X-Second: 1"),
            *("TE: trailers", "Upgrade: h2c", "Proxy-Authorization: x", "Keep-Alive: 1"),
            *("X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "Cookie: a=b"),
            *("Transfer-Encoding: chunked", "Trailer: X-Trailer", "", ""),
        )
        reader, writer = await site.raw(
            "\r\n".join(lines).encode() + chunk(body) + b"0\r\nX-Trailer: 1\r\n\r\n"
        )
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        for name in (b"x-hop", b"keep-alive", b"access-control"):
            assert name not in answer.lower()
        (request,) = server.requests
        names = {name for name, _ in request.headers}
        assert names == {"host", "content-length", "x-request-id"}
        assert request.body == body

    run(work, server)


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 13\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 13",
        "Content-Length: 13\r\nContent-Length: 14",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_reaches_no_server(lines: str) -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n"
        reader, writer = await site.raw(head.encode() + b'{"model":"m"}')
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert not server.requests

    run(work, server)


def test_a_stream_is_passed_on_as_it_comes() -> None:
    gate = asyncio.Event()

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + chunk(b"data: 1\n\n"))
        await gate.wait()
        writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    async def work(site: Site) -> None:
        async with site.client.stream("POST", CHAT, json={"stream": True}) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            parts = answer.aiter_raw()
            assert await anext(parts) == b"data: 1\n\n"
            gate.set()
            assert b"".join([each async for each in parts]) == b"data: 2\n\n"

    run(work, FakeServer(script=script))


def test_a_client_that_leaves_ends_its_request_at_the_server() -> None:
    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        if json.loads(request.body).get("stream"):
            writer.write(EVENTS + chunk(b"data: 1\n\n"))
        await asyncio.Event().wait()

    server = FakeServer(script=script)

    async def work(site: Site) -> None:
        async with site.client.stream("POST", CHAT, json={"stream": True}) as answer:
            assert await anext(answer.aiter_raw()) == b"data: 1\n\n"
        await server.until(lambda: server.num_left == 1)
        # Likewise before the answer has begun.
        asking = asyncio.ensure_future(site.post())
        await server.until(lambda: len(server.requests) == 2)
        asking.cancel()
        await server.until(lambda: server.num_left == 2)
        assert site.router.upstreams[0].num_waiting_tokens == 0

    run(work, server)


def test_a_connection_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", LIMIT)
    server = FakeServer()

    async def work(site: Site) -> None:
        before = server.num_connections
        for _ in range(3):
            assert (await site.post()).json() == {"port": server.port}
        assert server.num_connections == before + 1

    run(work, server)


def test_no_bytes_behind_an_answer_reach_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends more than it has announced gets no further request on the connection."""
    monkeypatch.setattr(pool, "IDLE_SECONDS", LIMIT)

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, b"12") + response(200, b"of another"))

    server = FakeServer(script=script)

    async def work(site: Site) -> None:
        before = server.num_connections
        for _ in range(2):
            assert (await site.post()).content == b"12"
        assert server.num_connections == before + 2

    run(work, server)


def test_a_body_that_ends_early_does_not_look_whole() -> None:
    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, b"12", length=5))
        writer.write_eof()

    async def work(site: Site) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await site.post()

    run(work, FakeServer(script=script))


@pytest.mark.parametrize("last", [b"data: 1\n\n", b"", b"data: 1"])
def test_a_stream_that_breaks_off(last: bytes) -> None:
    """An error can follow between two events, within one only the end of the connection."""
    is_whole = last != b"data: 1"

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + (chunk(last) if last else b""))
        writer.write_eof()

    async def work(site: Site) -> None:
        got = b""
        try:
            async with site.client.stream("POST", CHAT, json={"stream": True}) as answer:
                async for part in answer.aiter_raw():
                    got += part
        except httpx.RemoteProtocolError:
            assert not is_whole
            return
        assert is_whole
        error = json.loads(got.removeprefix(last + b"data: "))["error"]
        assert error["code"] == "upstream_failed"

    run(work, FakeServer(script=script))


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_stream_that_the_router_ends(is_whole: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The second signal ends it with an error between two events, and within one without."""
    last = b"data: 1\n\n" if is_whole else b"data: 1"

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + chunk(last))
        await asyncio.Event().wait()

    async def work(site: Site) -> None:
        got = b""
        try:
            async with site.client.stream("POST", CHAT, json={"stream": True}) as answer:
                async for part in answer.aiter_raw():
                    got += part
                    site.life.end()
                    site.life.end()
        except httpx.RemoteProtocolError:
            assert not is_whole
        else:
            assert is_whole
            error = json.loads(got.removeprefix(last + b"data: "))["error"]
            assert error["code"] == "server_shutdown"

    run(work, FakeServer(script=script), drain_seconds=200.0)
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
        writer.write_eof()

    async def work(site: Site) -> None:
        assert (await site.post()).content == b"abc"

    run(work, FakeServer(script=script))


def test_a_large_body_arrives_whole() -> None:
    """A body is several times as large as what is kept anywhere on the way."""
    size = 3_000_000

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, request.body))

    async def work(site: Site) -> None:
        body = json.dumps({"model": "m", "prompt": "x" * size}).encode()
        headers = {"content-type": "application/json"}
        assert (await site.post(content=body, headers=headers)).content == body
        assert site.router.places.num_bytes == 0

    run(work, FakeServer(script=script))


@pytest.mark.parametrize(
    ("path", "named"),
    [("/v1/messages", "error"), ("/api/chat", "error"), ("/v2/chat", "message")],
)
def test_errors_have_the_form_of_their_dialect(path: str, named: str) -> None:
    async def work(site: Site) -> None:
        answer = await site.post(path, json={"model": "nobody", "messages": MESSAGES})
        assert answer.status_code == 404
        assert "nobody" in str(answer.json()[named])

    run(work, FakeServer())


@pytest.mark.parametrize(
    ("content", "param"),
    [(b"[]", None), (b"{", None), (b'{"model": 1}', "model"), (b"", None)],
)
def test_a_body_that_names_nothing_is_refused(content: bytes, param: str | None) -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        answer = await site.post(content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert not server.requests

    run(work, server)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/load_lora_adapter", "/sleep", "/nothing"])
def test_only_known_routes_are_passed_on(path: str) -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        assert (await site.post(path)).status_code == 404
        assert not server.requests

    run(work, server)
