"""A text longer than the model reads is embedded as the mean of its pieces' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.model_facts import PoolingFacts
from tests.server.embeddings.make import run
from tests.server.engine import WIDTH, vector_of
from tests.server.make import Client

LENGTH, MOST = 256, 1100  # of the model, and of a text
LONG = "The quick fox " * 90
PLAIN = PoolingFacts(width=WIDTH, normalize=False)


async def ids_of(client: Client, text: str) -> list[int]:
    ids: list[int] = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    return ids


def mean_of(ids: list[int]) -> list[float]:
    """Return the mean of the vectors of the pieces, each as often as it has tokens."""
    total = [0.0] * WIDTH
    for start in range(0, len(ids), LENGTH):
        piece = ids[start : start + LENGTH]
        for place, value in enumerate(vector_of([*piece, 0], WIDTH)):
            total[place] += len(piece) * value
    return [value / len(ids) for value in total]


@pytest.mark.parametrize("normalize", [False, True])
def test_a_vector_is_the_mean_of_its_pieces(directory: Path, normalize: bool) -> None:
    async def test(client: Client) -> None:
        ids = await ids_of(client, LONG)
        assert LENGTH < len(ids) <= MOST
        texts = ["The quick fox", LONG, "a dog", LONG + "a"]
        expected = [mean_of(await ids_of(client, text)) for text in texts]
        if normalize:
            lengths = [sum(value * value for value in each) ** 0.5 for each in expected]
            pairs = zip(expected, lengths, strict=True)
            expected = [[value / length for value in each] for each, length in pairs]
        body = {"input": texts, "normalize": normalize}
        answer = (await client.post("/v1/embeddings", json=body)).json()
        found = [each["embedding"] for each in answer["data"]]
        assert found == [pytest.approx(each, abs=1e-6) for each in expected]
        assert [each["index"] for each in answer["data"]] == [0, 1, 2, 3]
        num_tokens = sum([len(await ids_of(client, text)) for text in texts])
        assert answer["usage"]["prompt_tokens"] == num_tokens
        tokens = {"input": [await ids_of(client, text) for text in texts], "normalize": normalize}
        again = (await client.post("/v1/embeddings", json=tokens)).json()
        assert again["data"] == answer["data"]
        listed = (
            await client.post("/embed", json={"inputs": texts, "normalize": normalize})
        ).json()
        assert listed == found

    run(directory, test, PLAIN, max_embed_len=MOST)


@pytest.mark.parametrize(
    ("path", "fields", "options"),
    [
        ("/v1/embeddings", {}, {}),
        ("/v1/embeddings", {"input": ["x", LONG * 3]}, {"max_embed_len": MOST}),
        ("/pooling", {"task": "token_embed"}, {"max_embed_len": MOST}),
    ],
)
def test_a_text_that_is_too_long_for_pieces_is_refused(
    directory: Path, path: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(path, json={"input": ["x", LONG], **fields})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")

    run(directory, test, PLAIN, **options)


def test_a_text_that_is_cut_has_no_pieces(directory: Path) -> None:
    async def test(client: Client) -> None:
        ids = await ids_of(client, LONG)
        body = {"input": LONG, "truncate_prompt_tokens": 40}
        answer = (await client.post("/v1/embeddings", json=body)).json()
        (data,) = answer["data"]
        assert data["embedding"] == pytest.approx(list(vector_of([*ids[:40], 0], WIDTH)))
        assert answer["usage"]["prompt_tokens"] == 40

    run(directory, test, PLAIN, max_embed_len=MOST)
