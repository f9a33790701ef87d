"""Fake servers with scripts, and a router in front of them, in one event loop."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvloop

from octavo.options.route import RouteSettings
from octavo.route.lifecycle import RouterLifecycle
from octavo.route.router import Router

LIMIT = 300.0  # seconds that a test waits at most; no test depends on it
# Limits that a pause of the machine exceeds, where no test means them.
PATIENT: dict[str, Any] = {"connect_seconds": LIMIT, "health_timeout_seconds": LIMIT}
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]


@dataclass
class Request:
    """One request, as a fake server has received it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    def all(self, name: str) -> list[str]:
        """Return the values of all headers of a name."""
        return [value for given, value in self.headers if given == name]


Script = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def response(status: int, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """Return the bytes of a response; `length` replaces the right one."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {size}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class FakeServer:
    """A server that says that it is ready, names its models, and does with the rest as it likes."""

    models: tuple[str, ...] = ("m",)
    script: Script | None = None  # None: it answers with its number and its model
    health: int = 200
    names_models: bool = True
    requests: list[Request] = field(default_factory=list)  # but for those of health and models
    asked: list[Request] = field(default_factory=list)  # for these
    num_connections: int = 0
    num_left: int = 0  # connections with such requests that were closed at the other end
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: Any = None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if it has listened before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Refuse connections from now on; those that are open stay."""
        self._server.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is looked at after each change here."""
        async with asyncio.timeout(LIMIT), self.news:
            await self.news.wait_for(condition)

    async def _changed(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        num_requests = 0
        try:
            while True:
                request = await _request(reader)
                if request.path.endswith("/health"):
                    self.asked.append(request)
                    writer.write(response(self.health, b""))
                elif request.path.endswith("/v1/models"):
                    self.asked.append(request)
                    writer.write(self._list())
                else:
                    num_requests += 1
                    self.requests.append(request)
                    await self._changed()
                    script = self.script or self._answer
                    working = asyncio.ensure_future(script(request, writer))
                    leaving = asyncio.ensure_future(reader.read(1))
                    await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not working.done():  # nothing more is sent, so this is the end
                        working.cancel()
                        break
                    leaving.cancel()
                    await asyncio.wait({leaving})
                    working.result()
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.num_left += bool(num_requests)
            await self._changed()
            writer.close()

    def _list(self) -> bytes:
        if not self.names_models:
            return response(404, b"{}")
        cards = [{"id": name, "object": "model", "owned_by": self.url} for name in self.models]
        return response(200, json.dumps({"object": "list", "data": cards}).encode())

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, json.dumps({"port": self.port}).encode()))


async def _request(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head.decode("latin-1").split("\r\n")[:-2]
    headers = [(name.lower(), value) for name, _, value in (each.partition(": ") for each in rest)]
    request = Request(line, headers, b"")
    lengths = request.all("content-length")
    request.body = await reader.readexactly(int(lengths[0]) if lengths else 0)
    return request


class Site:
    """A router, its servers, and a client of it."""

    def __init__(self, servers: list[FakeServer], life: RouterLifecycle) -> None:
        self.servers = servers
        self.life = life
        self.router = life.router
        self.url = f"http://127.0.0.1:{life.port}"
        self.client = httpx.AsyncClient(base_url=self.url, timeout=LIMIT, trust_env=False)

    async def post(self, path: str = CHAT, **more: Any) -> httpx.Response:
        """Send a request of one message; `more` are arguments of httpx."""
        more.setdefault("json", {"model": "m", "messages": MESSAGES})
        return await self.client.post(path, **more)

    async def look(self) -> None:
        """Ask all servers now, since in tests the router does not by itself."""
        await asyncio.gather(*(each.look() for each in self.router.watches))

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the router, and send bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.life.port)
        writer.write(data)
        return reader, writer


@asynccontextmanager
async def routing(*servers: FakeServer, **options: Any) -> AsyncIterator[Site]:
    """Route to fake servers until the block is left."""
    for each in servers:
        await each.start()
    urls = options.pop("servers", None) or tuple(each.url for each in servers)
    events = options.pop("events", ())  # endpoints, of the servers in their order
    pairs = zip(servers, events, strict=False)
    options["kv_events"] = tuple([f"{each.url}={endpoint}" for each, endpoint in pairs])
    settings: dict[str, Any] = {"port": 0, "health_seconds": 3600.0, "drain_seconds": 0.01}
    router = Router(RouteSettings(servers=urls, **(PATIENT | settings | options)))
    life = RouterLifecycle(router, handles_signals=False)
    ready = asyncio.Event()
    serving = asyncio.ensure_future(life.run(lambda _: ready.set()))
    waiting = asyncio.ensure_future(ready.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.is_set():
        serving.result()
    site = Site(list(servers), life)
    try:
        yield site
    finally:
        await site.client.aclose()
        for _ in range(2):
            life.end()
        async with asyncio.timeout(LIMIT):
            await serving
        for each in servers:
            with suppress(OSError):
                each.stop()


def run(work: Callable[[Site], Awaitable[None]], *servers: FakeServer, **options: Any) -> None:
    """Run a test's work with a router in front of fake servers."""

    async def main() -> None:
        async with asyncio.timeout(LIMIT), routing(*servers, **options) as site:
            await work(site)

    uvloop.run(main())  # the loop of the real router
