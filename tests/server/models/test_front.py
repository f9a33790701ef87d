"""HTTP to several models: each request goes to the one that it names, in every dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.make import until
from tests.server.models.make import Site

MESSAGES = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def site_of(directory: Path, **options: Any) -> AsyncIterator[tuple[Site, httpx.AsyncClient]]:
    site = Site(directory, **options)
    transport = httpx.ASGITransport(site.application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            yield site, client
        finally:
            site.opener.gate.set()
            await site.models.close()


def run(
    directory: Path, work: Callable[[Site, httpx.AsyncClient], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        async with site_of(directory, **options) as (site, client):
            await work(site, client)

    asyncio.run(main())


@pytest.mark.slow
def test_each_dialect_answers_with_the_model_that_is_named(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        chat = {"messages": MESSAGES, "max_tokens": 2}
        asked: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
            ("/v1/chat/completions", chat),
            ("/v1/messages", chat),
            ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}),
            ("/api/chat", {"messages": MESSAGES, "stream": False, "options": {"num_predict": 2}}),
            ("/v1/embeddings", {"input": ["Hi"]}),
        ]
        for path, body in asked:
            for name in ("a", "b"):
                response = await client.post(path, json={**body, "model": name})
                assert response.status_code == 200, response.text
                assert response.json()["model"] == name
        response = await client.post(
            "/v1/completions?model=c", json={"prompt": "Hi", "max_tokens": 2}
        )
        assert response.status_code == 200, response.text
        assert response.json()["model"] == "c"
        response = await client.post("/invocations", json={"prompt": "Hi", "model": "a"})
        assert response.json()["model"] == "a"

    run(directory, work)


@pytest.mark.slow
def test_a_large_body_names_its_model(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        body = {"prompt": "x" * 300_000, "model": "b", "truncate_prompt_tokens": 5}
        response = await client.post("/v1/completions", json={**body, "max_tokens": 1})
        assert response.status_code == 200, response.text
        assert response.json()["model"] == "b"

    run(directory, work)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": "Hi"}, 400, "model"),
        ({"prompt": "Hi", "model": None}, 400, "model"),
        ({"prompt": "Hi", "model": ["a"]}, 400, "model"),
        ({"prompt": "Hi", "model": "a" * 5000}, 400, "model"),
        ({"prompt": "Hi", "model": "x"}, 404, "model"),
        ({"prompt": "Hi", "model": "a", "nonsense": [["model"]], "max_tokens": -3}, 400, None),
    ],
)
def test_wrong_requests(directory: Path, body: Any, status: int, param: str | None) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == status
        if param is not None:
            assert response.json()["error"]["param"] == param
            assert site.opener.opened == []
        assert site.front.admission.num_open == 0

    run(directory, work)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"model": "a"', b"\xff", b"[" * 9999]
)
def test_malformed_bodies_load_nothing(directory: Path, body: bytes) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        kind = {"content-type": "application/json"}
        response = await client.post("/v1/completions", content=body, headers=kind)
        assert response.status_code == 400
        assert site.opener.opened == []

    run(directory, work)


def test_the_lists_have_all_models(directory: Path) -> None:
    """A list has those that were not used yet too, and nothing is loaded for it."""

    async def work(site: Site, client: httpx.AsyncClient) -> None:
        await client.post("/v1/completions", json={"prompt": "Hi", "model": "b", "max_tokens": 1})
        cards = (await client.get("/v1/models")).json()["data"]
        assert [each["id"] for each in cards] == ["a", "b", "c"]
        states = [each["status"]["value"] for each in cards]
        assert states == ["unloaded", "loaded", "unloaded"]
        assert (await client.get("/v1/models/b")).json()["max_model_len"] == 256
        assert (await client.get("/v1/models/x")).status_code == 404
        tags = (await client.get("/api/tags")).json()["models"]
        assert [each["name"] for each in tags] == ["a", "b", "c"]
        loaded = (await client.get("/api/ps")).json()["models"]
        assert [each["name"] for each in loaded] == ["b"]
        assert (await client.post("/api/pull", json={"model": "c:latest"})).status_code == 200
        assert (await client.post("/api/pull", json={"model": "x"})).status_code == 404
        assert site.opener.opened == ["b"]

    run(directory, work)


def test_keep_alive(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model sleeps as soon as a request of Ollama's says, and /api/ps shows when."""
    monkeypatch.setattr("octavo.server.models.models.WATCH_SECONDS", 0.001)

    async def work(site: Site, client: httpx.AsyncClient) -> None:
        site.models.start()
        response = await client.post("/api/chat", json={"model": "a:latest", "keep_alive": "5m"})
        assert response.json()["done_reason"] == "load"
        (card,) = (await client.get("/api/ps")).json()["models"]
        assert not card["expires_at"].startswith("9999")
        response = await client.post("/api/chat", json={"model": "a", "keep_alive": 0})
        assert response.json()["done_reason"] == "unload"
        await until(lambda: site.states() == "sleeping unloaded unloaded")
        for wrong in ("soon", [1] * 100_000):
            response = await client.post("/api/chat", json={"model": "a", "keep_alive": wrong})
            assert response.status_code == 400
        body = b'{"model": "a", "keep_alive": 1e400}'
        assert (await client.post("/api/chat", content=body)).status_code == 400
        for long in (1e12, "999999999h"):
            await client.post("/api/chat", json={"model": "a", "keep_alive": long})
            (card,) = (await client.get("/api/ps")).json()["models"]
            assert card["expires_at"].startswith("9999")

    run(directory, work)


