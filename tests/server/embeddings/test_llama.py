"""/embedding and /embeddings answer llama-server's requests with lists of lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.embeddings.make import run
from tests.server.embeddings.test_scores import EMBEDDER, TEXTS
from tests.server.make import Client


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_each_text_has_a_list_with_its_vector(directory: Path, path: str) -> None:
    async def test(client: Client) -> None:
        for normalize, sent in ((True, {}), (True, {"embd_normalize": 2})):
            await same_as_the_other_route(client, path, normalize, sent)
        await same_as_the_other_route(client, path, False, {"embd_normalize": -1})

    run(directory, test, EMBEDDER)


async def same_as_the_other_route(
    client: Client, path: str, normalize: bool, sent: dict[str, Any]
) -> None:
    ids = (await client.post("/tokenize", json={"content": TEXTS[0]})).json()["tokens"]
    for given in (TEXTS, TEXTS[0], ids, [ids, ids]):
        body = {"input": given, "use_activation": normalize}
        data = (await client.post("/v1/embeddings", json=body)).json()["data"]
        for field in ("content", "input"):
            answer = await client.post(path, json={field: given, **sent})
            assert answer.json() == [
                {"index": each["index"], "embedding": [each["embedding"]]} for each in data
            ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "content"),
        ({"content": "a", "input": "a"}, "content"),
        ({"content": []}, "content"),
        ({"input": ["a", [999_999]]}, "input[1]"),
        ({"content": ["a", 5]}, "content"),
        ({"content": "a", "embd_normalize": 0}, "embd_normalize"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_field(
    directory: Path, body: dict[str, Any], param: str
) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/embedding", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param

    run(directory, test, EMBEDDER)
