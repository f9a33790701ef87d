"""Scores and orders of documents are the engine's, by embeddings or by a cross-encoder."""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import Any

import pytest

from octavo.api.pooling.vectors import cosine, product
from octavo.model_facts import PoolingFacts
from tests.server.embeddings.make import run
from tests.server.engine import CLASSES, WIDTH, vector_of
from tests.server.make import Client

EMBEDDER = PoolingFacts(width=WIDTH)
CROSS = PoolingFacts(
    tasks=("score", "classify"), width=WIDTH, labels=("LABEL_0",), squash="sigmoid"
)
QUERY, TEXTS = "The quick fox", ["a dog", "the lazy dog", "Übermut"]
TEMPLATE = (
    "{% for message in messages if message.role == 'query' %}Q {{ message.content }}{% endfor %}"
    "{% for message in messages if message.role == 'document' %} D {{ message.content }}"
    "{% endfor %} !"
)


async def ids_of(client: Client, text: str) -> list[int]:
    body = {"prompt": text}
    ids: list[int] = (await client.post("/tokenize", json=body)).json()["tokens"]
    return ids


async def embedding(client: Client, text: str) -> list[float]:
    return list(vector_of([*await ids_of(client, text), 0], WIDTH))


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value))


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (("text_1", "text_2"), "/score"),
        (("queries", "documents"), "/v1/score"),
        (("queries", "items"), "/score"),
        (("data_1", "data_2"), "/score"),
    ],
)
def test_without_a_cross_encoder_a_score_is_the_cosine_of_embeddings(
    directory: Path, names: tuple[str, str], path: str
) -> None:
    async def test(client: Client) -> None:
        query = await embedding(client, QUERY)
        expected = [cosine(query, await embedding(client, text)) for text in TEXTS]
        one, other = names
        body = (await client.post(path, json={one: QUERY, other: TEXTS})).json()
        assert body["id"].startswith("score-")
        assert [each["index"] for each in body["data"]] == [0, 1, 2]
        assert [each["score"] for each in body["data"]] == pytest.approx(expected)
        here = (await client.post("/invocations", json={one: QUERY, other: TEXTS})).json()
        assert here["data"] == body["data"]
        counts = [len(await ids_of(client, text)) for text in (QUERY, *TEXTS)]
        assert body["usage"]["total_tokens"] == sum(counts)
        each = (await client.post(path, json={one: [*TEXTS[1:], QUERY], other: TEXTS})).json()
        pairs = zip([*TEXTS[1:], QUERY], TEXTS, strict=True)
        expected = [
            cosine(await embedding(client, a), await embedding(client, b)) for a, b in pairs
        ]
        assert [found["score"] for found in each["data"]] == pytest.approx(expected)

    run(directory, test, EMBEDDER)


def test_a_model_of_dot_products_is_compared_by_them(directory: Path) -> None:
    async def test(client: Client) -> None:
        expected = product(await embedding(client, QUERY), await embedding(client, TEXTS[0]))
        body = {"text_1": QUERY, "text_2": TEXTS[0]}
        (found,) = (await client.post("/score", json=body)).json()["data"]
        assert found["score"] == pytest.approx(expected)

    run(directory, test, PoolingFacts(width=WIDTH, normalize=False, similarity="dot"))


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_in_the_order_of_their_scores(directory: Path, path: str) -> None:
    async def test(client: Client) -> None:
        given = [*TEXTS, TEXTS[0]]
        body: dict[str, Any] = {"query": QUERY, "documents": given}
        scores = {"text_1": QUERY, "text_2": given}
        data = (await client.post("/score", json=scores)).json()["data"]
        answer = (await client.post(path, json=body)).json()
        assert answer["id"].startswith("rerank-")
        expected = sorted(range(4), key=lambda index: -data[index]["score"])
        assert [each["index"] for each in answer["results"]] == expected
        here = (await client.post("/invocations", json=body)).json()
        assert [each["index"] for each in here["results"]] == expected
        for each in answer["results"]:
            assert each["relevance_score"] == data[each["index"]]["score"]
            returns = path != "/v2/rerank"
            assert each.get("document") == ({"text": given[each["index"]]} if returns else None)
        assert ("meta" in answer) == (path == "/v2/rerank")
        mixed = [{"text": given[0]}, *given[1:]]
        body = {
            "query": QUERY,
            "documents": mixed,
            "top_n": 2,
            "return_documents": path != "/rerank",
        }
        best = (await client.post(path, json=body)).json()["results"]
        assert [each["index"] for each in best] == expected[:2]
        assert all(("document" in each) == (path != "/rerank") for each in best)

    run(directory, test, EMBEDDER)


def test_a_cross_encoder_reads_both_texts_as_one_prompt(directory: Path) -> None:
    """The tokenizer puts nothing between the texts; the engine knows where the second begins."""

    async def test(client: Client) -> None:
        first = await ids_of(client, QUERY)
        expected = []
        for text in TEXTS:
            prompt = [*first, *await ids_of(client, text), len(first)]
            expected.append(vector_of(prompt, CLASSES)[0])
        body = {"text_1": QUERY, "text_2": TEXTS}
        data = (await client.post("/score", json=body)).json()["data"]
        assert [each["score"] for each in data] == pytest.approx(list(map(sigmoid, expected)))
        raw = (await client.post("/score", json={**body, "use_activation": False})).json()["data"]
        assert [each["score"] for each in raw] == pytest.approx(expected)
        ranked = (await client.post("/rerank", json={"query": QUERY, "documents": TEXTS})).json()
        scores = [each["relevance_score"] for each in ranked["results"]]
        assert scores == sorted((each["score"] for each in data), reverse=True)
        cut = {**body, "truncate_prompt_tokens": len(first) + 1}
        shorter = (await client.post("/score", json=cut)).json()
        assert shorter["usage"]["prompt_tokens"] == 3 * (len(first) + 1)

    run(directory, test, CROSS)


