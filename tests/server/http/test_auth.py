"""Access control: keys, hosts and origins, on every route."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError, read_keys
from octavo.transport.auth import HEALTH, PUBLIC, AccessControl
from octavo.transport.errors import ApiError
from tests.server.make import all_routes, serving

SGLANG = ("/load_lora_adapter", "/unload_lora_adapter")
COHERE = re.compile(r"(/cohere)?/v2/(chat(/render)?|embed)")
KEYS = ("first-secret", "second-secret")


def request(directory: Path, method: str, path: str, options: Any, headers: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        async with serving(directory, **options) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(main())


def test_every_route_without_a_key_is_401(directory: Path) -> None:
    """Routes that do not exist need a key too, with every method; only public ones do not."""

    async def main() -> None:
        async with serving(directory, api_keys=KEYS) as client:
            paths = [route.path.replace("{id}", "x") for route in all_routes()]
            for path in [*paths, "/", "/nope", "/v1", "/admin", "/v1/completions/", "//health"]:
                for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
                    for headers in ({}, {"authorization": "Bearer wrong-secret"}):
                        url = f"http://localhost{path}"  # "//health" alone would be a host
                        response = await client.request(method, url, headers=headers)
                        if path in HEALTH or (path in PUBLIC and method in ("GET", "HEAD")):
                            assert response.status_code in (200, 405)
                            continue
                        assert response.status_code == 401, (method, path)
                        assert response.headers["www-authenticate"] == "Bearer"
                        if method != "HEAD":
                            answer = response.json()
                            if path in SGLANG:
                                assert answer["success"] is False
                                continue
                            if COHERE.fullmatch(path):  # Cohere's are a message
                                assert answer.keys() == {"message"}
                                continue
                            error = answer["error"]
                            if isinstance(error, str):  # Ollama's and TGI's errors are texts
                                assert path.startswith("/api/") or path in TGI
                                continue
                            assert error["type"] == "authentication_error"
                            if error.get("code") == 401:  # llama.cpp's errors have the status
                                continue
                            if not path.startswith("/v1/messages"):  # whose errors have no code
                                # llama.cpp's code is the status.
                                assert error["code"] in ("invalid_api_key", 401)

    asyncio.run(main())


TGI = ("/", "/generate", "/generate_stream", "/info")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-secret"},
        {"authorization": "bearer second-secret"},
        {"x-api-key": "second-secret"},
    ],
)
def test_every_key_gives_access(directory: Path, headers: dict[str, str]) -> None:
    response = request(directory, "GET", "/v1/models", {"api_keys": KEYS}, headers)
    assert response.status_code == 200


def test_a_public_path_may_only_be_read(directory: Path) -> None:
    """A text is generated at the path of the server's name for known keys and hosts alone."""
    keys: dict[str, Any] = {"api_keys": KEYS}
    assert request(directory, "GET", "/", keys, {}).status_code == 200
    assert request(directory, "POST", "/", keys, {}).status_code == 401
    assert request(directory, "POST", "/", {}, {"host": "evil.example"}).status_code == 403
    assert request(directory, "POST", "/ping", keys, {}).status_code == 200


def test_metrics_may_be_public(directory: Path) -> None:
    options = {"api_keys": KEYS, "public_metrics": True}
    assert request(directory, "GET", "/metrics", options, {}).status_code == 200


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ((), "evil.example", 403),
        ((), "", 403),
        ((), "localhost:8000", 200),
        (("mine.example",), "mine.example", 200),
        (("*",), "evil.example", 200),
    ],
)
def test_public_metrics_are_served_under_known_hosts_alone(
    directory: Path, allowed: Any, host: str, status: int
) -> None:
    """A page that rebinds its name to this server has no key, and these need none."""
    options = {"api_keys": KEYS, "public_metrics": True, "allowed_hosts": allowed}
    assert request(directory, "GET", "/metrics", options, {"host": host}).status_code == status


