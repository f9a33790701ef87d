"""ASGI middlewares of the operator's: they see every request and every chunk of its response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.server.lifecycle import ServerLifecycle
from octavo.server.site import OneModel
from octavo.serving.server import Server
from octavo.transport.middleware import ASGI, check_middlewares, wrap
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, events, listening

HERE = __name__
SEEN: list[tuple[str, str, MutableMapping[str, Any]]] = []


class Recorder:
    """A middleware that keeps each message, and adds a header with its name."""

    name = "outer"

    def __init__(self, application: ASGI) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def record(message: MutableMapping[str, Any]) -> None:
            SEEN.append((self.name, scope["type"], message))
            if message["type"] == "http.response.start":
                header = (b"x-seen-by", self.name.encode())
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        if scope["type"] == "http":
            assert "octavo.write" not in scope["extensions"], "nothing may bypass `send`"
        await self.application(scope, receive, record)


class Inner(Recorder):
    name = "inner"


def refusing(application: ASGI) -> ASGI:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 402, "headers": headers})
        await send({"type": "http.response.body"})

    return refuse


def never_starts(application: ASGI) -> ASGI:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    return fail


async def coroutine(application: ASGI) -> None:
    raise AssertionError("never called")


def returns_nothing(application: ASGI) -> None:
    return None


def fails(application: ASGI) -> ASGI:
    raise ValueError("no tenant")


not_callable = 3


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def ask(directory: Path, **options: Any) -> httpx.Response:
    """Return the answer to a stream of eight tokens, from an engine that awaits each chunk.

    Some tokens have none, since their text is held back; so it waits two seconds at most.
    """
    before = 0

    def step() -> None:
        nonlocal before
        begin = time.monotonic()
        while SEEN and len(SEEN) == before and time.monotonic() < begin + 2.0:
            time.sleep(0.001)
        before = len(SEEN)

    engine = FakeEngine(directory, runner=ChainRunner(step))
    with listening(directory, engine, **options) as life:
        body = {"prompt": "The quick", "max_tokens": 8, "stream": True}
        url = f"http://127.0.0.1:{life.port}/v1/completions"
        return httpx.post(url, json=body, timeout=LIMIT)


def text_of(chunks: list[Any]) -> str:
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_every_chunk_of_a_stream_passes_the_middlewares(directory: Path) -> None:
    plain = events(ask(directory).text)
    assert not SEEN
    response = ask(directory, middleware=(f"{HERE}:Inner", f"{HERE}:Recorder"))
    assert text_of(events(response.text)) == text_of(plain)
    assert response.headers.get_list("x-seen-by") == ["inner", "outer"], "the last is outermost"
    for name in ("inner", "outer"):
        sent = [message for who, kind, message in SEEN if (who, kind) == (name, "http")]
        assert sent[0]["type"] == "http.response.start"
        assert b"".join(each.get("body", b"") for each in sent[1:]) == response.content
        assert [each["more_body"] for each in sent[1:]] == [True] * (len(sent) - 2) + [False]
        assert len(sent) > 3, "the tokens come in several messages"
        lifespan = [
            message["type"] for who, kind, message in SEEN if (who, kind) == (name, "lifespan")
        ]
        assert lifespan[0] == "lifespan.startup.complete"


def test_a_middleware_may_answer_itself(directory: Path) -> None:
    assert ask(directory, middleware=(f"{HERE}:refusing",)).status_code == 402


def test_operators_reach_the_admin_socket_without_middlewares(
    directory: Path, tmp_path: Path
) -> None:
    path = tmp_path / "admin"
    with listening(directory, admin_socket=path, middleware=(f"{HERE}:refusing",)):
        transport, base = httpx.HTTPTransport(uds=str(path)), "http://localhost"
        with httpx.Client(transport=transport, base_url=base, timeout=LIMIT) as client:
            assert client.get("/in_flight").status_code == 200


def test_a_middleware_whose_startup_fails_ends_the_server(directory: Path) -> None:
    engine = FakeEngine(directory)
    settings = ServerSettings(port=0, middleware=(f"{HERE}:never_starts",))
    try:
        site = OneModel(Server(engine, settings))
        with pytest.raises(ServerSettingsError):
            asyncio.run(ServerLifecycle(site, handles_signals=False).run())
    finally:
        engine.close()


def test_vllms_way_to_write_a_name() -> None:
    check_middlewares([f"{HERE}.Recorder"])
    inner = Recorder(returns_nothing)  # type: ignore[arg-type]
    wrapped = wrap(inner, [f"{HERE}.Recorder"])
    assert isinstance(wrapped, Recorder)
    assert wrapped.application is inner


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "module:factory"),
        ("Recorder", "module:factory"),
        (f"{HERE}:", "module:factory"),
        ("no.such:Recorder", "cannot be imported"),
        (f"{HERE}:Missing", "has no 'Missing'"),
        (f"{HERE}:not_callable", "called with an application"),
        (f"{HERE}:coroutine", "called with an application"),
        (f"{HERE}:returns_nothing", "returned NoneType"),
        (f"{HERE}:fails", "ValueError: no tenant"),
    ],
)
def test_a_name_that_cannot_be_used_is_an_error_at_the_start(name: str, why: str) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("never called")

    with pytest.raises(ServerSettingsError) as raised:
        wrap(application, ServerSettings(middleware=(name,)).middleware)
    assert f"middleware={name!r}" in str(raised.value)
    assert why in str(raised.value)