def test_a_score_template_writes_the_prompt(directory: Path) -> None:
    async def test(client: Client) -> None:
        ids = await ids_of(client, f"Q {QUERY} D {TEXTS[0]} !")
        expected = sigmoid(vector_of([*ids, 0], CLASSES)[0])
        body = {"text_1": QUERY, "text_2": TEXTS[0]}
        answer = (await client.post("/score", json=body)).json()
        assert answer["data"][0]["score"] == pytest.approx(expected)
        assert answer["usage"]["prompt_tokens"] == len(ids)

    run(directory, test, CROSS, chat_template=TEMPLATE)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {"text_1": "x"}, "text_2"),
        ("/score", {}, "text_1"),
        ("/score", {"items": "x"}, "queries"),
        ("/score", {"queries": "x", "items": "y", "documents": "z"}, "text_1"),
        ("/score", {"text_1": "x", "text_2": "y", "queries": "z"}, "text_1"),
        ("/score", {"text_1": ["x", "y"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": "x", "text_2": []}, "text_2"),
        ("/score", {"text_1": "x", "text_2": ["y", ""]}, "text_2[1]"),
        ("/score", {"text_1": "x", "text_2": "y", "instruction": "z"}, "instruction"),
        ("/rerank", {"query": "x", "documents": []}, "documents"),
        ("/rerank", {"query": "", "documents": ["x"]}, "query"),
        ("/rerank", {"query": "x", "documents": ["y", ""]}, "documents[1]"),
        ("/rerank", {"query": "x", "documents": [{"txt": "y"}]}, "documents[0].text"),
        ("/rerank", {"query": "x", "documents": ["x"] * 2048}, "documents"),
        ("/rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n"),
    ],
)
def test_errors_name_the_field(
    directory: Path, path: str, body: dict[str, Any], param: str
) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param, answer.text

    run(directory, test, EMBEDDER)


def test_a_large_body_of_documents_is_read_by_a_worker(directory: Path) -> None:
    async def test(client: Client) -> None:
        texts = [f"The lazy dog {index}. {'x' * 2000}" for index in range(150)]
        body = {"query": QUERY, "documents": texts, "top_n": 3, "truncate_prompt_tokens": 40}
        best = (await client.post("/rerank", json=body)).json()["results"]
        assert [each["document"]["text"] for each in best] == [
            texts[each["index"]] for each in best
        ]
        few = [texts[each["index"]] for each in best]
        again = (await client.post("/rerank", json={**body, "documents": few})).json()["results"]
        assert [each["relevance_score"] for each in again] == [
            each["relevance_score"] for each in best
        ]

    run(directory, test, EMBEDDER)
    run(directory, test, CROSS)


@pytest.mark.parametrize("facts", [EMBEDDER, CROSS])
@pytest.mark.parametrize("size", [1, 300])
def test_texts_are_cut_each_by_itself(directory: Path, facts: PoolingFacts, size: int) -> None:
    """The answer is that of the beginnings, small or in a body that a worker reads."""

    async def test(client: Client) -> None:
        ids = await ids_of(client, QUERY), await ids_of(client, TEXTS[1])
        most = [len(ids[0]) - 1, len(ids[1]) - 2]
        short = []
        for tokens, kept in zip(ids, most, strict=True):
            found = await client.post("/detokenize", json={"tokens": tokens[:kept]})
            short.append(found.json()["prompt"])
        expected = (
            await client.post("/score", json={"text_1": short[0], "text_2": short[1]})
        ).json()
        body: dict[str, Any] = {
            "queries": QUERY,
            "documents": [TEXTS[1] + " And more." * 200] * size,
            "max_tokens_per_query": most[0],
            "max_tokens_per_doc": most[1],
        }
        found = (await client.post("/score", json=body)).json()
        assert [each["score"] for each in found["data"]] == [expected["data"][0]["score"]] * size
        body["query"] = body.pop("queries")
        ranked = (await client.post("/rerank", json=body)).json()
        assert ranked["results"][0]["relevance_score"] == expected["data"][0]["score"]
        body |= {"max_tokens_per_doc": 0, "max_tokens_per_query": None}
        refused = await client.post("/rerank", json=body)
        assert refused.json()["error"]["code"] == "context_length_exceeded"

    run(directory, test, facts)


@pytest.mark.parametrize("name", ["max_tokens_per_query", "max_tokens_per_doc"])
def test_a_text_cannot_be_cut_to_less_than_nothing(directory: Path, name: str) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/rerank", json={"query": "x", "documents": ["y"], name: -1})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)

    run(directory, test, EMBEDDER)


def test_a_query_counts_once_for_each_document(directory: Path) -> None:
    """Each prompt has the whole query: a body may ask for thousands of times its size."""

    async def test(client: Client) -> None:
        admission = client.server.admission
        other = admission.register("", 10)
        body: dict[str, Any] = {"query": "x" * 100, "documents": ["y"] * 100}
        refused = await client.post("/rerank", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bytes")
        assert (await client.post("/rerank", json={**body, "documents": ["y"]})).status_code == 200
        other.leave()
        body = {"query": "x" * 40_000, "documents": ["y"] * 1000}
        refused = await client.post("/rerank", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "documents[0]"

    run(directory, test, CROSS, max_waiting_bytes=5000)
