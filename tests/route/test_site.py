"""The router as a server of its own: keys, limits, metrics, operators, and its end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from octavo.options.route import RouteSettings
from octavo.options.transport import ServerSettingsError
from octavo.route.address import read_address, read_addresses
from octavo.route.client import HIGH_BYTES, UpstreamConnection
from octavo.route.router import tls_context
from octavo.route.watch import models_of
from octavo.transport.sockets import bind
from tests.route.make import CHAT, EVENTS, FakeServer, Request, Site, chunk, response, run

KEYS = ("key-number-one", "key-number-two")


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_clients_need_a_key_of_the_router() -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        for path in ("/v1/models", "/metrics", "/nothing"):
            assert (await site.client.get(path)).status_code == 401
        assert (await site.post()).status_code == 401
        assert (await site.client.get("/health")).status_code == 200
        assert not server.requests
        assert (await site.post(headers=with_key(KEYS[0]))).status_code == 200
        # Without a key for the servers, a client's own is passed on.
        assert server.requests[0].all("authorization") == [f"Bearer {KEYS[0]}"]

    run(work, server, api_keys=KEYS)


def test_the_key_for_servers_replaces_that_of_a_client() -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        headers = {**with_key(KEYS[0]), "X-Api-Key": "another"}
        assert (await site.post(headers=headers)).status_code == 200
        assert server.requests[0].all("authorization") == ["Bearer of-servers"]
        assert not server.requests[0].all("x-api-key")
        assert [each.all("authorization") for each in server.asked] == [["Bearer of-servers"]] * 2

    run(work, server, api_keys=KEYS, upstream_api_key="of-servers")


def test_one_of_two_values_is_passed_on() -> None:
    """A server cannot see another key than the router has checked."""
    server = FakeServer()

    async def work(site: Site) -> None:
        body = b'{"model":"m"}'
        lines = (
            *(f"POST {CHAT} HTTP/1.1", "Host: localhost", "Connection: close"),
            *(f"Authorization: Bearer {KEYS[0]}", "Authorization: Bearer other"),
            *(f"Content-Length: {len(body)}", "", ""),
        )
        reader, writer = await site.raw("\r\n".join(lines).encode() + body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert server.requests[0].all("authorization") == [f"Bearer {KEYS[0]}"]

    run(work, server, api_keys=KEYS)


def test_a_page_of_another_origin_is_refused() -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        answer = await site.post(headers={"Origin": "https://evil.example"})
        assert (answer.status_code, len(server.requests)) == (403, 0)
        answer = await site.post(headers={"Origin": "http://localhost:1"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://localhost:1"
        assert not server.requests[0].all("origin")

    run(work, server)


class Held:
    """A server that answers when a gate is opened."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.server = FakeServer(script=self._script)

    async def _script(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if json.loads(request.body).get("stream"):
            writer.write(EVENTS + chunk(b"data: 1\n\n"))
        await self.gate.wait()
        if json.loads(request.body).get("stream"):
            writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")
        else:
            writer.write(response(200, b"{}"))


def test_the_number_of_open_requests_is_bounded() -> None:
    held = Held()

    async def work(site: Site) -> None:
        first = asyncio.ensure_future(site.post(headers=with_key(KEYS[0])))
        await held.server.until(lambda: len(held.server.requests) == 1)
        answer = await site.post(headers=with_key(KEYS[0]))  # half of all
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_requests")
        second = asyncio.ensure_future(site.post(headers=with_key(KEYS[1])))
        await held.server.until(lambda: len(held.server.requests) == 2)
        answer = await site.post(headers=with_key(KEYS[1]))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_requests")
        held.gate.set()
        assert [(await each).status_code for each in (first, second)] == [200, 200]
        assert (await site.post(headers=with_key(KEYS[1]))).status_code == 200

    run(work, held.server, api_keys=KEYS, max_open_requests=2)


def test_the_bytes_of_bodies_are_bounded_until_their_answers_begin() -> None:
    held = Held()

    async def work(site: Site) -> None:
        body = {"model": "m", "prompt": "x" * 900}
        first = asyncio.ensure_future(site.post(json=body))
        await held.server.until(lambda: len(held.server.requests) == 1)
        answer = await site.post(json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bodies_full")
        async with site.client.stream("POST", CHAT, json={"stream": True}) as stream:
            parts = stream.aiter_raw()
            await anext(parts)
            held.gate.set()
            assert [each async for each in parts]
        assert (await first).status_code == 200
        assert (await site.post(json=body)).status_code == 200
        assert site.router.places.num_bytes == 0

    run(work, held.server, max_held_bytes=1000)


def test_metrics_count_what_servers_were_given() -> None:
    async def work(site: Site) -> None:
        body = {"model": "m", "prompt": "x" * 1280}
        for _ in range(2):
            await site.post(json=body)
        text = (await site.client.get("/metrics")).text
        name = site.servers[0].url
        for line in (
            f'octavo:route_requests_total{{server="{name}",status="2xx"}} 2.0',
            f'octavo:route_server_ready{{server="{name}"}} 1.0',
            f'octavo:route_server_requests{{server="{name}"}} 0.0',
            "octavo:route_open_requests 0.0",
            f'octavo:http_responses_total{{route="{CHAT}",status="200"}} 2.0',
        ):
            assert line in text.splitlines()
        assert f'octavo:route_known_tokens_total{{server="{name}"}} 320.0' in text.splitlines()

    run(work, FakeServer())


def test_operators_take_servers_out_and_put_them_in(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    first, second = FakeServer(), FakeServer()

    async def work(site: Site) -> None:
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as admin:
            answer = await admin.post("/servers/out", params={"server": first.url})
            assert answer.json()["state"] == "out"
            for _ in range(3):
                assert (await site.post()).json() == {"port": second.port}
            states = (await admin.get("/servers")).json()["servers"]
            assert [each["state"] for each in states] == ["out", "ready"]
            assert states[1]["models"] == ["m"]
            answer = await admin.post("/servers/in", params={"server": first.url})
            assert answer.json()["state"] == "ready"
            same = f"{first.url.removeprefix('http://')}/v1"  # as the command line has it
            assert (await admin.post("/servers/in", params={"server": same})).status_code == 200
            assert (await admin.post("/servers/in")).status_code == 400
            assert (await admin.post("/servers/in", params={"server": "x"})).status_code == 400
            assert (await admin.post(CHAT, json={})).status_code == 404
        assert (await site.client.get("/servers")).status_code == 404
        assert {(await site.post()).json()["port"] for _ in range(2)} >= {first.port}

    run(work, first, second, admin_socket=path)


def test_a_server_that_does_not_name_its_models_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, server = tmp_path / "admin", FakeServer(names_models=False)

    async def work(site: Site) -> None:
        (watch,) = site.router.watches
        await watch._ask_models()
        assert caplog.text.count("does not name its models") == 1
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as admin:
            (found,) = (await admin.get("/servers")).json()["servers"]
            assert (found["state"], found["models"]) == ("ready", None)
            assert "404" in found["models_trouble"]
            server.names_models = True
            await watch._ask_models()
            (found,) = (await admin.get("/servers")).json()["servers"]
            assert (found["models"], found["models_trouble"]) == (["m"], "")

    run(work, server, admin_socket=path)


def test_open_requests_end_before_the_router() -> None:
    held = Held()

    async def work(site: Site) -> None:
        async with site.client.stream("POST", CHAT, json={"stream": True}) as stream:
            parts = stream.aiter_raw()
            await anext(parts)
            site.life.end()
            assert (await site.client.get("/health")).status_code == 503
            answer = await site.post()
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_shutdown")
            held.gate.set()
            assert b"".join([each async for each in parts]) == b"data: 2\n\n"

    run(work, held.server, drain_seconds=200.0)


def test_a_second_signal_ends_open_requests() -> None:
    held = Held()

    async def work(site: Site) -> None:
        asking = asyncio.ensure_future(site.post())
        await held.server.until(lambda: len(held.server.requests) == 1)
        site.life.end()
        site.life.end()
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_shutdown")

    run(work, held.server, drain_seconds=200.0)


class FakeTransport(asyncio.Transport):
    """A transport that records whether reading is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.is_aborted = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, data: object) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.is_aborted = True


def test_reading_pauses_while_a_client_does_not_read() -> None:
    async def main() -> None:
        transport = FakeTransport()
        connection = UpstreamConnection(lambda _: None)
        connection.connection_made(transport)
        connection.send(b"", b"", 100.0)
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        assert (await connection.head()).length == 10_000_000
        connection.data_received(b"x" * HIGH_BYTES)
        assert transport.reads
        connection.data_received(b"y")
        assert not transport.reads
        assert await connection.part() == b"x" * HIGH_BYTES + b"y"
        assert transport.reads
        assert not connection.finish()  # the answer is not whole
        assert transport.is_aborted

    asyncio.run(main())


def test_an_idle_connection_takes_no_bytes() -> None:
    async def main() -> None:
        transport = FakeTransport()
        connection = UpstreamConnection(lambda _: None)
        connection.connection_made(transport)
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert transport.is_aborted

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://10.0.0.1:8000/v1/", "http://10.0.0.1:8000"),
        ("https://example.org/llm/v1", "https://example.org:443/llm"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses_of_servers(text: str, url: str) -> None:
    assert read_address(text).url == url


@pytest.mark.parametrize(
    "text",
    [
        *("ftp://a", "http://key@a", "http://a?x=1", "http://a#b", "http://", "http://a:99999"),
        *("http://a b", "http://a/\r\nx", "http://[::1", "http://a:0", "http://a/%20"),
        *("a:port", "::1:8000"),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ServerSettingsError):
        read_address(text)


def test_a_server_is_named_once() -> None:
    with pytest.raises(ServerSettingsError, match="twice"):
        read_addresses(("http://a:1/v1", "a:1"))


@pytest.mark.parametrize(
    "settings",
    [
        {"servers": ()},
        {"servers": tuple(f"a:{number}" for number in range(1, 100))},
        {"servers": ("a:1",), "health_path": "health"},
        {"servers": ("a:1",), "upstream_api_key": "a\r\nb"},
        {"servers": ("a:1",), "host": "0.0.0.0"},
        {"servers": ("a:1",), "max_open_requests": 0},
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object]) -> None:
    with pytest.raises(ServerSettingsError):
        RouteSettings(**settings)  # type: ignore[arg-type]


def test_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for name in ("none", "empty"):
        config = RouteSettings(servers=("https://a",), upstream_ca_certs=tmp_path / name)
        with pytest.raises(ServerSettingsError, match="upstream_ca_certs"):
            tls_context(config)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"data": {}}', b'{"data": [{]}', b'{"data": [{"id": "a", "x": ' + b"[" * 9999],
)
def test_what_is_no_list_of_models(body: bytes) -> None:
    assert models_of(body) is None


def test_strange_cards_are_left_out() -> None:
    cards = b'[1, {"id": 2}, {"id": ""}, {"id": "b"}, {"id": "b", "second": true}]'
    assert models_of(b'{"data": ' + cards + b"}") == {"b": b'{"id": "b"}'}


def test_a_port_that_is_taken_is_found_at_the_start() -> None:
    with bind(RouteSettings(servers=("a:1",), port=0)) as listening:
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(ServerSettingsError, match="--port"):
            bind(RouteSettings(servers=("a:1",), port=port))