# Hosts in which the name of this machine stands, and another name is meant.
DISGUISED = (
    "[::1]evil.example",
    "[::1].evil.example:80",
    "[::1]:80@evil.example",
    "[::1",
    "[::1%eth0]",
    "[localhost]",
    "[127.0.0.1]",
    "[:]",
    "localhost:1@evil.example",
    "localhost@evil.example",
    "localhost:80:evil.example",
    "localhost:evil.example",
    "localhost:65536",
    "localhost:-1",
    "localhost,evil.example",
    "localhost/evil.example",
    "localhost.",
    "127.0.0.1.",
    "localhost evil.example",
)


@pytest.mark.parametrize(
    ("bound", "allowed", "host", "status"),
    [
        ("127.0.0.1", (), "localhost:8000", 200),
        ("127.0.0.1", (), "127.0.0.1", 200),
        ("127.0.0.1", (), "[::1]:8000", 200),
        ("127.0.0.1", (), "LOCALHOST", 200),
        ("127.0.0.1", (), "evil.example", 403),
        ("127.0.0.1", (), "localhost.evil.example", 403),
        ("127.0.0.1", (), "192.168.1.5", 403),
        ("127.0.0.1", (), "", 403),
        *(("127.0.0.1", (), host, 403) for host in DISGUISED),
        *(("0.0.0.0", (), host, 403) for host in DISGUISED),
        ("127.0.0.1", (), "localhost:", 200),
        ("127.0.0.1", (), "localhost:65535", 200),
        ("0.0.0.0", (), "[2001:db8::1]:80", 200),
        ("127.0.0.1", ("mine.example",), "mine.example:80", 200),
        ("127.0.0.1", ("*",), "evil.example", 200),
        ("0.0.0.0", (), "192.168.1.5:8000", 200),
        ("0.0.0.0", (), "evil.example", 403),
    ],
)
def test_hosts_without_a_key(
    directory: Path, bound: str, allowed: Any, host: str, status: int
) -> None:
    options = {"host": bound, "allowed_hosts": allowed, "insecure_no_auth": True}
    response = request(directory, "GET", "/v1/models", options, {"host": host})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ((), "evil.example", 200),
        ((), "", 200),
        (("mine.example",), "mine.example", 200),
        (("mine.example",), "evil.example", 403),
        (("mine.example",), "localhost", 200),
        (("*",), "evil.example", 200),
    ],
)
def test_with_a_key_hosts_are_checked_only_if_some_are_listed(
    directory: Path, allowed: Any, host: str, status: int
) -> None:
    """A page under a rebound name has no key, so that the name gains it nothing."""
    options = {"api_keys": KEYS, "allowed_hosts": allowed}
    headers = {"host": host, "authorization": f"Bearer {KEYS[0]}"}
    assert request(directory, "GET", "/v1/models", options, headers).status_code == status
    page = request(directory, "GET", "/v1/models", options, {"host": host})
    assert page.status_code == (401 if status == 200 else 403)


@pytest.mark.parametrize("path", sorted(HEALTH))
@pytest.mark.parametrize("host", ["", "evil.example", "10.0.0.7:8000"])
def test_health_needs_no_host(directory: Path, path: str, host: str) -> None:
    """Probes of an orchestrator use an address or a name that the server does not know."""
    assert request(directory, "GET", path, {}, {"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),  # the server's own page
        ("https://app.example", 200),
        ("https://APP.example", 200),
        ("https://evil.example", 403),
        ("http://app.example", 403),
        ("https://port.example", 200),  # without the usual port, which browsers leave out
        ("https://port.example:4430", 403),
        ("http://port.example", 403),
        ("null", 403),
        ("http://localhost:9999", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_origins(directory: Path, origin: str, status: int, method: str) -> None:
    options = {"allowed_origins": ("https://app.example", "https://port.example:443/")}
    path = "/v1/models" if method == "GET" else "/tokenize"
    response = request(directory, method, path, options, {"origin": origin})
    assert (response.status_code == 403) == (status == 403)
    shared = "access-control-allow-origin" in response.headers
    assert shared == (status == 200 and origin != "http://localhost")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://LOCALHOST", 200),
        ("http://127.0.0.1:5173", 200),
        ("http://[::1]:5173", 200),
        ("http://localhost.evil.example", 403),
        ("http://127.0.0.1.evil.example:80", 403),
        *((f"http://{host}", 403) for host in DISGUISED),
        ("file://localhost", 403),
        ("null", 403),
        ("", 403),
        ("https://app.example", 403),
    ],
)
def test_pages_of_this_machine_may_call_if_no_origin_is_listed(
    directory: Path, origin: str, status: int
) -> None:
    response = request(directory, "GET", "/v1/models", {}, {"origin": origin})
    assert response.status_code == status
    shared = response.headers.get("access-control-allow-origin")
    assert shared == (origin if status == 200 else None)
    asks = {"access-control-request-method": "POST", "origin": origin}
    answer = request(directory, "OPTIONS", "/v1/completions", {"api_keys": KEYS}, asks)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8080", 200),
        ("http://[::1]", 200),
        ("https://app.example", 200),
        ("http://notlocalhost", 403),
        ("http://localhost.evil.example", 403),
    ],
)
def test_pages_of_this_machine_may_be_allowed_beside_others(
    directory: Path, origin: str, status: int
) -> None:
    options = {"allowed_origins": ("localhost", "https://app.example")}
    response = request(directory, "GET", "/v1/models", options, {"origin": origin})
    assert response.status_code == status
    shared = response.headers.get("access-control-allow-origin")
    assert shared == (origin if status == 200 else None)