def test_what_belongs_to_one_model_is_refused(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        asked = [("GET", "/v1/files"), ("GET", "/v1/batches/x"), ("POST", "/v1/load_lora_adapter")]
        asked += [("GET", "/v1/streams/x"), ("POST", "/api/create"), ("GET", "/lora-adapters")]
        for method, path in asked:
            response = await client.request(method, path)
            assert response.status_code == 404
            assert "unsupported_route" in response.text or path.startswith("/api/")

    run(directory, work)


def test_responses_are_found_whatever_model_made_them(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/responses/resp_x")).status_code == 404
        made = []
        for name in ("a", "b"):
            body = {"model": name, "input": "Hi", "max_output_tokens": 2}
            made.append((await client.post("/v1/responses", json=body)).json())
        for each in made:
            assert (await client.get(f"/v1/responses/{each['id']}")).json() == each
        body = {"model": "a", "input": "On", "previous_response_id": made[1]["id"]}
        assert (await client.post("/v1/responses", json=body)).status_code == 200

    run(directory, work)


def test_metrics_have_a_series_for_each_model(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        for name in ("a", "b"):
            body = {"prompt": "Hi", "model": name, "max_tokens": 2}
            await client.post("/v1/completions", json=body)
        lines = (await client.get("/metrics")).text.splitlines()
        heads = [line for line in lines if line.startswith("# TYPE")]
        assert len(heads) == len(set(heads))
        series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
        assert len(series) == len(set(series))
        assert 'octavo:generation_tokens_total{model_name="a",engine="0"} 2.0' in lines
        assert 'octavo:generation_tokens_total{model_name="b",engine="0"} 2.0' in lines
        assert 'octavo:models{model_name="",engine="0",state="loaded"} 2.0' in lines
        assert len([line for line in lines if line.startswith("process_cpu_seconds_total")]) == 1

    run(directory, work)


def test_health_and_documents_need_no_model(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        paths = ("/", "/health", "/health/live", "/ping", "/version", "/docs", "/openapi.json")
        for path in (*paths, "/api/version", "/v1/health"):
            assert (await client.get(path)).status_code == 200, path
        site.site.drain()
        assert (await client.get("/health")).status_code == 503
        response = await client.post("/v1/completions", json={"prompt": "Hi", "model": "a"})
        assert response.json()["error"]["code"] == "server_shutdown"
        assert site.opener.opened == []

    run(directory, work)


def test_requests_that_wait_for_a_model_are_bounded(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        site.opener.gate.clear()
        body = {"prompt": "Hi", "model": "a", "max_tokens": 1}
        posts = [client.post("/v1/completions", json=body) for _ in range(2)]
        waiting = [asyncio.ensure_future(each) for each in posts]
        await until(lambda: site.front.admission.num_open == 2)
        refused = await client.post("/v1/completions", json=body)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        site.opener.gate.set()
        assert [(await each).status_code for each in waiting] == [200, 200]
        assert site.front.admission.num_open == 0

    run(directory, work, max_waiting_requests=2)


def test_a_stream_goes_on_while_another_model_is_loaded(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        body = {"prompt": "Hi", "model": "a", "max_tokens": 50, "temperature": 0}
        whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        site.opener.gate.clear()
        other = asyncio.ensure_future(client.post("/v1/completions", json={**body, "model": "b"}))
        await until(lambda: "b" in site.opener.opened)
        response = await client.post("/v1/completions", json={**body, "stream": True})
        frames = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
        assert "".join(json.loads(each)["choices"][0]["text"] for each in frames) == whole
        assert not other.done()
        site.opener.gate.set()
        assert (await other).status_code == 200

    run(directory, work)


def test_the_live_stream_shows_each_model_that_was_used(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        listener = site.front.live.join("")
        try:
            frame = json.loads((await listener.next()).removeprefix(b"data: "))
            assert frame["models"] == []
            for name in ("a", "b"):
                body = {"model": name, "prompt": "Hi", "max_tokens": 2}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
            while len(frame["ended"]) < 2:
                frame = json.loads((await listener.next()).removeprefix(b"data: "))
        finally:
            site.front.live.leave(listener)
        assert [each["name"] for each in frame["models"]] == ["a", "b"]
        assert len(frame["ended"]) == 2

    run(directory, work)
