"""A server in this process and a client of it, for the duration of a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx

from octavo.formats.description import Formats
from octavo.options.server import ServerSettings
from octavo.server.application import application
from octavo.server.lifecycle import ServerLifecycle
from octavo.server.routes import ROUTES
from octavo.server.site import OneModel
from octavo.serving.adapters.service import AdapterService
from octavo.serving.answers.formats import AnswerFormats
from octavo.serving.server import Server
from octavo.serving.translation import TranslationContext
from octavo.transport.route import Route
from tests.server.engine import FACTS, FakeEngine

LIMIT = 300.0  # seconds that a test waits at most; no test depends on it
# Limits that a worker or an engine exceeds by a pause of the machine, where no test means them.
PATIENT: dict[str, Any] = {
    "template_seconds": LIMIT,
    "tokenize_seconds": LIMIT,
    "shape_seconds": LIMIT,
    "ready_seconds": LIMIT,
}


def patient(**options: Any) -> ServerSettings:
    """Return settings whose limits of time no slow machine exceeds, but for those in `options`."""
    return ServerSettings(**{**PATIENT, **options})


class Client(httpx.AsyncClient):
    """An httpx client that calls the application directly."""

    def __init__(self, server: Server, routes: Any = None, *, checks_access: bool = True) -> None:
        self.application = application(server, routes, checks_access=checks_access)
        transport = httpx.ASGITransport(self.application)
        super().__init__(transport=transport, base_url="http://localhost")
        self.server = server

    async def complete(self, **fields: Any) -> Any:
        """Send POST /v1/completions; return the JSON of any status."""
        response = await self.post("/v1/completions", json={"prompt": "The quick", **fields})
        return response.json()

    async def chat(self, content: Any = "Hello", **fields: Any) -> Any:
        """Send POST /v1/chat/completions; return the JSON of any status."""
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, **fields}
        return (await self.post("/v1/chat/completions", json=body)).json()


@contextlib.asynccontextmanager
async def serving(
    directory: Path, engine: FakeEngine | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Serve without a socket: the client calls the ASGI application."""
    engine = engine or FakeEngine(directory)
    server = Server(engine, patient(**options))
    adapters = AdapterService(server)
    async with Client(server) as client:
        try:
            await adapters.start()
            yield client
        finally:
            adapters.close()
            await server.prompt_pool.close()
            engine.close()


def events(text: str) -> list[Any]:
    """Return a stream's payloads without the last, `[DONE]`; check the bytes of the frames."""
    frames = [frame for frame in text.split("\n\n") if frame != ": ping"]  # the machine was slow
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    payloads = [frame.removeprefix("data: ") for frame in frames]
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


@contextlib.contextmanager
def listening(
    directory: Path,
    engine: FakeEngine | None = None,
    *,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    **options: Any,
) -> Iterator[ServerLifecycle]:
    """Serve on a socket, in another thread, until the block is left; `run` makes the event loop."""
    engine = engine or FakeEngine(directory)
    ready = threading.Event()
    life: list[ServerLifecycle] = []

    async def main() -> None:
        server = Server(engine, patient(port=0, **options))
        life.append(ServerLifecycle(OneModel(server), handles_signals=False))
        await life[0].run(lambda _: ready.set())

    # Engine and server share an interpreter here, and must switch more often than by default.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=lambda: run(main()))
    thread.start()
    assert ready.wait(LIMIT)
    try:
        yield life[0]
    finally:
        with contextlib.suppress(RuntimeError):  # it may have ended already
            for _ in range(2):
                life[0].end_from_outside()
        thread.join(LIMIT)
        engine.close()
        sys.setswitchinterval(interval)
        assert not thread.is_alive()


def translation_context() -> TranslationContext:
    """Return what translations know of a server with default settings, without formats."""
    formats = AnswerFormats(
        formats=Formats(),
        kept_ids=frozenset(),
        marks={},
        stop_ids=(),
        generates=True,
    )
    return TranslationContext(
        facts=FACTS,
        formats=formats,
        chat_template=None,
        trust_request_chat_template=False,
        default_chat_template_kwargs=None,
        log_prompts=False,
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, and let other tasks run."""
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.002)


def once_written(client: Client) -> Callable[[], bool]:
    """Return a call for a runner, before each step: whether a client has some text already.

    Twenty tokens have some text, so the calls after them wait until it is written, or the
    client has gone.
    """
    num_calls = 0

    def is_written() -> bool:
        nonlocal num_calls
        num_calls += 1
        end = time.monotonic() + LIMIT
        while records := [each.record for each in list(client.server.active.values())]:
            if any(record.first_byte_at for record in records):
                return True
            if num_calls <= 20 or time.monotonic() > end:
                return False
            time.sleep(0.001)
        return num_calls > 20

    return is_written


def all_routes() -> list[Route]:
    """Return all routes, as the parameters of a test."""
    return list(ROUTES)