def test_only_allowed_origins_get_an_answer_to_a_preflight(directory: Path) -> None:
    options = {"allowed_origins": ("https://app.example",), "api_keys": KEYS}
    asks = {"access-control-request-method": "POST", "origin": "https://app.example"}
    response = request(directory, "OPTIONS", "/v1/completions", options, asks)
    assert response.status_code == 200
    assert "authorization" in response.headers["access-control-allow-headers"]
    assert response.headers["access-control-allow-methods"].endswith("OPTIONS")
    assert "x-octavo-unknown-fields" in response.headers["access-control-expose-headers"]
    for names in ("x-stainless-lang,anthropic-version", "Authorization, X-Session-ID"):
        more = {**asks, "access-control-request-headers": names}
        response = request(directory, "OPTIONS", "/v1/completions", options, more)
        assert response.headers["access-control-allow-headers"] == names
    for wrong in ("*", "a b", "a,,b", "x: y", ""):
        more = {**asks, "access-control-request-headers": wrong}
        response = request(directory, "OPTIONS", "/v1/completions", options, more)
        assert response.headers["access-control-allow-headers"].startswith("authorization, ")
    evil = {**asks, "origin": "https://evil.example"}
    assert request(directory, "OPTIONS", "/v1/completions", options, evil).status_code == 403


def test_other_machines_are_not_served_without_a_key() -> None:
    with pytest.raises(ServerSettingsError, match="--insecure-no-auth"):
        ServerSettings(host="0.0.0.0")
    with pytest.raises(ServerSettingsError, match="--insecure-no-auth"):
        ServerSettings(host="::")
    ServerSettings(host="0.0.0.0", insecure_no_auth=True)
    ServerSettings(host="0.0.0.0", api_keys=KEYS)
    ServerSettings(host="::1")


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst-secret\n\n  second-secret \nfirst-secret\n")
    assert read_keys(file, "third-secret,") == (*KEYS, "third-secret")
    with pytest.raises(ServerSettingsError, match="cannot be read"):
        read_keys(tmp_path / "none", "")
    file.write_text("# nothing\n")
    with pytest.raises(ServerSettingsError, match="contains no key"):
        read_keys(file, "")


