"""Paths without a route: a hint for near misses, and what other servers' routes would need."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.known_routes import NOT_YET, missing_feature
from octavo.server.routes import ROUTES
from tests.server.make import serving


def error_of(directory: Path, path: str, method: str = "POST") -> dict[str, Any]:
    """Return the error of a request, whose status is 404."""

    async def main() -> Any:
        async with serving(directory) as client:
            response = await client.request(method, path)
            assert response.status_code == 404
            return response.json()["error"]

    error: dict[str, Any] = asyncio.run(main())
    return error


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completionss", "/v1/chat/completions"),
        ("/v1/Chat/Completions", "/v1/chat/completions"),
        ("/chat/completion", "/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//completions", "/v1/completions"),
        ("/v1/completion", "/v1/completions"),
        ("/v1/model", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/tokenise", "/tokenize"),
        ("/helth", "/health"),
        ("/healthz", "/health"),
        ("/metric", "/metrics"),
        ("/openapi.jsn", "/openapi.json"),
    ],
)
def test_a_near_miss_gets_a_hint(directory: Path, path: str, meant: str) -> None:
    error = error_of(directory, path)
    assert error["code"] == "not_found"
    assert f"did you mean {meant}?" in error["message"]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/v1/messages", "mean /v1/messages? The base URL of these clients is the server's"),
        ("/v1/api/chat", "did you mean /api/chat? The base URL of these clients is the server's"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions? A client's base URL"),
    ],
)
def test_a_wrong_base_url_gets_the_right_one(directory: Path, path: str, hint: str) -> None:
    assert hint in error_of(directory, path)["message"]


def test_the_address_itself_says_that_the_server_runs(directory: Path) -> None:
    """Ollama's command line asks for it, without a key, before it does anything."""

    async def main() -> None:
        async with serving(directory, api_keys=("some-long-key",)) as client:
            found = await client.get("/")
            assert (found.status_code, found.text) == (200, "Octavo is running\n")

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/nonsense", "/v1", "/v1/", "/%00", "/" + "x" * 3000])
def test_another_path_gets_the_list_of_routes(directory: Path, path: str) -> None:
    error = error_of(directory, path)
    assert error["message"] == "there is no such route; GET /docs lists all routes"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/messages/batches",
        "/v1/moderations",
        "/v1/audio/transcriptions",
        "/v1/images/generations",
        "/vertex_generate",
        "/api/blobs/sha256:0",
        "/start_profile",
        "/stop_profile",
        "/sleep",
    ],
)
def test_a_route_of_another_server_is_not_supported_yet(directory: Path, path: str) -> None:
    for method in ("POST", "GET"):
        error: Any = error_of(directory, path, method)
        message = error if isinstance(error, str) else error["message"]
        assert message.startswith(f"{path} is not supported yet: ")
        if "param" in error:  # in OpenAI's shape
            assert error["code"] == "unsupported_route"


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/messages/batches", "anthropic"),
        ("/v1/messages/batches/x/results" + "/y" * 1000, "anthropic"),
        ("/v1/messages", "anthropic"),  # with another method
        ("/api/nothing", "ollama"),
        ("/api/chat/x", "ollama"),
        ("/api", "ollama"),
        ("/v1/nothing", "openai"),
        ("/apis/x", "openai"),
        ("/", "openai"),
    ],
)
def test_an_unknown_path_has_the_errors_of_the_routes_beside_it(
    directory: Path, path: str, shape: str
) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            answer = await client.request("DELETE", path)
            body = answer.json()
            assert answer.status_code in (404, 405)
            if shape == "ollama":
                assert isinstance(body["error"], str)
            elif shape == "anthropic":
                assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
            else:
                assert set(body["error"]) == {"message", "type", "param", "code"}

    asyncio.run(main())


def test_an_operators_route_names_the_socket_that_has_it(directory: Path) -> None:
    for route in ADMIN_ROUTES:
        if all(route.path != ours.path for ours in ROUTES):
            assert "--admin-socket" in error_of(directory, route.path)["message"], route.path


@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/conversations/conv_1/items"])
def test_conversations_name_what_is_kept(directory: Path, path: str) -> None:
    assert "previous_response_id" in error_of(directory, path)["message"]


def test_no_route_of_ours_is_called_missing() -> None:
    """A route that is added later must leave the list."""
    for route in ROUTES:
        assert missing_feature(route.path.replace("{id}", "x")) is None, route.path
    assert all(what and not what.endswith(".") for what in NOT_YET.values())


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/responses/0", "GET, DELETE"),
        ("/v1/responses/0/cancel", "POST"),
        ("/v1/responses/0/input_items", "GET"),
        ("/v1/files/0/content", "GET"),
        ("/v1/files", "POST, GET"),
        ("/v1/models/an/id", "GET"),
    ],
)
def test_allow_has_the_methods_of_the_path_and_no_other(
    directory: Path, path: str, methods: str
) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            refused = await client.request("PUT", path)
            assert refused.status_code == 405
            assert refused.headers["allow"] == methods

    asyncio.run(main())
