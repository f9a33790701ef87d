"""/embedding and /embeddings answer llama-server's requests with lists of lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from octavo.dialects.embeddings.inputs import input_job
from octavo.workers.jobs import PromptJob, packed
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
        ({"content": ["a", 5, [5]]}, "content"),
        ({"content": ["a", [5, "b", 999_999]]}, "content[1]"),
        (
            {"content": {"prompt_string": "a", "content": [{"type": "text", "text": "a"}]}},
            "content",
        ),
        ({"content": {"multimodal_data": ["x"], "prompt_string": "a"}}, "content.multimodal_data"),
        ({"input": ["a", {"content": [{"type": "image_url", "image_url": {}}]}]}, "input[1]"),
        ({"input": ["a", {}]}, "input[1]"),
        ({"input": {"content": "a"}}, "input.content"),
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


def test_texts_and_token_ids_may_be_mixed_and_given_as_objects(directory: Path) -> None:
    """The first text of a list of both has the special tokens around it, and no other one."""

    async def test(client: Client) -> None:
        framed = (
            await client.post("/tokenize", json={"content": "Hi", "add_special": True})
        ).json()
        bare = (await client.post("/tokenize", json={"content": "you"})).json()["tokens"]
        ids = framed["tokens"]
        object_ = {"content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]}
        pairs: list[tuple[Any, Any]] = [
            (["Hi", 5, "you"], [*ids, 5, *bare]),
            ([[5, 6, "Hi"], "Hi"], [[5, 6, *ids], "Hi"]),
            ({"prompt_string": "Hi you"}, "Hi you"),
            (object_, "Hi you"),
            (["Hi", object_, [5, 6]], ["Hi", "Hi you", [5, 6]]),
        ]
        for given, same in pairs:
            for path in ("/v1/embeddings", "/embedding"):
                answers = [
                    (await client.post(path, json={"input": each})).json() for each in (given, same)
                ]
                first, second = (each if path == "/embedding" else each["data"] for each in answers)
                assert first == second
                assert len(first) == (len(given) if isinstance(same[0], list) else len(second))

    run(directory, test, EMBEDDER)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/completion"])
def test_a_list_of_too_many_texts_is_refused(directory: Path, path: str) -> None:
    """Each text is split by a call of its own; ids that follow each other are one part."""

    async def test(client: Client) -> None:
        field = "prompt" if path == "/completion" else "input"
        answer = await client.post(path, json={field: [*["a"] * 2_000, 1]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field

    run(directory, test, EMBEDDER)


def test_token_ids_that_follow_each_other_are_one_part() -> None:
    job = input_job([1, 2, "a", 3, 4, 5], "input", "", is_framed=True)
    assert isinstance(job, PromptJob)
    assert [each.packed_ids for each in job.parts] == [packed([1, 2]), b"", packed([3, 4, 5])]


def test_a_large_body_may_mix_texts_and_token_ids(directory: Path) -> None:
    """A worker reads it, and it stays one prompt, not one for each of its parts."""

    async def test(client: Client) -> None:
        words = ["Hi " * 40_000, 5, "Hi " * 40_000]
        body = {"input": words, "truncate_prompt_tokens": 8}
        data = (await client.post("/v1/embeddings", json=body)).json()["data"]
        assert [each["index"] for each in data] == [0]

    run(directory, test, EMBEDDER)


def test_without_pooling_an_object_has_the_vectors_of_all_tokens(directory: Path) -> None:
    """Vectors keep their own length unless a request says otherwise, as at llama-server."""

    async def test(client: Client) -> None:
        for sent in ({}, {"use_activation": True}):
            activation = bool(sent)
            body = {"input": TEXTS, "task": "token_embed", "use_activation": activation}
            data = (await client.post("/pooling", json=body)).json()["data"]
            answer = await client.post("/embedding", json={"content": TEXTS, **sent})
            found = answer.json()
            assert [each["embedding"] for each in found] == [each["data"] for each in data]
            assert len(found[0]["embedding"]) > 1

    run(directory, test, replace(EMBEDDER, default_task="token_embed"))
