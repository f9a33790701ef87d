"""When a request is given to another server, and what a client gets when none answers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import uvloop

from octavo.route import upstream
from tests.route.make import LIMIT, FakeServer, Request, Script, Site, response, routing, run


@pytest.fixture
def _long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server that has failed be paused for as long as a test lasts."""
    monkeypatch.setattr(upstream, "FIRST_PAUSE_SECONDS", LIMIT)
    monkeypatch.setattr(upstream, "MOST_PAUSE_SECONDS", LIMIT)


def saying(data: bytes, *, ends: bool = False) -> Script:
    """Return a script that writes bytes, and perhaps ends the connection."""

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if ends:
            writer.write_eof()

    return script


BUSY = response(503, b'{"busy": true}', "Retry-After: 7")


@pytest.mark.usefixtures("_long_pauses")
def test_a_server_that_refuses_connections_is_passed_over() -> None:
    first, second = FakeServer(), FakeServer()

    async def work(site: Site) -> None:
        first.stop()
        assert (await site.post()).json() == {"port": second.port}
        assert site.router.upstreams[0].state() == "paused"
        second.stop()

    run(work, first, second)


def test_no_server_can_be_reached() -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        server.stop()
        answer = await site.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")

    run(work, server)


def test_a_server_that_is_busy_is_passed_over() -> None:
    first, second = FakeServer(script=saying(BUSY)), FakeServer()

    async def work(site: Site) -> None:
        assert (await site.post()).json() == {"port": second.port}
        assert (len(first.requests), len(second.requests)) == (1, 1)
        assert b'octavo:route_retries_total{reason="refused"} 1.0' in site.router.metrics.text()

    run(work, first, second)


def test_the_answer_of_the_last_busy_server_is_passed_on() -> None:
    """A request is given to three servers at most, to each of them once."""
    servers = [FakeServer(script=saying(BUSY)) for _ in range(5)]

    async def work(site: Site) -> None:
        answer = await site.post()
        assert (answer.status_code, answer.json()) == (503, {"busy": True})
        assert answer.headers["retry-after"] == "7"
        assert sorted(len(each.requests) for each in servers) == [0, 0, 1, 1, 1]

    run(work, *servers)


@pytest.mark.parametrize("status", [500, 503, 429, 404])
def test_other_errors_are_passed_on(status: int) -> None:
    """A server may have begun where it does not say when to come again."""
    servers = [FakeServer(script=saying(response(status, b"{}"))) for _ in range(2)]

    async def work(site: Site) -> None:
        assert (await site.post()).status_code == status
        assert sorted(len(each.requests) for each in servers) == [0, 1]

    run(work, *servers)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\nx: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 " + b"O" * 200_000,
    ],
)
def test_what_is_no_answer_is_an_error_and_is_not_tried_again(data: bytes) -> None:
    """The server has taken the request, and may have begun it."""
    servers = [FakeServer(script=saying(data, ends=True)) for _ in range(2)]

    async def work(site: Site) -> None:
        answer = await site.post()
        assert answer.status_code == 502
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("upstream_failed", "server_error")
        assert sum(len(each.requests) for each in servers) == 1

    run(work, *servers)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Wait\r\n\r\n" + response(200, b"{}"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_rare_answers_that_are_valid(data: bytes) -> None:
    async def work(site: Site) -> None:
        answer = await site.post()
        assert (answer.status_code, answer.content) == (200, b"{}")
        assert "x" not in answer.headers

    run(work, FakeServer(script=saying(data)))


def test_an_answer_without_a_body() -> None:
    async def work(site: Site) -> None:
        answer = await site.post()
        assert (answer.status_code, answer.content) == (204, b"")

    run(work, FakeServer(script=saying(b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n")))


@pytest.mark.usefixtures("_long_pauses")
def test_a_paused_server_is_used_where_there_is_no_other() -> None:
    server = FakeServer(script=saying(b"garbage\r\n\r\n"))

    async def work(site: Site) -> None:
        assert (await site.post()).status_code == 502
        server.script = None
        assert site.router.upstreams[0].state() == "paused"
        assert (await site.client.get("/health")).status_code == 200
        assert (await site.post()).status_code == 200
        text = site.router.metrics.text().decode()
        for status in ("none", "2xx"):
            line = f'octavo:route_requests_total{{server="{server.url}",status="{status}"}} 1.0'
            assert line in text.splitlines()
        assert "octavo:route_retries_total{" not in text

    run(work, server)


def test_a_silent_server_is_given_up() -> None:
    async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    server = FakeServer(script=silent)

    async def work(site: Site) -> None:
        while not server.requests:  # again if the machine paused until it was late to read one
            answer = await site.post()
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (504, "upstream_timeout")
        await server.until(lambda: server.num_left > 0)

    run(work, server, silent_seconds=0.05)


def test_a_request_has_a_deadline() -> None:
    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def work(site: Site) -> None:
        answer = await site.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")

    run(work, FakeServer(script=slow), max_request_seconds=0.05)


def test_a_server_that_accepts_and_is_silent_is_not_well() -> None:
    """A question for health takes a bounded time."""

    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

        listening = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with routing(servers=(url,), health_timeout_seconds=0.05) as site:
            (server,) = site.router.upstreams
            assert (server.state(), bool(server.trouble)) == ("down", True)
        listening.close()

    uvloop.run(main())