@pytest.mark.parametrize("key", ["test", "EMPTY", "x"])
def test_short_keys_are_for_this_machine_alone(directory: Path, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    options = {"api_keys": (key,)}
    assert request(directory, "GET", "/v1/models", options, headers).status_code == 200
    assert request(directory, "GET", "/v1/models", options, {}).status_code == 401
    assert ServerSettings(api_keys=(key,), uds=Path("/run/octavo")).has_short_key
    for host in ("0.0.0.0", "::", "192.168.1.5"):
        with pytest.raises(ServerSettingsError, match="fewer than 8"):
            ServerSettings(host=host, api_keys=(key, *KEYS))


@pytest.mark.parametrize("key", ["", " ", "\t"])
def test_an_empty_key_is_refused_everywhere(key: str) -> None:
    """An empty key would equal that of a request without one."""
    with pytest.raises(ServerSettingsError, match="an API key is empty"):
        ServerSettings(api_keys=(*KEYS, key))


def test_the_name_of_a_key_does_not_reveal_it() -> None:
    access = AccessControl(ServerSettings(api_keys=KEYS))
    names = {access.check_key("/x", {"authorization": f"Bearer {key}"}) for key in KEYS}
    assert len(names) == 2
    assert not any("secret" in name for name in names)
    with pytest.raises(ApiError):
        access.check_key("/x", {"authorization": "Bearer first-secre\udcff"})


def test_every_key_is_compared_after_a_match_too(monkeypatch: Any) -> None:
    """Otherwise the time would reveal the position of a key in the list."""
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr("octavo.transport.auth.hmac.compare_digest", compare)
    AccessControl(ServerSettings(api_keys=KEYS)).check_key("/x", {"x-api-key": KEYS[0]})
    assert len(compared) == 2


def test_another_key_cannot_explain_a_request(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, api_keys=KEYS) as client:
            first = {"authorization": f"Bearer {KEYS[0]}", "x-request-id": "mine"}
            body = json.dumps({"prompt": "x", "max_tokens": 1})
            made = await client.post(
                "/v1/completions",
                content=body,
                headers={**first, "content-type": "application/json"},
            )
            assert made.headers["x-request-id"] == "mine"
            path = "/v1/requests/mine/explain"
            assert (await client.get(path, headers=first)).status_code == 200
            second = {"authorization": f"Bearer {KEYS[1]}"}
            assert (await client.get(path, headers=second)).status_code == 404

    asyncio.run(main())


def test_keys_that_choose_the_same_id_keep_their_own_records(directory: Path) -> None:
    """A key that uses an id twice gets the record of the newer request."""

    async def main() -> None:
        async with serving(directory, api_keys=KEYS) as client:
            path = "/v1/requests/same/explain"
            for key, length in ((KEYS[0], 1), (KEYS[1], 2), (KEYS[1], 3)):
                headers = {"authorization": f"Bearer {key}", "x-request-id": "same"}
                body = {"prompt": "x", "max_tokens": length}
                made = await client.post("/v1/completions", json=body, headers=headers)
                assert made.json()["id"] == "cmpl-same"
            lengths = []
            for key in KEYS:
                headers = {"authorization": f"Bearer {key}"}
                lengths.append(
                    (await client.get(path, headers=headers)).json()["completion_tokens"]
                )
            assert lengths == [1, 3]

    asyncio.run(main())


def test_requests_with_the_same_id_run_at_once(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            answers = await asyncio.gather(
                *(
                    client.post(
                        "/v1/completions",
                        json={"prompt": text, "max_tokens": 20, "temperature": 0},
                        headers={"x-request-id": "same"},
                    )
                    for text in ("one", "two", "one")
                )
            )
            texts = [answer.json()["choices"][0]["text"] for answer in answers]
            assert texts[0] == texts[2] != texts[1]
            twice = [("x-request-id", "first"), ("x-request-id", "second")]
            answer = await client.get("/v1/models", headers=twice)
            assert answer.headers["x-request-id"] == "first"

    asyncio.run(main())


def test_prefixes_are_shared_only_within_a_key(directory: Path) -> None:
    async def cached(client: Any, key: str) -> int:
        body = {"prompt": list(range(2, 40)), "max_tokens": 1}
        headers = {"authorization": f"Bearer {key}"}
        answer = (await client.post("/v1/completions", json=body, headers=headers)).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def main(scope: str) -> list[int]:
        async with serving(directory, api_keys=KEYS, cache_scope=scope) as client:
            return [await cached(client, key) for key in (KEYS[0], KEYS[0], KEYS[1])]

    assert asyncio.run(main("key")) == [0, 36, 0]
    assert asyncio.run(main("global")) == [0, 36, 36]
