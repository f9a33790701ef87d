"""/embed and /rerank answer TEI's requests with lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.model_facts import PoolingFacts
from tests.server.embeddings.make import run
from tests.server.embeddings.test_scores import CROSS, EMBEDDER, QUERY, TEXTS
from tests.server.engine import WIDTH
from tests.server.make import Client


@pytest.mark.parametrize("facts", [CROSS, EMBEDDER])
@pytest.mark.parametrize("raw", [False, True])
def test_texts_come_in_the_order_of_their_scores(
    directory: Path, facts: PoolingFacts, raw: bool
) -> None:
    async def test(client: Client) -> None:
        body: dict[str, Any] = {"query": QUERY, "raw_scores": raw}
        same: dict[str, Any] = {"query": QUERY, "documents": TEXTS}
        if raw:
            same["use_activation"] = False
        expected = (await client.post("/v1/rerank", json=same)).json()["results"]
        for path in ("/rerank", "/invocations"):
            answer = (await client.post(path, json={**body, "texts": TEXTS})).json()
            assert answer == [
                {"index": each["index"], "score": each["relevance_score"]} for each in expected
            ]
        texts = {**body, "texts": TEXTS, "return_text": True}
        answer = (await client.post("/rerank", json=texts)).json()
        assert [each["text"] for each in answer] == [TEXTS[each["index"]] for each in expected]

    run(directory, test, facts)


def test_vectors_are_a_list(directory: Path) -> None:
    async def test(client: Client) -> None:
        for normalize in (True, False):
            same = {"input": TEXTS, "normalize": normalize}
            data = (await client.post("/v1/embeddings", json=same)).json()["data"]
            body = {"inputs": TEXTS, "normalize": normalize}
            answer = await client.post("/embed", json=body)
            assert answer.json() == [each["embedding"] for each in data]
        one = (await client.post("/embed", json={"inputs": TEXTS[0], "normalize": False})).json()
        assert one == [data[0]["embedding"]]
        ids = (await client.post("/tokenize", json={"prompt": TEXTS[0]})).json()["tokens"]
        assert (
            await client.post("/embed", json={"inputs": [ids], "normalize": False})
        ).json() == one

    run(directory, test, EMBEDDER)


@pytest.mark.parametrize("path", ["/embed", "/rerank"])
def test_a_text_that_is_too_long_is_cut_only_if_that_is_asked_for(
    directory: Path, path: str
) -> None:
    async def test(client: Client) -> None:
        long = ["x", "word " * 400]
        name = "inputs" if path == "/embed" else "texts"
        body = {name: long} if path == "/embed" else {"query": QUERY, name: long}
        refused = await client.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == f"{name}[1]"
        cut = await client.post(path, json={**body, "truncate": True})
        assert (cut.status_code, len(cut.json())) == (200, 2)

    run(directory, test, PoolingFacts(width=WIDTH))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "x"}, "documents"),
        ("/rerank", {"query": "x", "texts": ["x"], "documents": ["x"]}, "documents"),
        ("/rerank", {"query": "x", "documents": ["x"], "raw_scores": True}, "raw_scores"),
        ("/rerank", {"query": "x", "texts": []}, "texts"),
        (
            "/rerank",
            {"query": "x", "texts": ["x"], "truncate": True, "truncation_direction": "Left"},
            "truncation_direction",
        ),
        ("/embed", {}, "inputs"),
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": [[99_999]]}, "inputs[0]"),
        ("/embed", {"inputs": "x", "dimensions": 10_000}, "dimensions"),
    ],
)
def test_errors_name_the_field(
    directory: Path, path: str, body: dict[str, Any], param: str
) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param

    run(directory, test, EMBEDDER)
