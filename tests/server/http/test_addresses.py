"""Where a server is reached: at a unix socket, and below the prefix of a reverse proxy."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import httpx
import pytest

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.server.ready_text import ready_text
from octavo.transport.sockets import bind
from tests.server.http.test_requests_behind import gated, generation
from tests.server.http.test_socket import wait_until
from tests.server.make import LIMIT, events, listening, serving

KEYS = ("first-secret",)


def session(path: Path) -> httpx.Client:
    """Return a client of a unix socket, under a name that the server does not know."""
    transport = httpx.HTTPTransport(uds=str(path))
    return httpx.Client(transport=transport, base_url="http://any.example", timeout=LIMIT)


def test_clients_may_connect_by_a_unix_socket(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with listening(directory, uds=path, max_connections_per_client=1) as life:
        assert life.port == 0
        with session(path) as one, session(path) as other:
            body = {"prompt": "x", "max_tokens": 3, "stream": True}
            assert events(one.post("/v1/completions", json=body).text)
            assert other.get("/v1/models").status_code == 200, "it has no address to count by"
    assert not path.exists()


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_from_a_unix_socket_ends_the_request(
    directory: Path, tmp_path: Path, stream: bool
) -> None:
    path = tmp_path / "octavo.sock"
    gate, engine = gated(directory)
    with listening(directory, engine, uds=path) as life:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(generation(stream))
            wait_until(lambda: gate.num_steps == 1)
        wait_until(lambda: life.server.admission.num_open == 0)
        gate.is_open.set()


@pytest.mark.parametrize(
    ("options", "mode"),
    [({}, 0o600), ({"api_keys": KEYS}, 0o666), ({"insecure_no_auth": True}, 0o666)],
)
def test_without_a_key_a_unix_socket_is_for_its_user(
    tmp_path: Path, options: dict[str, object], mode: int
) -> None:
    before = os.umask(0)
    try:
        config = ServerSettings(uds=tmp_path / "s", **options)  # type: ignore[arg-type]
        bind(config).close()
        assert (tmp_path / "s").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_a_live_unix_socket_is_not_taken_over_and_a_dead_one_is(tmp_path: Path) -> None:
    config = ServerSettings(uds=tmp_path / "s")
    with bind(config) as live:
        live.listen()
        with pytest.raises(ServerSettingsError, match="another server answers at the unix socket"):
            bind(config)
    bind(config).close()


def test_the_ready_text_says_where() -> None:
    text = ready_text(ServerSettings(uds=Path("/run/it's")), 0, "tiny")
    assert "serves tiny at the unix socket /run/it's" in text
    assert "curl --unix-socket '/run/it'\"'\"'s' http://localhost/v1/" in text
    assert 'HTTPTransport(uds="/run/it\'s")' in text
    secured = ready_text(ServerSettings(ssl_certfile=Path("/x")), 8443, "tiny")
    assert "at https://127.0.0.1:8443\n" in secured
    assert ["browser" in each for each in (text, secured)] == [False, True]
    assert "browser" not in ready_text(ServerSettings(console=False), 8000, "tiny")


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/llm", "/v1/models", 200),
        ("/llm", "/llm/v1/models", 200),
        ("/llm", "/llm/v1/models/", 200),
        ("/llm", "/llm/llm/v1/models", 404),
        ("/llm", "/llmv1/models", 404),
        ("/llm", "/llmx", 404),
        ("/llm", "/llm", 200),
        ("/a/b", "/a/b/v1/models", 200),
        ("/a/b", "/a/v1/models", 404),
        ("", "/llm/v1/models", 404),
    ],
)
def test_a_prefix_may_be_there_or_removed_by_the_proxy(
    directory: Path, root: str, path: str, status: int
) -> None:
    async def main() -> None:
        async with serving(directory, root_path=root) as client:
            assert (await client.get(path)).status_code == status
            servers = (await client.get("/openapi.json")).json().get("servers")
            assert servers == ([{"url": root}] if root else None)

    asyncio.run(main())


def test_a_prefix_does_not_change_which_routes_are_public(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, root_path="/llm", api_keys=KEYS) as client:
            for path in ("/health", "/llm/health", "/llm/health/live/"):
                assert (await client.get(path)).status_code == 200
            for path in ("/llm/v1/models", "/v1/models", "/llmhealth", "/llm/llm/health"):
                assert (await client.get(path)).status_code == 401

    asyncio.run(main())
