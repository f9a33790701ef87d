"""The name in a request selects the model or an adapter, in every dialect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from octavo.model_facts import PoolingFacts
from tests.server.adapters.make import text_of, with_adapters
from tests.server.engine import WIDTH, FakeEngine
from tests.server.make import Client, serving

TURN = [{"role": "user", "content": "Hello"}]
# What each dialect is sent beside a model's name, and where its answer has the name and the text.
DIALECTS: list[tuple[str, dict[str, Any], Any, Any]] = [
    (
        "/v1/completions",
        {"prompt": "x", "max_tokens": 8, "temperature": 0},
        lambda a: a["model"],
        lambda a: a["choices"][0]["text"],
    ),
    (
        "/v1/chat/completions",
        {"messages": TURN, "max_tokens": 8, "temperature": 0},
        lambda a: a["model"],
        lambda a: a["choices"][0]["message"]["content"],
    ),
    (
        "/v1/responses",
        {"input": "x", "max_output_tokens": 8, "temperature": 0, "store": False},
        lambda a: a["model"],
        lambda a: a["output"][0]["content"][0]["text"],
    ),
    (
        "/v1/messages",
        {"messages": TURN, "max_tokens": 8, "temperature": 0},
        lambda a: a["model"],
        lambda a: a["content"][0]["text"],
    ),
    (
        "/api/generate",
        {"prompt": "x", "stream": False, "options": {"num_predict": 8, "temperature": 0}},
        lambda a: a["model"],
        lambda a: a["response"],
    ),
    (
        "/api/chat",
        {"messages": TURN, "stream": False, "options": {"num_predict": 8, "temperature": 0}},
        lambda a: a["model"],
        lambda a: a["message"]["content"],
    ),
    (
        "/completion",
        {"prompt": "x", "n_predict": 8, "temperature": 0},
        lambda a: a["model"],
        lambda a: a["content"],
    ),
    (
        "/generate",
        {"inputs": "x", "parameters": {"max_new_tokens": 8}},
        None,
        lambda a: a["generated_text"],
    ),
    (
        "/v2/chat",
        {"messages": TURN, "max_tokens": 8, "temperature": 0},
        None,
        lambda a: a["message"]["content"][0]["text"],
    ),
    (
        "/v1/fim/completions",
        {"prompt": "x", "max_tokens": 8, "temperature": 0},
        lambda a: a["model"],
        lambda a: a["choices"][0]["message"]["content"],
    ),
    (
        "/inference/v1/generate",
        {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 8, "temperature": 0}},
        None,
        lambda a: a["choices"][0]["token_ids"],
    ),
]


def test_a_name_selects_an_adapter_in_each_dialect(directory: Path, tmp_path: Path) -> None:
    async def ask(client: Client, path: str, body: dict[str, Any], model: Any, text: Any) -> None:
        found: dict[str, Any] = {}
        for name in ("tiny", "sql", "law", "sql"):
            response = await client.post(path, json={**body, "model": name})
            assert response.status_code == 200, (path, response.text)
            answer = response.json()
            if model is not None:
                assert model(answer) == name, path
            assert found.setdefault(name, text(answer)) == text(answer), path
        assert len({str(each) for each in found.values()}) == 3, (path, found)
        unknown = await client.post(path, json={**body, "model": "sqll"})
        assert unknown.status_code == 404, path
        assert "sql" in unknown.text, path

    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            for path, body, model, text in DIALECTS:
                await ask(client, path, body, model, text)

    asyncio.run(main())


VECTORS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "x"}),
    ("/pooling", {"input": "x"}),
    ("/score", {"text_1": "x", "text_2": "y"}),
    ("/rerank", {"query": "x", "documents": ["y", "z"]}),
    ("/v2/embed", {"texts": ["x"], "embedding_types": ["float"], "input_type": "search_query"}),
    ("/api/embed", {"input": "x"}),
]


def test_a_name_selects_an_adapter_for_vectors(directory: Path, tmp_path: Path) -> None:
    pooling = PoolingFacts(tasks=("generate", "embed"), width=WIDTH)

    async def main() -> None:
        engine = FakeEngine(directory, max_loras=2, pooling=pooling)
        async with with_adapters(directory, tmp_path, engine) as client:
            for path, body in VECTORS:
                found = set()
                for name in ("tiny", "sql", "law"):
                    response = await client.post(path, json={**body, "model": name})
                    assert response.status_code == 200, (path, response.text)
                    answer = response.json()
                    assert answer.get("model", name) == name
                    found.add(str([answer.get(key) for key in ("data", "embeddings", "results")]))
                assert len(found) == 3, path

    asyncio.run(main())


def test_other_ways_to_name_an_adapter(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            base, sql = await text_of(client), await text_of(client, "sql")
            assert base != sql
            assert await text_of(client, "tiny:sql") == sql
            assert await text_of(client, "tiny", lora_path="sql") == sql
            assert await text_of(client, lora_path="sql") == sql
            assert await text_of(client, lora=[{"id": 0, "scale": 1}]) == sql
            both = [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.0}]
            assert await text_of(client, lora=both) == sql
            assert await text_of(client, lora=[{"id": 0, "scale": 0}]) == base
            half = await text_of(client, lora=[{"id": 0, "scale": 0.5}])
            assert half not in (base, sql)
            for other in ({"model": "sql"}, {"lora_path": "sql"}, {"model": "tiny:sql"}):
                for scale, expected in ((0.5, half), (1, sql), (0, base)):
                    assert await text_of(client, lora=[{"id": 0, "scale": scale}], **other) == (
                        expected
                    )
                for scales in ([], [{"id": 1, "scale": 0}]):
                    assert await text_of(client, lora=scales, **other) == sql
            body = {"prompt": "The quick", "n_predict": 8, "temperature": 0}
            body["lora"] = [{"id": 0, "scale": 0.5}]
            assert (await client.post("/completion", json=body)).json()["content"] == half
            body = {"inputs": "The quick", "parameters": {"max_new_tokens": 8, "adapter_id": "sql"}}
            assert (await client.post("/generate", json=body)).json()["generated_text"] == sql
            body = {"model": "sql:latest", "prompt": "The quick", "raw": True, "stream": False}
            body["options"] = {"num_predict": 8, "temperature": 0}
            assert (await client.post("/api/generate", json=body)).json()["response"] == sql

    asyncio.run(main())


REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"model": "nothing"}, 404, "model", "model_not_found"),
    ({"model": "tiny:nothing"}, 404, "model", "model_not_found"),
    ({"lora_path": "nothing"}, 404, "lora_path", "model_not_found"),
    ({"model": "nothing", "lora_path": "sql"}, 404, "lora_path", "model_not_found"),
    ({"lora": [{"id": 9, "scale": 1}]}, 400, "lora", None),
    (
        {"lora": [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]},
        400,
        "lora",
        "unsupported_parameter",
    ),
    ({"model": "sql", "lora": [{"id": 1, "scale": 1}]}, 400, "lora", "unsupported_parameter"),
    ({"lora_path": "sql", "lora": [{"id": 9, "scale": 1}]}, 400, "lora", None),
    ({"lora": [{"id": 0, "scale": 1e9}]}, 400, "lora[0].scale", None),
]


def test_what_selects_nothing_is_refused(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            for fields, *expected in REFUSED:
                response = await client.post("/v1/completions", json={"prompt": "x", **fields})
                error = response.json()["error"]
                found = [response.status_code, error["param"], error["code"]]
                assert found == expected, fields

    asyncio.run(main())


def test_a_server_without_adapters_refuses_their_names(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for fields in ({"model": "sql"}, {"lora_path": "sql"}):
                response = await client.post("/v1/completions", json={"prompt": "x", **fields})
                assert response.status_code == 404
            answer = (await client.get("/v1/models")).json()
            assert [each["id"] for each in answer["data"]] == ["tiny"]
            assert (await client.get("/lora-adapters")).json() == []

    asyncio.run(main())


def test_adapters_are_listed_with_their_parent(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with with_adapters(directory, tmp_path) as client:
            cards = (await client.get("/v1/models")).json()["data"]
            assert [each["id"] for each in cards] == ["tiny", "sql", "law"]
            assert [each["parent"] for each in cards] == [None, "tiny", "tiny"]
            assert cards[1]["root"] == str(tmp_path / "sql")
            assert (await client.get("/v1/models/sql")).json() == cards[1]
            assert (await client.get("/v1/models/nothing")).status_code == 404
            tags = (await client.get("/api/tags")).json()["models"]
            assert [each["name"] for each in tags] == ["tiny", "sql", "law"]
            shown = (await client.post("/api/show", json={"model": "sql"})).json()
            assert f"ADAPTER {tmp_path / 'sql'}" in shown["modelfile"]

    asyncio.run(main())


def test_the_explanation_and_the_metric_name_the_adapter(directory: Path, tmp_path: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, max_loras=2)
        async with with_adapters(directory, tmp_path, engine) as client:
            lines: list[bytes] = []

            def look() -> None:
                if not lines and client.server.active:
                    lines.append(client.server.metrics.text("tiny", "vllm"))

            engine.runner.before_step = look
            headers = {"x-request-id": "one"}
            body = {"prompt": "x", "model": "sql", "max_tokens": 2}
            await client.post("/v1/completions", json=body, headers=headers)
            explained = (await client.get("/v1/requests/one/explain")).json()
            assert explained["adapter"] == "sql"
            assert explained["adapter_id"] == engine.loaded[0]
            (line,) = [each for each in lines[0].splitlines() if each.startswith(b"vllm:lora")]
            assert b'max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""' in line

    asyncio.run(main())
